"""Captures that do not end as they should leave no recording, no callback and no mode behind: host memory, torch's own
methods replaced."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest
import torch
from observer.recording_bench import CapturingDriver

from shadowgraph.common.internal_errors import internal_errors
from shadowgraph.graphs.cuda import capture as cuda_capture
from shadowgraph.graphs.cuda import graph as cuda_graphs
from shadowgraph.graphs.cuda.capture_watch import CaptureTracer
from shadowgraph.graphs.cuda.graph import CudaGraphs
from shadowgraph.graphs.cuda.recorded_capture import RecordedCapture
from shadowgraph.graphs.cuda.runner_lines import Lines
from shadowgraph.graphs.dispatch import eager
from shadowgraph.graphs.observer.library import Library
from shadowgraph.graphs.observer.recorder import CaptureRecorder
from shadowgraph.model.buffers import Ledger
from shadowgraph.tracking.captures import captures


class CapturedGraph:
    """In place of a `torch.cuda.CUDAGraph`."""


class Program:
    """Captures with torch's own methods replaced.

    Attributes
    ----------
    graphs
        The hooks.
    fails
        Whether torch's own `capture_end` raises.
    """

    def __init__(self, library: Library, graphs: CudaGraphs) -> None:
        self.library, self.graphs, self.fails = library, graphs, False
        self.driver = CapturingDriver()
        self.begin = graphs._wrap_begin(lambda *_: None)
        self.end = graphs._wrap_end(self._end)
        self.reset = graphs._wrap_reset(lambda _: None)

    def _end(self, graph: object) -> None:
        self.driver.graph = 0
        if self.fails:
            raise RuntimeError("the capture was invalidated")

    def mode(self, model: object, *_: object) -> RecordedCapture:
        """As `CaptureLines.begin` chooses it. Keeps every tensor."""
        self.driver.graph = 7
        recorder = CaptureRecorder(self.library, 7, torch.device("cpu"), self.driver.question, True)
        return RecordedCapture(recorder, model, Ledger(), Lines())  # type: ignore[arg-type]

    def left(self) -> tuple[int, int, object, bool]:
        """What is left of captures in this thread: recordings, captures, the current one, and whether the eager mode is
        suspended."""
        known = self.library.captures.shadowgraph_captures_known()
        return known, len(cuda_capture._threads) + len(cuda_capture._by_graph), cuda_capture.current(), _suspended()


NOTHING = 0, 0, None, False


def _suspended() -> bool:
    return eager._local.capturing


@pytest.fixture
def program(library: Library, monkeypatch: pytest.MonkeyPatch) -> Iterator[Program]:
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    made = CudaGraphs.__new__(CudaGraphs)
    made._allocator = SimpleNamespace(index=0, ledger=Ledger(), settle=lambda: None)  # type: ignore[assignment]
    made._native = SimpleNamespace(  # type: ignore[assignment]
        dropped=lambda model: None, may_guard=lambda *_: False, left_alone={"a device that is not watched": 0},
        close=lambda: None,
    )  # fmt: skip
    made._live, made._pools, made._expandable, made._checks = set(), None, False, None
    made._session = 1
    monkeypatch.setattr(cuda_graphs, "Marks", lambda *_: None)
    monkeypatch.setattr(cuda_graphs, "driver", lambda: None)
    monkeypatch.setattr(CaptureTracer, "begin", lambda self: None)
    one = Program(library, made)
    made._lines = SimpleNamespace(begin=one.mode, ended=lambda *_: None)  # type: ignore[assignment]
    faults = internal_errors.counts
    assert one.left() == NOTHING, "invalid: an earlier test left something"
    yield one
    gc.collect()
    assert (one.left(), captures.running) == (NOTHING, 0)
    assert internal_errors.counts.keys() - faults.keys() <= {"capture_end: ValueError: ours"}


def launched() -> Callable[[], bool]:
    """A tensor of the capture; the result tells whether it is kept alive."""
    weak = (torch.ones(8) + 1).untyped_storage()._weak_ref()
    return lambda: not torch.UntypedStorage._expired(weak)


def test_a_capture_that_ends_well(program: Program) -> None:
    graph = CapturedGraph()
    program.begin(graph)
    kept = launched()
    assert (program.left()[0], kept()) == (1, True)
    program.end(graph)
    assert (program.left(), kept()) == (NOTHING, False)


def test_a_capture_whose_end_raises(program: Program) -> None:
    """The exception may live long, with its frames."""
    graph, program.fails = CapturedGraph(), True
    program.begin(graph)
    kept = launched()
    with pytest.raises(RuntimeError) as raised:
        program.end(graph)
    assert raised.value.__traceback__ is not None
    assert (program.left(), kept()) == (NOTHING, False)


def test_a_capture_whose_end_we_fail_to_read(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(self: object) -> None:
        raise ValueError("ours")

    graph = CapturedGraph()
    monkeypatch.setattr(RecordedCapture, "finish", fails)
    program.begin(graph)
    kept = launched()
    program.end(graph)
    assert (program.left(), kept()) == (NOTHING, False)


def test_a_graph_that_is_reset_in_the_middle(program: Program) -> None:
    graph = CapturedGraph()
    program.begin(graph)
    kept = launched()
    program.reset(graph)
    assert (program.left(), kept()) == (NOTHING, False)
    program.begin(graph)
    program.end(graph)


def test_a_graph_that_dies_in_the_middle(program: Program) -> None:
    """An exception in the body, and no `torch.cuda.graph` that ends the capture."""
    graph = CapturedGraph()
    program.begin(graph)
    kept = launched()
    del graph
    assert (program.left(), kept()) == (NOTHING, False)


@pytest.mark.parametrize("way", ["reset", "death"])
def test_a_capture_that_another_thread_ends(program: Program, way: str) -> None:
    """The other thread has a capture of its own, which goes on."""
    held = [CapturedGraph()]
    program.begin(held[0])
    kept, mine, others = launched(), cuda_capture.current(), list[object]()

    def other() -> None:
        own = CapturedGraph()
        program.begin(own)
        before = cuda_capture.current()
        if way == "reset":
            program.reset(held[0])
        else:
            held.clear()
        others.extend((before, cuda_capture.current(), _suspended()))
        program.end(own)
        others.append(program.left())

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    assert others[0] is others[1] is not mine
    assert others[2:] == [True, NOTHING]
    assert not kept()
    if way == "reset":
        program.end(held[0])
        assert not _suspended()
    assert program.left() == NOTHING


def test_a_debugger_that_stops_in_the_middle(program: Program) -> None:
    """It does not see the capture's end."""
    graph = CapturedGraph()
    program.begin(graph)
    kept = launched()
    program.graphs.uninstall()
    assert (program.left(), kept()) == (NOTHING, False)
    cuda_graphs._close(graph)
