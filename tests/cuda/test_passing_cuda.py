"""Replays that pass unobserved, on a device: what breaks is dated at once, named when it happens again, else silent."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from helpers_cuda import BLOCK, capture, fill, guarded, only, overflow, warm_kernels

import shadowgraph as sg
from shadowgraph.monitor.sampling import observation
from shadowgraph.tracking import passing

pytestmark = pytest.mark.gpu
QUIET, LOOKS_APART, PERIOD = 8, (3, 6), 300


@pytest.fixture
def debugger(monkeypatch: pytest.MonkeyPatch) -> Iterator[sg.Debugger]:
    warm_kernels()
    for name, value in (("QUIET", QUIET), ("LOOKS_APART", LOOKS_APART), ("PERIOD", PERIOD), ("LONGEST", 1)):
        monkeypatch.setattr(observation, name, value)
    with sg.debug(backend="cuda", watch_eager="sampled") as made:
        yield made
    assert not passing.on


def put_here(table: torch.Tensor, where: torch.Tensor) -> None:
    """A kernel that stores one element at an offset that the device tells."""
    from kernels_cuda import stray

    stray[(1,)](table, where)


def passes(graph: torch.cuda.CUDAGraph) -> None:
    """Replay until replays pass."""
    for _ in range(4 * QUIET):
        graph.replay()
        if passing.on:
            return
    raise AssertionError("invalid: no replay passes")


def until_found(debugger: sg.Debugger, graph: torch.cuda.CUDAGraph) -> int:
    for count in range(1, 3 * LOOKS_APART[1]):
        graph.replay()
        torch.cuda.synchronize()
        if debugger.findings:
            return count
    raise AssertionError("nothing was found")


def test_a_clean_program_is_silent_and_each_replay_counts(debugger: sg.Debugger) -> None:
    table = guarded(debugger, BLOCK)
    graph, total = capture(lambda: table.sum())
    for at in range(2 * PERIOD):
        fill(table)
        table.add_(at)
        graph.replay()
        assert int(total) == BLOCK * (BLOCK - 1) // 2 + at * BLOCK
    assert debugger.check() == ()
    facts = debugger.facts()
    assert facts.faults == {}
    assert [replays for _, _, replays in facts.graphs] == [2 * PERIOD]
    budget = debugger.monitor.budget
    assert budget.replays == 2 * PERIOD
    assert budget.observed < PERIOD, "most pass"


def test_what_a_kernel_of_the_graph_breaks_in_a_nap_is_named_when_it_happens_again(debugger: sg.Debugger) -> None:
    table, where = guarded(debugger, 64), guarded(debugger, 1, dtype=torch.int64)
    graph, _ = capture(lambda: put_here(table, where))
    passes(graph)
    where.fill_(64)
    graph.replay()
    broken = debugger.graphs[0].replays
    where.zero_()
    until_found(debugger, graph)
    found = only(debugger.findings)
    assert (found.code, found.past_end, found.detected_at, found.confidence) == ("SG101", 4, "replay_end", "high")
    assert (found.phase, found.replay, found.culprit.name, found.candidates) == ("replay", broken, "stray", ())
    graph.replay()
    assert not passing.on, "launches are observed from the next replay on, also where a report came first"
    where.fill_(64)
    for _ in range(4):
        graph.replay()
        torch.cuda.synchronize()
    found = only(debugger.check())
    assert (found.phase, found.detected_at, found.culprit.name) == ("replay", "replay_end", "stray")
    assert found.culprit.status == "confirmed"


def test_an_observed_launch_is_not_accused_of_what_came_before_it(debugger: sg.Debugger) -> None:
    table = guarded(debugger, 64)
    graph, _ = capture(lambda: table.sum())
    for _ in range(2 * QUIET):
        fill(table)
        graph.replay()
        if passing.on:
            break
    assert passing.on, "invalid: no replay passes"
    overflow(table)  # which passes unseen
    for _ in range(3 * LOOKS_APART[1]):
        fill(table)
        graph.replay()
        torch.cuda.synchronize()
        if debugger.findings:
            break
    found = only(debugger.findings)
    assert (found.detected_at, found.phase) == ("replay_begin", "prepare")
    assert (found.culprit.name, found.culprit.status) == ("put", "candidate"), "the launches were not observed"


def test_a_kernel_that_overruns_in_each_prepare_is_named(debugger: sg.Debugger) -> None:
    table = guarded(debugger, 64)
    graph, _ = capture(lambda: table.sum())
    passes(graph)
    for _ in range(3 * LOOKS_APART[1]):
        overflow(table)
        graph.replay()
        torch.cuda.synchronize()
    found = only(debugger.check())
    assert (found.phase, found.culprit.name, found.culprit.status) == ("prepare", "put", "confirmed")
