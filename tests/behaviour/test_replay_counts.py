"""What a report says of replays: how many were made, how many were checked, and how many were observed in full."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from programs import guarded
from steady_state import QUIET, sampled, until_steady

import shadowgraph as sg
from shadowgraph.model.run_facts import Replays
from shadowgraph.tracking import passing, steps


@pytest.fixture
def debugger(monkeypatch: pytest.MonkeyPatch) -> Iterator[sg.Debugger]:
    with sampled(monkeypatch, (10**6, 10**6), 10**6) as made:
        yield made


def pieces_in_steps(debugger: sg.Debugger) -> tuple[list[sg.HostGraph], torch.Tensor]:
    """Six pieces that were replayed in one order until those in the middle are checked with their step, and their
    input."""
    table, graphs = guarded(debugger, 8), [sg.HostGraph() for _ in range(6)]
    for graph in graphs:
        with sg.host_graph(graph):
            table.add_(1)
    for _ in range(QUIET * 8):
        for graph in graphs:
            graph.replay()
    assert steps.unchecked(), "precondition"
    return graphs, table


def test_each_replay_of_the_steady_state_counts_as_checked(debugger: sg.Debugger) -> None:
    graph = until_steady(debugger, guarded(debugger, 8))
    for _ in range(300):
        graph.replay()
    debugger.check()
    assert debugger.facts().replays == Replays(made=QUIET + 300, checked=QUIET + 300, observed=QUIET)
    (line,) = [line for line in str(debugger.report()).splitlines() if line.startswith("replays: ")]
    assert line == f"replays: {QUIET + 300:,} made, each one checked, {QUIET} observed in full"


def test_replays_during_a_pause_count_as_made_only_where_the_debugger_sees_them(debugger: sg.Debugger) -> None:
    graph = until_steady(debugger, guarded(debugger, 8))
    for _ in range(20):
        graph.replay()
    debugger.pause()
    for _ in range(7):
        graph.replay()
    debugger.resume()
    for _ in range(5):
        graph.replay()
    debugger.check()
    counts = debugger.facts().replays
    assert counts.checked == QUIET + 25
    assert counts.checked < counts.made == QUIET + 32


def test_one_replay_in_two_is_checked_where_that_was_asked_for() -> None:
    with sg.debug(backend="host", every=2) as debugger:
        table = guarded(debugger, 8)
        graph = sg.HostGraph()
        with sg.host_graph(graph):
            table.add_(1)
        for _ in range(10):
            graph.replay()
        debugger.check()
        assert debugger.facts().replays == Replays(made=10, checked=5, observed=5)
        assert "replays: 10 made, 5 checked, 5 observed in full" in str(debugger.report())


def test_a_report_without_replays_says_nothing_of_them() -> None:
    with sg.debug(backend="host") as debugger:
        guarded(debugger, 8)
        assert "replays:" not in str(debugger.report())


def test_replays_of_pieces_count_as_checked_with_their_step(debugger: sg.Debugger) -> None:
    kept = pieces_in_steps(debugger)
    debugger.check()
    counts = debugger.facts().replays
    assert counts.made == counts.checked == QUIET * 8 * 6
    assert any("with their step" in limit for limit in debugger.facts().limits)
    del kept


def test_what_pieces_counted_under_one_debugger_is_not_told_by_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    with sampled(monkeypatch, (10**6, 10**6), 10**6) as first:
        graphs, table = pieces_in_steps(first)
    with sg.debug(backend="host") as second:
        assert second.facts().limits == ()
        graphs[0].replay()
        second.check()
        assert second.facts().replays == Replays(made=1, checked=1, observed=1)
    del table


def test_a_debugger_that_starts_again_counts_again() -> None:
    debugger = sg.Debugger(sg.Settings(backend="host"))
    for _ in range(2):
        debugger.start()
        graph, table = sg.HostGraph(), guarded(debugger, 8)
        with sg.host_graph(graph):
            table.add_(1)
        for _ in range(3):
            graph.replay()
        passing.let(1 << 60, {graph.model.serial})
        for _ in range(4):
            graph.replay()
        debugger.stop()
        assert debugger.facts().replays == Replays(made=7, checked=7, observed=3)
