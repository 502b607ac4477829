"""A capture without a GPU: operators on the host, and a driver that has as many nodes as a test counts."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch

from shadowgraph.graphs.observer.library import Library
from shadowgraph.graphs.observer.recorder import CaptureRecorder, Question
from shadowgraph.graphs.observer.recording import Recording, Taught

GRAPH = 7
_POINTER = ctypes.POINTER(ctypes.c_void_p)
_Ask = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(ctypes.c_int), ctypes.POINTER(ctypes.c_uint64), _POINTER, _POINTER,
    ctypes.POINTER(ctypes.c_size_t),
)  # fmt: skip


class CapturingDriver:
    """A stream that captures; each node waits for the one before it.

    Attributes
    ----------
    nodes
        Nodes so far; their handles are numbers from 1.
    graph
        Handle of the graph that the stream captures into; 0 while it does not capture.
    code
        What the driver returns.
    """

    def __init__(self) -> None:
        self.nodes, self.graph, self.code = 0, GRAPH, 0
        self._newest = (ctypes.c_void_p * 1)()
        self._ask = _Ask(self._answer)
        self.question = Question(ctypes.cast(self._ask, ctypes.c_void_p).value or 0, False)

    def _answer(self, stream: int, status: object, number: object, graph: object, nodes: object, count: object) -> int:
        status[0], graph[0] = int(self.graph != 0), self.graph  # type: ignore[index]
        self._newest[0] = self.nodes
        nodes[0], count[0] = ctypes.addressof(self._newest), int(self.nodes > 0)  # type: ignore[index]
        return self.code

    @contextmanager
    def recording(
        self, library: Library, keep: bool = True, taught: Sequence[Taught] = ()
    ) -> Iterator[CaptureRecorder]:
        """Record the block; the caller reads the recording and releases it."""
        made = CaptureRecorder(library, GRAPH, torch.device("cpu"), self.question, keep, taught)
        try:
            yield made
        finally:
            made.stop()


def recorded(library: Library, run: Callable[[], object], taught: Sequence[Taught] = ()) -> Recording:
    """What is recorded of a function."""
    with CapturingDriver().recording(library, taught=taught) as recorder:
        run()
    found = recorder.recording()
    recorder.release()
    return found
