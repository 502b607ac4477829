"""What others wait for: no handler of the program's runs, and no device is waited for, under the debugger's lock."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import playing
import pytest
import torch
from playing import LateEngine, played
from programs import guarded, only, overflow, reader_of

import shadowgraph as sg
from shadowgraph.common import finalizer_safe_lock
from shadowgraph.common.errors import DeviceLostError
from shadowgraph.common.internal_errors import internal_errors
from shadowgraph.common.outbox import outbox
from shadowgraph.engines.base import Result
from shadowgraph.model.findings import Finding
from shadowgraph.model.ranges import ByteRange

PATIENCE = 20.0  # seconds after which a thread that waits counts as one that waits for ever


@contextmanager
def handled(emit: Callable[[logging.LogRecord], None]) -> Iterator[None]:
    """The program's own handler on our logger."""

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            emit(record)

    handler, logger = Handler(), logging.getLogger("shadowgraph")
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


class Meanwhile:
    """Replays in another thread, that begin when this one is where it should be in nobody's way."""

    def __init__(self, graph: sg.HostGraph, before: Callable[[], object] = lambda: None) -> None:
        self.reached, self.done = threading.Event(), threading.Event()
        self._graph, self._before = graph, before
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        assert self.reached.wait(PATIENCE)
        self._before()
        for _ in range(3):
            self._graph.replay()
        self.done.set()

    def go(self) -> bool:
        """Let it go; whether it gets through while this thread stands here."""
        self.reached.set()
        return self.done.wait(PATIENCE)

    def join(self) -> None:
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()


def test_a_handler_whose_lock_another_thread_holds_that_reads_what_is_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    with played(monkeypatch) as debugger:
        table, other = guarded(debugger, 16), guarded(debugger, 16)
        (graph, _kept), (mine, _mine) = reader_of(other), reader_of(table)
        lock, held, wanted, got = threading.Lock(), threading.Event(), threading.Event(), list[bool]()

        def hold() -> None:
            with lock:
                held.set()
                assert wanted.wait(PATIENCE)
                str(other)  # a read by the host, as in a line of the program's log
                graph.replay()

        def emit(record: logging.LogRecord) -> None:
            wanted.set()
            got.append(lock.acquire(timeout=PATIENCE))
            if got[-1]:
                lock.release()

        thread = threading.Thread(target=hold, daemon=True)
        thread.start()
        assert held.wait(PATIENCE)
        with handled(emit):
            overflow(table)
            for _ in range(2):  # it is seen under the lock, at a boundary
                mine.replay()
            found = only(debugger.check())
        thread.join(PATIENCE)
        assert not thread.is_alive()
    assert found.code == "SG101"
    assert got
    assert all(got), "the handler waited for a thread that waited for the debugger"


@pytest.mark.parametrize("late", [False, True])
def test_a_handler_that_formats_a_tensor_holds_no_lock_of_ours(monkeypatch: pytest.MonkeyPatch, late: bool) -> None:
    internal_errors.clear()
    with played(monkeypatch) if late else sg.debug() as debugger:
        table, said = guarded(debugger, 16), list[tuple[str, bool]]()

        def emit(record: logging.LogRecord) -> None:
            said.append((str(table.tolist()), finalizer_safe_lock._in_section()))

        with handled(emit):
            overflow(table)
            graph, _kept = reader_of(table)
            for _ in range(2):
                graph.replay()
            found = only(debugger.check())
    assert found.code == "SG101"
    assert set(said) == {(str([*range(1, 17)]), False)}
    assert not internal_errors.counts


def test_a_handler_that_blocks_keeps_no_other_thread_from_replaying() -> None:
    with sg.debug() as debugger:
        table, other = guarded(debugger, 16), guarded(debugger, 16)
        graph, _kept = reader_of(other)
        mine, _mine = reader_of(table)
        meanwhile, through = Meanwhile(graph), list[bool]()
        with handled(lambda record: through.append(meanwhile.go())):
            overflow(table)
            mine.replay()
        meanwhile.join()
        only(debugger.check())
    assert through == [True]


def test_a_finding_is_told_before_its_event_returns_and_before_it_is_logged() -> None:
    heard: list[str] = []

    def hear(finding: Finding) -> None:
        assert not finalizer_safe_lock._in_section()
        heard.append(finding.code)

    with sg.debug() as debugger:
        table = guarded(debugger, 16)
        graph, _kept = reader_of(table)
        debugger.adapter.subscribe_findings(hear)
        with handled(lambda record: heard.append("log")):
            overflow(table)
            graph.replay()
            assert heard == ["SG101", "log"]


def test_in_sync_mode_it_is_told_before_the_program_gets_the_exception() -> None:
    heard: list[str] = []
    with sg.debug(sync=True) as debugger:
        table = guarded(debugger, 16)
        debugger.adapter.subscribe_findings(lambda finding: heard.append(finding.code))
        with handled(lambda record: heard.append("log")), pytest.raises(sg.FindingsError):
            overflow(table)
        assert heard == ["SG101", "log"]


class SlowEngine(LateEngine):
    """A device that takes until another thread has replayed, or for ever, where this thread waits for it."""

    meanwhile: Meanwhile | None = None
    through: list[bool]

    def poll(self, wait: bool = False, here: bool = False) -> list[Result]:
        if wait:
            self._wait()
        return super().poll(wait, here)

    def read(self, where: ByteRange) -> bytes:
        self._wait()
        return super().read(where)

    def _wait(self) -> None:
        meanwhile = SlowEngine.meanwhile
        if meanwhile is not None and threading.current_thread() is threading.main_thread():
            SlowEngine.through.append(meanwhile.go())


@contextmanager
def slow(monkeypatch: pytest.MonkeyPatch) -> Iterator[sg.Debugger]:
    monkeypatch.setattr(playing, "LateEngine", SlowEngine)
    SlowEngine.meanwhile, SlowEngine.through = None, []
    try:
        with played(monkeypatch) as debugger:
            yield debugger
            SlowEngine.meanwhile = None
    finally:
        SlowEngine.meanwhile = None


def _check(debugger: sg.Debugger, table: torch.Tensor, graph: sg.HostGraph) -> None:
    debugger.check()


def _read(debugger: sg.Debugger, table: torch.Tensor, graph: sg.HostGraph) -> None:
    table.tolist()


def _capture(debugger: sg.Debugger, table: torch.Tensor, graph: sg.HostGraph) -> None:
    reader_of(table)


def _first_replay(debugger: sg.Debugger, table: torch.Tensor, graph: sg.HostGraph) -> None:
    SlowEngine.meanwhile, kept = None, SlowEngine.meanwhile
    new = sg.HostGraph()
    with sg.host_graph(new):
        table.add_(1)
    SlowEngine.meanwhile = kept
    new.replay()  # whether host code made the table that it writes is told by what is in there


def _look(debugger: sg.Debugger, table: torch.Tensor, graph: sg.HostGraph) -> None:
    debugger.locate(graph)
    graph.replay()


def _dump(debugger: sg.Debugger, table: torch.Tensor, graph: sg.HostGraph) -> None:
    debugger.monitor.still(lambda: None)


@pytest.mark.parametrize("waits", [_check, _read, _capture, _first_replay, _look, _dump])
def test_a_wait_for_the_device_keeps_no_other_thread_from_replaying(
    monkeypatch: pytest.MonkeyPatch, waits: Callable[[sg.Debugger, torch.Tensor, sg.HostGraph], None]
) -> None:
    with slow(monkeypatch) as debugger:
        table, other = guarded(debugger, 16), guarded(debugger, 16)
        mine, _mine = reader_of(table)
        graph, _kept = reader_of(other)
        mine.replay()
        graph.replay()
        meanwhile = SlowEngine.meanwhile = Meanwhile(graph)
        waits(debugger, table, mine)
        meanwhile.join()
    assert SlowEngine.through
    assert all(SlowEngine.through), "it replayed only when the wait was given up"


def test_a_launch_that_is_looked_at_waits_without_the_lock_first(monkeypatch: pytest.MonkeyPatch) -> None:
    with slow(monkeypatch) as debugger:
        table, other = guarded(debugger, 16), guarded(debugger, 16)
        mine, _mine = reader_of(table)
        graph, _kept = reader_of(other)
        graph.replay()
        overflow(table)
        mine.replay()
        only(debugger.check())
        assert debugger.monitor.stepper.armed
        meanwhile = SlowEngine.meanwhile = Meanwhile(graph)
        overflow(table)
        meanwhile.join()
    assert SlowEngine.through[0]


def test_what_arrives_while_two_threads_wait_is_judged_in_its_order(monkeypatch: pytest.MonkeyPatch) -> None:
    with played(monkeypatch) as debugger:
        table = guarded(debugger, 16)
        graph, _kept = reader_of(table)
        bounds, judged = debugger.monitor._boundaries, list[int]()
        monkeypatch.setattr(
            bounds._evidence, "dispatch_evidence", lambda results: judged.extend(result.tag.order for result in results)
        )
        overflow(table)
        graph.replay()
        bounds.wait()
        results = [*bounds._arrived]
        later = [result._replace(tag=sg.checks.base.Checkpoint("later", order=1 << 40)) for result in results]
        bounds._arrived.clear()
        bounds._arrived.extend([*later, *results])
        bounds.poll()
    assert len(judged) >= 2
    assert judged == sorted(judged)


# -- each thread prepares, and captures, for itself ----------------------------------------------------------------


def test_two_threads_that_prepare_different_graphs_at_the_same_time() -> None:
    with sg.debug() as debugger:
        tables = [guarded(debugger, 16), guarded(debugger, 16)]
        for table, name in zip(tables, ("left", "right"), strict=True):
            debugger.name(name, [table])
        others = [guarded(debugger, 16), guarded(debugger, 16)]  # so that no graph is known by what it reads
        graphs = [reader_of(other)[0] for other in others]
        graphs[1].replay()
        opened, launched = threading.Barrier(2), threading.Barrier(2)
        interpreter, errors = threading.Lock(), list[BaseException]()  # Triton's runs one kernel at a time

        def prepare(index: int) -> None:
            try:
                with debugger.prepare(graphs[index]):
                    opened.wait(PATIENCE)
                    with interpreter:
                        overflow(tables[index], index + 1)
                    launched.wait(PATIENCE)
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=prepare, args=(index,)) for index in (0, 1)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE)
        assert not errors
        assert not debugger.monitor.preparing.anywhere
        found = {finding.past_end: finding for finding in debugger.check()}
    assert set(found) == {4, 8}
    for index, nbytes in enumerate((4, 8)):
        said = found[nbytes]
        assert (said.phase, said.graph, said.replay) == ("prepare", graphs[index].model.name, index + 1)
        assert said.culprit.name == "fill"


def test_what_a_thread_takes_off_is_what_it_has_put_there() -> None:
    with sg.debug() as debugger:
        graph, _kept = reader_of(guarded(debugger, 16))
        preparing, opened, over = debugger.monitor.preparing, threading.Event(), threading.Event()

        def other() -> None:
            with debugger.prepare():
                opened.set()
                assert over.wait(PATIENCE)

        thread = threading.Thread(target=other)
        thread.start()
        assert opened.wait(PATIENCE)
        assert not preparing, "of this thread"
        outer = preparing.begin(graph.model)
        inner = preparing.begin(None)
        outer.end()
        assert preparing.graph is None
        inner.end()
        inner.end()
        assert len(preparing.anywhere) == 1, "the other thread's"
        over.set()
        thread.join(PATIENCE)
        assert not preparing.anywhere


@pytest.mark.parametrize("late", [False, True])
def test_a_capture_in_one_thread_makes_no_other_blind(monkeypatch: pytest.MonkeyPatch, late: bool) -> None:
    with played(monkeypatch) if late else sg.debug() as debugger:
        table, other = guarded(debugger, 16), guarded(debugger, 16)
        graph, _kept = reader_of(table)
        captured, begun, over = sg.HostGraph(), threading.Event(), threading.Event()
        recorded: list[int] = []

        def capture() -> None:
            with sg.host_graph(captured):
                overflow(other, 0)
                begun.set()
                assert over.wait(PATIENCE)
            recorded.append(len(captured.model.nodes))

        thread = threading.Thread(target=capture)
        thread.start()
        assert begun.wait(PATIENCE)
        with debugger.prepare(graph):
            overflow(table)
        over.set()
        thread.join(PATIENCE)
        graph.replay()
        found = only(debugger.check())
        assert recorded == [1], "and what the capturing thread launched is a node of its graph"
    assert (found.phase, found.graph, found.replay) == ("prepare", graph.model.name, 1)
    assert found.culprit.name == "fill"


def test_a_device_that_is_lost_while_a_tenant_retires_stops_checking_without_a_lock_out_of_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The allocator's lock is held then, and another thread takes it while it holds the debugger's."""
    with played(monkeypatch) as debugger:
        monitor, allocator = debugger.monitor, debugger.monitor.allocator
        table = guarded(debugger, 16)
        graph, _kept = reader_of(table)
        graph.replay()

        def lost(*_: object, **__: object) -> None:
            raise DeviceLostError("an illegal memory access was encountered")

        owned, wanted, ended = threading.Event(), threading.Event(), threading.Event()

        def other() -> None:
            with monitor._lock.section:
                owned.set()
                assert wanted.wait(PATIENCE)
                with allocator.lock.within:
                    ended.set()

        thread = threading.Thread(target=other, daemon=True)
        thread.start()
        assert owned.wait(PATIENCE)
        monkeypatch.setattr(monitor.context.engine, "check", lost)
        buffer = allocator.ledger.owner(table.data_ptr(), table.data_ptr() + 1)
        with allocator.lock.within:
            wanted.set()
            monitor.retiring(buffer)
            assert monitor.paused
            assert monitor.lost is None, "that takes the debugger's lock"
        assert ended.wait(PATIENCE)
        thread.join(PATIENCE)
        outbox.deliver()
        assert monitor.lost == "an illegal memory access was encountered"
