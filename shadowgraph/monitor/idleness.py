"""Idle limit for processes without graphs: after many operators without a capture, dispatch modes leave.

Observing an eager operator takes a Python dispatch mode, at microseconds per operator. With graphs that pays: it shows
the writers before a replay, and gives guards to the buffers from which a graph is made. While idle, guards stay and are
checked, but writes are not observed: a finding about them names no operator, and rules inferred from writers start anew
when observation resumes, which the first capture triggers.

Work counts, loading does not. A server that loads weights runs more operators than that before it captures: a model of
58 layers with 256 experts has 44,544 expert weights, each of which is allocated, sliced and copied, in five to ten
operators. The most important buffers are made after that. So allocations, views and copies count a tenth, and in a
process that has imported a serving engine, which may quantise each weight too, all operators count a hundredth.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterable

from shadowgraph.graphs.dispatch.eager import Idle
from shadowgraph.graphs.dispatch.leaving import leave_soon
from shadowgraph.model.buffers import Role
from shadowgraph.model.graphs import Graph

OPERATORS = 100_000  # a few seconds of work: an ordinary program with graphs has captured one by then
LOADED = 10  # allocations, views and copies count as one of the others
PATIENCE = 100  # factor on the limit when a serving engine is imported
ENGINES = ("sglang", "vllm", "lmdeploy", "tensorrt_llm", "aphrodite")  # engines that serve from graphs
BUSY = 1000  # operators that a thread runs unobserved before its mode leaves; below, the mode stays and resumes at once


class _Local(threading.local):
    unseen = 0


class Idleness(Idle):
    """Counts operators until the first capture. Not thread-safe: a miscount does no harm.

    Parameters
    ----------
    wanted
        Whether operators may ever pass unobserved.
    idle
        Whether they pass unobserved now because no graph was captured.
    begins
        Called when they begin to pass unobserved.

    Attributes
    ----------
    counting
        Whether `operator` must be called for operators.
    """

    def __init__(self, wanted: bool, idle: Callable[[], bool], begins: Callable[[], None]) -> None:
        self.counting = wanted
        self._idle, self._begins = idle, begins
        self._local = _Local()
        self._limit = OPERATORS
        self._left = OPERATORS * LOADED
        self._ran = self._times = 0
        self._since: float | None = None
        self._seconds = 0.0

    def operator(self, works: bool) -> None:
        """An operator is about to run; `works` is false for operators typical of loading."""
        self._ran += 1
        self._left -= LOADED if works else 1
        if self._left > 0:
            return
        if self._limit == OPERATORS and any(name in sys.modules for name in ENGINES):
            self._limit = OPERATORS * PATIENCE
            self._left = (self._limit - OPERATORS) * LOADED
        else:
            self.counting = False
            self._begins()

    def begin(self) -> None:
        """Operators pass unobserved from here on."""
        self._since = time.monotonic()
        self._times += 1

    def passed(self) -> None:
        """An operator of this thread passed unobserved."""
        if self._since is not None and self._idle():
            self._local.unseen += 1
            if self._local.unseen % BUSY == 0:
                leave_soon(self._idle)

    def again(self) -> None:
        """All operators are observed again."""
        if self._ended():
            self._left, self.counting = self._limit * LOADED, True

    def captured(self) -> None:
        """A capture begins: from here on `Observation` decides, and idleness never again."""
        self._ended()
        self.counting = False

    def _ended(self) -> bool:
        if self._since is None:
            return False
        self._seconds += time.monotonic() - self._since
        self._since = None
        return True

    def sentence(self, graphs: Iterable[Graph], resting: bool) -> str | None:
        """A report line on what passed unobserved; None when nothing did.

        Parameters
        ----------
        graphs
            The graphs captured so far.
        resting
            Whether a thread has not been observed since.
        """
        if not self._times:
            return None
        what = f"after {self._ran:,} operators without a capture eager operators "
        what += "pass unseen" if self._idle() else f"passed unseen for {self._seconds:.0f} s"
        if not self._idle() and resting:
            what += ", those of threads that have not been seen since until now"
        inputs = (b for graph in graphs for b in graph.inputs.values())
        lost = {b.serial: b.nbytes for b in inputs if b.role is Role.FOREIGN and not b.guarded}
        guards = "what they allocate has no guards"
        if lost:
            guards += f" (without are {len(lost)} inputs of graphs, of {sum(lost.values()):,} bytes in all)"
        return f"{what}: what they write is known by broken guards only, and {guards} (--watch-eager always)"
