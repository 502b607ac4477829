"""A process that runs many operators and captures no graph is not watched operator by operator for ever.

To see an eager operator takes a dispatch mode in Python, at microseconds each. It pays where there are graphs: it says
who wrote what before a replay, and it gives the buffers that a graph is made from their guards. So after many operators
without a capture the modes leave the stacks of the threads that are busy. Guards stay and are checked. What is written
meanwhile is not seen: a finding about it accuses no operator, and rules that follow from who wrote what begin anew when
all is seen again, which the first capture brings about.

What counts is work, not loading. A server that loads weights runs more operators than that before it captures: a model
of 58 layers with 256 experts has 44,544 expert weights, each of which is allocated, sliced and copied, in five to ten
operators. The buffers that matter most are made after that. So allocations, views and copies count a tenth, and in a
process that has imported a serving engine, which may quantise each weight too, all count a hundredth.
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

OPERATORS = 100_000  # a few seconds of work: by then an ordinary program with graphs has captured one
LOADED = 10  # allocations, views and copies count as one of the others
PATIENCE = 100  # times as many where an engine is imported
ENGINES = ("sglang", "vllm", "lmdeploy", "tensorrt_llm", "aphrodite")  # they serve from graphs
BUSY = (
    1000  # operators that a thread runs unseen before its mode leaves; one that runs fewer keeps it, and sees at once
)


class _Local(threading.local):
    unseen = 0


class Idleness(Idle):
    """Counts operators until a capture. Not thread-safe: a miscount does no harm.

    Parameters
    ----------
    wanted
        Whether operators are ever to pass unseen.
    idle
        Whether they do now, because nothing was captured.
    begins
        Called when they are to from here on.

    Attributes
    ----------
    counting
        Whether `operator` is to be told of operators.
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
        """An operator is about to run; `works` unless it is one of those that loading takes."""
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
        """Operators pass unseen from here on."""
        self._since = time.monotonic()
        self._times += 1

    def passed(self) -> None:
        """An operator of this thread passed unseen."""
        if self._since is not None and self._idle():
            self._local.unseen += 1
            if self._local.unseen % BUSY == 0:
                leave_soon(self._idle)

    def again(self) -> None:
        """All is seen again."""
        if self._ended():
            self._left, self.counting = self._limit * LOADED, True

    def captured(self) -> None:
        """A capture begins: from here on naps decide, and this never again."""
        self._ended()
        self.counting = False

    def _ended(self) -> bool:
        if self._since is None:
            return False
        self._seconds += time.monotonic() - self._since
        self._since = None
        return True

    def sentence(self, graphs: Iterable[Graph], resting: bool) -> str | None:
        """What passed unseen, for the report; None where nothing did.

        Parameters
        ----------
        graphs
            Those captured so far.
        resting
            Whether some thread has not been seen since.
        """
        if not self._times:
            return None
        what = f"after {self._ran:,} operators without a capture eager operators "
        what += "pass unseen" if self._idle() else f"passed unseen for {self._seconds:.0f} s"
        if not self._idle() and resting:
            what += ", those of threads that have not been seen since until now"
        lost = {b.serial: b.nbytes for graph in graphs for b in graph.inputs.values() if b.role is Role.FOREIGN}
        guards = "what they allocate has no guards"
        if lost:
            guards += f" (without are {len(lost)} inputs of graphs, of {sum(lost.values()):,} bytes in all)"
        return f"{what}: what they write is known by broken guards only, and {guards} (--watch-eager always)"
