"""Chooses how each capture is noted: recorded in C++, or by a dispatch mode.

With the compiled observer no capture needs a dispatch mode, and of the captures of a runner (`runner_lines`) only the
first needs a `CaptureTracer`, which reports every C function that returns. Called in capturing threads, when a capture
begins and when it has ended. A runner belongs to one thread; the table of runners needs no lock.
"""

from __future__ import annotations

import ctypes
import threading
from typing import Any

import torch

from shadowgraph.common.internal_errors import error_barrier
from shadowgraph.graphs.cuda.capture import Capture, CaptureMode
from shadowgraph.graphs.cuda.driver import driver, raw_graph
from shadowgraph.graphs.cuda.node_attribution import Marks, owners_of
from shadowgraph.graphs.cuda.recorded_capture import RecordedCapture
from shadowgraph.graphs.cuda.runner_lines import GraphLines, Lines, names_of
from shadowgraph.graphs.observer.library import Library
from shadowgraph.graphs.observer.observer import OperatorObserver
from shadowgraph.graphs.observer.recorder import CaptureRecorder, Question
from shadowgraph.model.buffers import Ledger
from shadowgraph.model.graphs import Graph
from shadowgraph.model.stacks import Stack, current_stack

_RUNNERS = 256


class CaptureLines:
    """What notes captures, and the runners that captured.

    Parameters
    ----------
    learnt
        Whether captures go without a dispatch mode where the observer is compiled.
    """

    def __init__(self, learnt: bool, observer: OperatorObserver) -> None:
        self._learnt, self._observer = learnt, observer
        self._runners: dict[tuple[int, Stack], Lines] = {}

    def begin(self, model: Graph, ledger: Ledger, isolate: bool, marks: Marks | None) -> Capture:
        """What notes a capture that has just begun in this thread."""
        if self._learnt:
            with error_barrier("recording of a capture"):
                library = self._observer.library
                if library is not None and library.captures is not None and marks is not None:
                    lines = self._lines()
                    return RecordedCapture(_recorder(library, marks, isolate, lines), model, ledger, lines)
            self._observer.captures_by_mode += 1
        return CaptureMode(model, ledger, isolate, marks)

    def ended(self, graph: Any, model: Graph, capture: Capture) -> GraphLines | None:
        """Learn from a capture that is complete. Returns what its runner has learnt where nodes of it have no owner.

        Parameters
        ----------
        graph
            A ``torch.cuda.CUDAGraph`` that keeps its ``cudaGraph_t``.
        """
        if not isinstance(capture, RecordedCapture):
            return None
        lines, taken = capture.lines, None
        with error_barrier("lines of a graph"):
            if capture.traced:
                lines.wanted = False
                if capture.strays or capture.marks.called:
                    _teach(lines, graph, model, capture)
            elif capture.strays:
                taken = GraphLines(lines, capture.origin, capture.taught)
                model.unlearnt = not _covers(taken, graph, model)
            if capture.taught is not None and not model.unlearnt:
                lines.teach(capture.taught)
        return taken

    def _lines(self) -> Lines:
        """Of the runner that is capturing."""
        if len(self._runners) >= _RUNNERS:
            self._runners.clear()
        return self._runners.setdefault((threading.get_ident(), current_stack()), Lines())


def _recorder(library: Library, marks: Marks, isolate: bool, lines: Lines) -> CaptureRecorder:
    """The recorder of the capture that the marks are of."""
    taught = () if lines.wanted else lines.taught  # one that is to teach has each stack
    question = Question(ctypes.cast(marks.ask, ctypes.c_void_p).value or 0, marks.with_edges)
    device = torch.device("cuda", marks.device)
    return CaptureRecorder(library, marks.graph, device, question, isolate, taught)


def _teach(lines: Lines, graph: Any, model: Graph, capture: RecordedCapture) -> None:
    calls, raw = driver(), raw_graph(graph)
    handles = calls.nodes(raw)
    owners = owners_of(handles, calls.edges(raw), capture.origin.log)
    lines.learn(model.name, names_of(calls, handles), owners)


def _covers(lines: GraphLines, graph: Any, model: Graph) -> bool:
    """Whether a graph that its runner has taught has these kernels; as many nodes are taken for the same ones, so that
    a capture seldom waits for their names. If not, its lines are refused."""
    calls, raw = driver(), raw_graph(graph)
    handles = calls.nodes(raw)
    if lines.runner.knows(len(handles)):
        return True
    names = names_of(calls, handles)
    covered = lines.runner.covers(names)
    if not covered:
        lines.refuse(model, names, owners_of(handles, calls.edges(raw), lines.recording.log))
    return covered
