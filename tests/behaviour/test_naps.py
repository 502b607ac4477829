"""Naps: when nothing happens, eager operators pass unseen for a while; nothing wrong may follow from that."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator

import pytest
import torch
from padding import Batch, told
from playing import played
from programs import guarded, only
from torch.utils._python_dispatch import _get_current_dispatch_mode

import shadowgraph as sg
from shadowgraph import naps
from shadowgraph.checks.registry import Checks
from shadowgraph.graphs.light_mode import LightMode

STEADY, AWAKE, ASLEEP = 6, 4, 10
ROUNDS = STEADY + 3 * (ASLEEP + AWAKE)


@pytest.fixture
def debugger(monkeypatch: pytest.MonkeyPatch) -> Iterator[sg.Debugger]:
    for name, value in (("STEADY", STEADY), ("AWAKE", AWAKE), ("ASLEEP", ASLEEP)):
        monkeypatch.setattr(naps, name, value)
    with played(monkeypatch, watch_eager="sampled") as made:
        yield made


@pytest.fixture
def spill() -> Iterator[object]:
    """An operator that zeroes one element behind the end of what it was given."""
    library = torch.library.Library("naps", "DEF")
    library.define("spill(Tensor(a!) x) -> ()")
    library.impl("spill", lambda x: ctypes.memset(x.data_ptr() + x.nbytes, 0, x.itemsize) and None, "CPU")
    yield torch.ops.naps.spill
    library._destroy()


def is_watched() -> bool:
    """Whether a mode of ours is on this thread's stack."""
    return isinstance(_get_current_dispatch_mode(), LightMode)


def reader(table: torch.Tensor) -> sg.HostGraph:
    graph = sg.HostGraph()
    with sg.host_graph(graph):
        table.add_(0)
    return graph


def test_the_mode_leaves_the_stack_and_comes_back(debugger: sg.Debugger) -> None:
    table = guarded(debugger, 8)
    graph, seen = reader(table), []
    for _ in range(ROUNDS):
        graph.replay()
        seen.append(is_watched())
    steady, nap, window = [True] * (STEADY - 1), [False] * ASLEEP, [True] * AWAKE
    assert seen == [*steady, *(nap + window) * 3, False]
    (limit,) = debugger.facts().limits
    assert limit.startswith("eager operators were watched around 4 replays in 14 after 6 without news")


def test_who_may_end_without_a_summary_is_told_at_once(debugger: sg.Debugger) -> None:
    said: list[str] = []
    debugger.supervisor.outside.tell = said.append
    table = guarded(debugger, 8)
    graph = reader(table)
    for _ in range(ROUNDS):
        graph.replay()
    (line,) = said
    assert line.startswith("eager operators were watched around 4 replays in 14")
    assert debugger.facts().limits == ()


def test_without_being_asked_nobody_naps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(naps, "STEADY", 2)
    with played(monkeypatch) as debugger:
        table = guarded(debugger, 8)
        graph = reader(table)
        for _ in range(9):
            graph.replay()
            assert is_watched()
        assert debugger.facts().limits == ()


def test_a_capture_ends_a_nap(debugger: sg.Debugger) -> None:
    table = guarded(debugger, 8)
    graph = reader(table)
    for _ in range(STEADY + 2):
        graph.replay()
    assert not is_watched()
    other = reader(table)
    for _ in range(STEADY - 1):
        other.replay()
        assert is_watched()
    other.replay()
    assert not is_watched()


def test_what_an_operator_breaks_in_a_nap_is_found_at_once_and_named_when_it_happens_again(
    debugger: sg.Debugger, spill: object
) -> None:
    table = guarded(debugger, 8)
    graph = reader(table)
    for _ in range(STEADY + 2):
        graph.replay()
    assert not is_watched()
    spill(table)  # type: ignore[operator]
    graph.replay()
    found = only(debugger.check())
    assert (found.code, found.past_end, found.phase, found.culprit.name) == ("SG101", 4, "prepare", None)
    for _ in range(3):
        spill(table)  # type: ignore[operator]
        graph.replay()
        assert is_watched(), "a finding ends the nap"
    found = only(debugger.check())
    assert (found.culprit.name, found.culprit.status) == ("naps.spill.default", "confirmed")


def plan(indptr: torch.Tensor, lens: torch.Tensor, refresh: bool) -> list[int]:
    """A host that fills an index array, unless it forgets to, with what a graph happened to leave in it, and plans."""
    if refresh:
        first, second = lens.tolist()
        indptr.copy_(torch.tensor([0, first, first + second], dtype=torch.int32))
    lens.add_(1)
    return indptr.tolist()


def planned(debugger: sg.Debugger, rounds: int, refresh: bool) -> list[int]:
    """A graph that overwrites the array; the rounds after which something had been found."""
    with debugger.guard():
        indptr, lens = torch.tensor([0, 4, 11]).int(), torch.tensor([4, 7]).int()
    graph = sg.HostGraph()
    with sg.host_graph(graph):
        indptr[1:].copy_(lens.cumsum(0))
    seen = []
    for at in range(rounds):
        plan(indptr, lens, refresh or at < STEADY + ASLEEP - 2)
        graph.replay()
        seen += [at] * bool(debugger.findings)
    return seen


def test_a_host_that_rewrites_unseen_what_a_graph_wrote_is_not_accused(debugger: sg.Debugger) -> None:
    assert planned(debugger, ROUNDS, refresh=True) == []
    assert told(debugger) == []


def test_nor_would_it_be_silent_by_chance(debugger: sg.Debugger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Checks, "sighted", property(lambda checks: ()))
    monkeypatch.setattr(Checks, "forget_writers", lambda checks: None)
    assert planned(debugger, ROUNDS, refresh=True)


def test_a_host_that_forgets_is_found_in_the_next_window(debugger: sg.Debugger) -> None:
    seen = planned(debugger, ROUNDS, refresh=False)
    assert seen[0] >= STEADY + ASLEEP
    found = only(debugger.findings)
    assert (found.code, found.reader.name) == ("SG102", "tolist")


def test_padding_that_is_refreshed_unseen_is_not_stale(debugger: sg.Debugger) -> None:
    batch = Batch(debugger)
    for at in range(ROUNDS):
        batch.step([[2, 3, 5, 7], [6], [1, 2]][at % 3], zero=True)
    assert told(debugger) == []


def test_forgotten_padding_is_found_in_a_window(debugger: sg.Debugger) -> None:
    batch = Batch(debugger)
    for at in range(ROUNDS):
        batch.step([[2, 3, 5, 7], [6], [1, 2]][at % 3], zero=at < STEADY + 1)
    debugger.check()
    assert {finding.code for finding in (*debugger.findings, *debugger.notes)} == {"SG103"}


def test_a_host_that_reads_what_a_graph_makes_is_not_accused_after_a_nap(debugger: sg.Debugger) -> None:
    with debugger.guard():
        tokens = torch.tensor([3, 1, 4, 1]).int()
    graph = sg.HostGraph()
    with sg.host_graph(graph):
        tokens.copy_(tokens * 3 % 101)
    for _ in range(ROUNDS):
        graph.replay()
        tokens.tolist()
    assert debugger.findings == ()
    assert {note.code for note in debugger.notes} == {"SG102"}, "precondition: it is followed"
