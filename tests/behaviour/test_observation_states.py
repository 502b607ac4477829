"""Graphs that take turns, or come late or seldom: each is watched enough, and none delays the steady state for ever."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import torch
from programs import guarded
from steady_state import PERIOD, QUIET, WINDOW, is_watched, reader, sampled

import shadowgraph as sg
from shadowgraph.monitor.sampling import observation


@pytest.fixture
def debugger(monkeypatch: pytest.MonkeyPatch) -> Iterator[sg.Debugger]:
    with sampled(monkeypatch) as made:
        yield made


def test_a_graph_that_was_not_watched_enough_ends_a_nap(debugger: sg.Debugger) -> None:
    """As when a batch size comes for the first time, long after all else has become steady."""
    table = guarded(debugger, 8)
    usual, other = reader(table), reader(table)
    for _ in range(QUIET):
        usual.replay()
    assert not is_watched()
    for _ in range(2):
        other.replay()
        for _ in range(WINDOW):
            assert is_watched(), "it was watched less often than the usual one before its first steady period"
            other.replay()
        assert not is_watched()
    for _ in range(3):
        other.replay()
        assert not is_watched(), "it is known by now"
    assert debugger.monitor.observation._watched == {usual.model.serial: QUIET, other.model.serial: 2 * WINDOW}
    other.reset()
    assert debugger.monitor.observation._watched == {usual.model.serial: QUIET}


@pytest.mark.parametrize("graphs", [2, 3, 5, 6, 7, 9])
def test_of_graphs_that_take_turns_none_is_missed_each_time(debugger: sg.Debugger, graphs: int) -> None:
    """As a step of speculative decoding has them: where a window and what follows it are as long as the turn."""
    table = guarded(debugger, 8)
    turn = [reader(table) for _ in range(graphs)]
    for _ in range(60):
        for graph in turn:
            graph.replay()
    watched = debugger.monitor.observation._watched
    assert min(watched[graph.model.serial] for graph in turn) >= QUIET
    seen = []
    for _ in range(PERIOD + WINDOW):
        for graph in turn:
            graph.replay()
            seen.append(is_watched())
    assert sum(seen) <= len(seen) * (WINDOW + 1) / (PERIOD + WINDOW), "it is steady as long as with one graph"


def test_a_graph_that_comes_seldom_is_not_waited_for_many_times(debugger: sg.Debugger) -> None:
    table = guarded(debugger, 8)
    usual, seldom = reader(table), reader(table)
    for _ in range(QUIET):
        usual.replay()
    watched, awake = debugger.monitor.observation._watched, []
    for _ in range(8):
        seldom.replay()
        awake.append(0)
        for _ in range(10 * WINDOW):
            usual.replay()
            awake[-1] += is_watched()
    assert seldom.model.serial in watched
    assert awake[0] > WINDOW * observation.PATIENCE
    assert max(awake[4:]) <= 3 * WINDOW, "as the usual one's steady periods end by themselves"


def test_while_another_thread_captures_no_nap_begins(debugger: sg.Debugger) -> None:
    """What passes unseen would be missing in what is known of the new graph."""
    graph = reader(guarded(debugger, 8))
    captures, done = threading.Event(), threading.Event()

    def capture() -> None:
        values = torch.zeros(4)
        with sg.host_graph(sg.HostGraph()):
            captures.set()
            done.wait(60)
            values.add_(1)

    thread = threading.Thread(target=capture)
    thread.start()
    try:
        assert captures.wait(60)
        for _ in range(2 * QUIET):
            graph.replay()
            assert not debugger.monitor.observation.unobserved
    finally:
        done.set()
        thread.join()
    for _ in range(2 * QUIET):
        graph.replay()
    assert debugger.monitor.observation.unobserved


@pytest.mark.parametrize(("observed", "wanted"), [(0, PERIOD), (8, 32 * WINDOW), (10**6, 50 * PERIOD)])
def test_windows_take_their_share_of_the_time(monkeypatch: pytest.MonkeyPatch, observed: int, wanted: int) -> None:
    """An observed replay takes some times as long as one that passes: the longer, the longer the periods."""
    now = [0.0]
    with sampled(monkeypatch, apart=(1, 1)) as debugger:
        monkeypatch.setattr(observation, "LONGEST", 50)
        monkeypatch.setattr(observation, "SHARE", 0.25)
        monkeypatch.setattr(observation, "time", SimpleNamespace(monotonic=lambda: now[0], time=lambda: now[0]))
        table, states = guarded(debugger, 8), debugger.monitor.observation
        graph = reader(table)
        while states.periods < 4:
            now[0] += 1 if states.unobserved else observed
            graph.replay()
        assert states._left == wanted
        assert f"in {WINDOW + wanted:,} after" in (states.sentence() or "")
