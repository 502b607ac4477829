"""Faults of ours, replays that raise or hold each other, and damage far from where anybody looks first."""

from __future__ import annotations

import threading

import pytest
import torch
from programs import guarded, only, overflow, poke, reader_of

import shadowgraph as sg
from shadowgraph.engines.numpy_engine import NumpyEngine


def test_a_fault_of_an_engine_reaches_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("ours")

    with sg.debug() as debugger:
        table = guarded(debugger, 4)
        graph, output = reader_of(table)
        monkeypatch.setattr(NumpyEngine, "check", broken)
        with debugger.prepare(graph):
            table.fill_(2)
        graph.replay()
        assert output.tolist() == [4, 4, 4, 4]
        debugger.check()
        debugger.pause()
        debugger.resume()
        faults = debugger.report(quiet=True).facts.faults
    assert any("ours" in fault for fault in faults)


def test_what_a_raising_replay_did_was_done_in_it() -> None:
    def fail() -> None:
        raise OSError("mine")

    with sg.debug() as debugger:
        table = guarded(debugger, 4)
        graph = sg.HostGraph()
        with sg.host_graph(graph):
            overflow(table)
            graph.call(fail)
        with pytest.raises(OSError, match="mine"):
            graph.replay()
    found = only(debugger.findings)
    assert (found.phase, found.replay, found.culprit.node) == ("replay", 1, 0)


@pytest.mark.parametrize("guilty", ["inner", "outer before", "outer after"])
def test_a_graph_that_replays_another(guilty: str) -> None:
    with sg.debug() as debugger:
        table = guarded(debugger, 4)
        inner, outer = sg.HostGraph(), sg.HostGraph()
        with sg.host_graph(inner):
            overflow(table, int(guilty == "inner"))
        with sg.host_graph(outer):
            overflow(table, int(guilty == "outer before"))
            outer.call(inner.replay)
            overflow(table, int(guilty == "outer after"))
        outer.replay()
    found = only(debugger.findings)
    graph, node = {"inner": (inner, 0), "outer before": (outer, 0), "outer after": (outer, 2)}[guilty]
    assert (found.phase, found.graph, found.replay) == ("replay", graph.model.name, 1)
    assert (found.culprit.name, found.culprit.node) == ("fill", node)


def test_replays_in_two_threads_keep_their_own_names() -> None:
    with sg.debug() as debugger:
        mine, other = guarded(debugger, 4), guarded(debugger, 4)
        inside, finish = threading.Event(), threading.Event()

        def wait() -> None:
            inside.set()
            assert finish.wait(30)

        slow, quick = sg.HostGraph(), sg.HostGraph()
        with sg.host_graph(slow):
            slow.call(wait)
            other.add_(1)
        with sg.host_graph(quick):
            overflow(mine)
        thread = threading.Thread(target=slow.replay)
        thread.start()
        assert inside.wait(30)
        quick.replay()
        finish.set()
        thread.join()
    found = only(debugger.findings)
    assert (found.phase, found.graph, found.replay) == ("replay", quick.model.name, 1)
    assert (found.culprit.name, found.culprit.node) == ("fill", 0)


def test_a_far_store_is_named_at_once() -> None:
    """It jumps over the near guard; its launch's own stores say where to look."""
    from shadowgraph.demos.kernels import fill

    with sg.debug() as debugger:
        tables = [guarded(debugger, 64) for _ in range(4)]
        graph = sg.HostGraph()
        with sg.host_graph(graph):
            fill[(1,)](tables[2], 600, 3, 1, BLOCK=8)
        graph.replay()
        found = only(debugger.findings)
    assert (found.phase, found.replay, found.culprit.node, found.confidence) == ("replay", 1, 0, "high")
    assert (found.bytes.first, found.bytes.distance) == (2400, 2144)


def test_damage_from_before_a_debugger_is_not_judged() -> None:
    with sg.debug() as debugger:
        table = guarded(debugger, 4)
    poke(table, 16, 4)
    with sg.debug() as debugger:
        assert debugger.check() == ()
        poke(table, 16, 4)
        assert only(debugger.check()).past_end == 4


def test_each_finding_is_logged_once_at_once(caplog: pytest.LogCaptureFixture) -> None:
    with sg.debug() as debugger:
        table = guarded(debugger, 4)
        overflow(table)
        debugger.check()
        overflow(table)
        debugger.check()
        said = [record.getMessage() for record in caplog.records if record.name == "shadowgraph"]
    assert len(said) == 1
    assert "wrote 4 bytes past the end" in said[0]


def test_prepare_takes_graphs_only() -> None:
    with (
        sg.debug() as debugger,
        pytest.raises(sg.UsageError, match="expected a HostGraph"),
        debugger.prepare("graph"),  # type: ignore[arg-type]
    ):
        torch.zeros(1)
