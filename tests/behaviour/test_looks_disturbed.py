"""Closer looks while other streams and threads go on, are given up half way, or find several at once."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from playing import LateEngine, played
from programs import guarded, only, overflow, poke, reader_of

import shadowgraph as sg
from shadowgraph.engines.base import Result
from shadowgraph.graphs.events import events
from shadowgraph.localize import launch_stepper, locator
from shadowgraph.model.graphs import Graph
from shadowgraph.model.launches import Access, Launch, LaunchKind, Pointer
from shadowgraph.model.probes import Outcome, Probe
from shadowgraph.model.views import TensorView


class OtherStream:
    """Work that another stream has queued: it runs in the middle of the next launch, unless somebody waits for it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.queued: list[Callable[[], None]] = []
        poll, stream = LateEngine.poll, self

        def waiting(engine: LateEngine, wait: bool = False, here: bool = False) -> list[Result]:
            if wait and not here:
                stream.run()
            return poll(engine, wait, here)

        monkeypatch.setattr(LateEngine, "poll", waiting)

    def run(self) -> None:
        queued, self.queued = self.queued, []
        for work in queued:
            work()


def launch(name: str, tensor: torch.Tensor) -> Launch:
    return Launch(LaunchKind.ATEN, name, (Pointer("self", TensorView.of(tensor), Access.READ_WRITE),))


def test_what_another_stream_does_is_not_laid_on_a_launch_beside_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with played(monkeypatch) as debugger:
        table = guarded(debugger, 64)
        graph, _kept = reader_of(table)
        other = OtherStream(monkeypatch)
        beside = launch("beside", table)
        for _ in range(3):
            with debugger.prepare(graph):
                other.queued.append(lambda: poke(table, 256, 4))
                events.launch_begins(beside, ())
                other.run()
                events.launch_ran(beside, None)
            graph.replay()
        found = only(debugger.check())
    assert found.occurrences > 1
    assert (found.culprit.status, found.culprit.kind) == ("unknown", "unseen")


def test_what_another_thread_launches_is_not_laid_on_a_launch_beside_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with played(monkeypatch) as debugger, ThreadPoolExecutor(1) as another:
        table = guarded(debugger, 64)
        graph, _kept = reader_of(table)
        mine, theirs = launch("mine", table), launch("theirs", table)

        def replayed(beside: bool) -> None:
            with debugger.prepare(graph):
                another.submit(events.launch_begins, theirs, ()).result()
                if not beside:
                    another.submit(events.launch_ran, theirs, None).result()
                events.launch_begins(mine, ())
                poke(table, 256, 4)
                events.launch_ran(mine, None)
                if beside:
                    another.submit(events.launch_ran, theirs, None).result()
            graph.replay()

        for _ in range(3):
            replayed(beside=True)
        found = only(debugger.check())
        assert found.occurrences > 1
        assert (found.culprit.name, found.culprit.status) == ("theirs", "candidate")
        for _ in range(3):
            replayed(beside=False)
        *_, found = debugger.check()
    assert (found.culprit.name, found.culprit.status) == ("mine", "confirmed"), "one after the other"


def test_replays_wait_for_other_streams_before_they_are_probed(monkeypatch: pytest.MonkeyPatch) -> None:
    with played(monkeypatch) as debugger:
        table = guarded(debugger, 64)
        graph = sg.HostGraph()
        other = OtherStream(monkeypatch)
        with sg.host_graph(graph):
            graph.call(other.run, writes=())
            table.add_(1)
        for _ in range(3):
            other.queued.append(lambda: poke(table, 256, 4))
            graph.replay()
        found = only(debugger.check())
    assert found.culprit.status == "not_reproduced", "no node did it"


def test_launches_of_one_prepare_that_break_the_same_guard_are_all_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with played(monkeypatch) as debugger:
        table = guarded(debugger, 64)
        graph, _kept = reader_of(table)
        first, second = launch("first", table), launch("second", table)
        for _ in range(3):
            with debugger.prepare(graph):
                for value, each in enumerate((first, second), 7):
                    events.launch_begins(each, ())
                    poke(table, 256, 4, value)
                    events.launch_ran(each, None)
            graph.replay()
        found = only(debugger.check())
    assert (found.culprit.name, found.culprit.status) == ("first", "confirmed")
    assert [(one.name, one.status) for one in found.candidates] == [("second", "confirmed")]


def test_a_replay_that_nobody_checked_is_not_an_unseen_writer(monkeypatch: pytest.MonkeyPatch) -> None:
    with played(monkeypatch) as debugger:
        table = guarded(debugger, 64)
        graph, _kept = reader_of(table)
        breaks, due = sg.HostGraph(), [True]
        with sg.host_graph(breaks):
            breaks.call(lambda: poke(table, 256, 4, 8), writes=())
        poke(table, 256, 4)
        graph.replay()
        assert debugger.check()
        assert debugger.monitor.stepper.armed
        debugger.check()
        monkeypatch.setattr(debugger.monitor.budget, "replay_due", lambda *_: due[0])
        due[0] = False
        breaks.replay()
        due[0] = True
        with debugger.prepare(graph):
            table.add_(1)
        graph.replay()
        found = only(debugger.check())
    assert (found.occurrences, found.culprit.kind) == (2, None)


def test_a_look_that_is_given_up_half_way_is_taken_again() -> None:
    with sg.debug() as debugger:
        table = guarded(debugger, 8)
        graph = sg.HostGraph()
        busy = [True]
        with sg.host_graph(graph):
            graph.call(lambda: debugger.pause() if busy[0] else None)
            table.add_(1)
        handle = debugger.locate(graph)
        graph.replay()
        assert not handle.done
        assert not debugger.monitor.locator.armed, "what it would have read is held no longer"
        busy[0] = False
        debugger.resume()
        graph.replay()
        assert handle.done
        assert handle.write_sets is not None


def test_a_check_that_raises_after_a_replay_that_raises_ends_the_look() -> None:
    with sg.debug(sync=True) as debugger:
        table = guarded(debugger, 8)
        graph = sg.HostGraph()
        with sg.host_graph(graph):
            graph.call(lambda: (poke(table, 32, 4), 1 // 0))
        handle = debugger.locate(graph)
        with pytest.raises((sg.FindingsError, ZeroDivisionError)):
            graph.replay()
        assert not debugger.monitor.locator.armed
        assert not handle.done


def test_a_graph_that_goes_before_its_replay_is_told_of() -> None:
    with sg.debug() as debugger:
        table = guarded(debugger, 8)
        graph, other = sg.HostGraph(), sg.HostGraph()
        for each in (graph, other):
            with sg.host_graph(each):
                table.add_(1)
        handle = debugger.locate()
        name = graph.model.name
        graph.reset()
        other.replay()
    assert handle.done
    assert handle.outcomes[name].refused == "the graph was gone before its next replay"
    assert list(handle.by_graph) == [other.model.name]


def test_a_fingerprint_does_not_depend_on_whether_a_look_was_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second guard breaks first in the replay that is probed for the sake of the first, if one is."""
    marks, status = [], []
    for locate in ("auto", "off"):
        with played(monkeypatch, locate=locate) as debugger:
            table, other, switch = guarded(debugger, 64), guarded(debugger, 64), guarded(debugger, 1)
            graph = sg.HostGraph()
            with sg.host_graph(graph):
                overflow(table, 1)
                overflow(other, 0)
                graph.call(lambda other=other, on=switch: poke(other, 256, 4) if on.item() else None, writes=(other,))
                other.add_(1)
            graph.replay()
            graph.replay()
            switch.fill_(1)
            graph.replay()
            _, second = debugger.check()
        marks.append(second.fingerprint)
        status.append(second.culprit.status)
    assert status == ["confirmed", "candidate"]
    assert marks[0] == marks[1]


def test_a_look_at_launches_ends_after_so_many(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(launch_stepper, "_MOST", 10)
    with played(monkeypatch) as debugger:
        table = guarded(debugger, 64)
        graph, _kept = reader_of(table)
        poke(table, 256, 4)
        graph.replay()
        debugger.check()
        assert debugger.monitor.stepper.armed
        for _ in range(12):
            table.add_(1)
        assert not debugger.monitor.stepper.armed
    assert "10 launches were checked one by one, and none did it again" in caplog.text


def test_memory_that_is_gone_is_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locator, "readable", lambda *_: False)
    with played(monkeypatch) as debugger:
        table = guarded(debugger, 64)
        graph = sg.HostGraph()
        with sg.host_graph(graph):
            overflow(table, 1)
            table.add_(1)
        for _ in range(3):
            graph.replay()
            assert not debugger.monitor.locator._outcomes
        assert only(debugger.check()).culprit.status == "candidate"


def test_what_there_was_no_room_to_tell_is_looked_at_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at: list[int] = []

    def full(steps: object, model: Graph, watched: bool, probe: Probe) -> None:
        looked_at.append(len(probe.parts))
        probe.deliver(Outcome(model.replays, dropped=1))

    with played(monkeypatch) as debugger:
        table, others = guarded(debugger, 64), [guarded(debugger, 8) for _ in range(4)]
        graph = sg.HostGraph()
        with sg.host_graph(graph):
            overflow(table, 1)
            table.add_(1)
        graph.replay()
        graph.replay()
        monkeypatch.setattr("shadowgraph.graphs.host.graph.run_probed", full)
        graph.replay()
        assert only(debugger.findings).culprit.status == "candidate"
        graph.replay()
        assert only(debugger.findings).culprit.status == "not_reproduced"
        graph.replay()
    assert len(others) == 4
    assert len(looked_at) == 2
    assert looked_at[1] < looked_at[0]


def test_in_sync_mode_all_that_one_replay_shows_is_in_the_book() -> None:
    from shadowgraph.demos.kernels import fill

    with sg.debug(sync=True) as debugger:
        one, other, table = guarded(debugger, 16), guarded(debugger, 16), guarded(debugger, 64)
        graph = sg.HostGraph()
        with sg.host_graph(graph):
            fill[(1,)](table, (one.data_ptr() - table.data_ptr()) // 4, 2, 7, BLOCK=64)
            fill[(1,)](table, (other.data_ptr() - table.data_ptr()) // 4, 2, 7, BLOCK=64)
        debugger.locate(graph)
        with pytest.raises(sg.FindingsError, match="SG106 foreign write: fill"):
            graph.replay()
        assert {(found.code, found.culprit.node) for found in debugger.findings} == {("SG106", 0), ("SG106", 1)}


@pytest.mark.parametrize("again", [True, False])
def test_on_a_device_a_foreign_write_is_told_when_it_is_seen_twice(
    monkeypatch: pytest.MonkeyPatch, again: bool
) -> None:
    """Once it may have been another stream's: the suspected buffer is looked at in the next replay."""
    from shadowgraph.demos.kernels import fill

    with played(monkeypatch) as debugger:
        victim, table = guarded(debugger, 16), guarded(debugger, 64)
        debugger.name("victim", victim)
        graph = sg.HostGraph()
        with sg.host_graph(graph):
            fill[(1,)](table, (victim.data_ptr() - table.data_ptr()) // 4, 2, 7, BLOCK=64)
        handle = debugger.locate(graph)
        graph.replay()
        assert handle.done
        assert handle.write_sets is not None
        assert handle.write_sets.written, "the first look saw it"
        assert debugger.check() == ()
        if again:
            victim.zero_()
        graph.replay()  # without it the bytes are there already: nothing changes
        if not again:
            assert debugger.check() == ()
        else:
            found = only(debugger.check())
            assert (found.code, found.buffer.name, found.replay, found.culprit.node) == ("SG106", "victim", 2, 0)
        graph.replay()
        assert len(debugger.check()) == again, "and then no more"
