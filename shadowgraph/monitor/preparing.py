"""Open prepare blocks of each thread, with the graph whose coming replay each one prepares.

Opened by `Debugger.prepare` and by adapters, read when a launch is recorded. Blocks are per thread: the launches of one
thread say nothing about what another thread prepares.
"""

from __future__ import annotations

import threading

from shadowgraph.model.graphs import Graph


class PrepareBlock:
    """One block of host code that prepares a replay; `graph` is None while the graph is unknown, and `since` then the
    time at which it was opened."""

    __slots__ = ("_anywhere", "_open", "graph", "since")

    def __init__(self, graph: Graph | None, open: list[PrepareBlock], anywhere: dict[int, PrepareBlock]) -> None:
        self.graph, self._open, self._anywhere = graph, open, anywhere
        self.since = 0
        open.append(self)
        anywhere[id(self)] = self

    def end(self) -> None:
        """Close this block, whichever blocks were opened since. The second call does nothing. Any thread."""
        if self._anywhere.pop(id(self), None) is not None:
            self._open.remove(self)


class _Local(threading.local):
    def __init__(self) -> None:
        self.open: list[PrepareBlock] = []


class Preparing:
    """The open blocks, a stack per thread, innermost last. True when the calling thread has an open block.

    No lock: a thread changes only its own stack, and each change is one step.

    Attributes
    ----------
    anywhere
        The open blocks of all threads, by their ids.
    """

    def __init__(self) -> None:
        self._local = _Local()
        self.anywhere: dict[int, PrepareBlock] = {}

    def begin(self, graph: Graph | None) -> PrepareBlock:
        """Open a block: until its `end`, launches of this thread prepare a replay of the graph."""
        return PrepareBlock(graph, self._local.open, self.anywhere)

    def __bool__(self) -> bool:
        return bool(self._local.open)

    @property
    def graph(self) -> Graph | None:
        """The graph of this thread's innermost block."""
        open = self._local.open
        return open[-1].graph if open else None
