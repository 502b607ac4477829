"""Which graph's coming replay the host code of each thread prepares.

Marked by `Debugger.prepare` and by adapters, read where a launch is noted. Each thread has marks of its own: what one
launches says nothing of what another one prepares.
"""

from __future__ import annotations

import threading

from shadowgraph.model.graphs import Graph


class Mark:
    """One block of host code that prepares a replay; `graph` is None where it is not known of which graph."""

    __slots__ = ("graph", "open")

    def __init__(self, graph: Graph | None, open: list[Mark]) -> None:
        self.graph, self.open = graph, open


class _Local(threading.local):
    def __init__(self) -> None:
        self.open: list[Mark] = []


class Preparing:
    """The blocks that are open, a row of them for each thread, innermost last. True where the calling thread has any.

    No lock: a thread changes its own row only, and each change is one step.

    Attributes
    ----------
    anywhere
        The open blocks of all threads, by their ids.
    """

    def __init__(self) -> None:
        self._local = _Local()
        self.anywhere: dict[int, Mark] = {}

    def begin(self, graph: Graph | None) -> Mark:
        """What this thread launches from here on prepares a replay of a graph, until `end`."""
        mark = Mark(graph, self._local.open)
        mark.open.append(mark)
        self.anywhere[id(mark)] = mark
        return mark

    def end(self, mark: Mark) -> None:
        """A block is over: that one, whatever was opened since. Nothing happens the second time."""
        if self.anywhere.pop(id(mark), None) is not None:
            mark.open.remove(mark)

    def __bool__(self) -> bool:
        return bool(self._local.open)

    @property
    def graph(self) -> Graph | None:
        """The graph of this thread's innermost block."""
        open = self._local.open
        return open[-1].graph if open else None
