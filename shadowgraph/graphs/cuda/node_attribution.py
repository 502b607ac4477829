"""Attribution of graph nodes to the launch, or the Python line, that made them.

While a stream captures, the driver tells in a microsecond which nodes the stream's next node would depend on: the
newest. Queried before and after every observed launch, they partition the graph: the nodes that lead up to the newest
ones, and did not before, were made in between. Nodes that another stream got meanwhile do not lead there, and have no
owner until they do. `Marks` is used in the capturing thread, without a lock.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, Protocol

import torch

from shadowgraph.graphs.cuda.driver import Driver, DriverError

Owner = Any  # the caller's token for the maker of a node; None for no owner
Newest = tuple[int, ...]


class NodeMarks(Protocol):
    """What a tracer of launches needs of the marks of a capture."""

    @property
    def open(self) -> object:
        """True where a launch is running that will mark its end."""

    def advanced(self) -> Newest | None:
        """The newest nodes, if they differ from those at the last mark."""

    def mark(self, owner: Owner, newest: Newest) -> None:
        """Attribute the nodes that are new since the last mark to `owner`."""


class Marks:
    """Marks of one capture. Used by one thread at a time.

    Attributes
    ----------
    device
        Index of the device of the stream that captures.
    graph
        Handle of the graph that is being captured.
    ask, with_edges
        The driver's function that tells the newest nodes, and whether it takes a place for the data of edges.
    log
        Newest nodes at each mark, and their owner.
    open
        Launches that are running and will mark their end, outermost first.
    """

    def __init__(self, driver: Driver, device: int) -> None:
        self.device = device
        self._status, self._graph = ctypes.c_int(), ctypes.c_void_p()
        self._nodes, self._count = ctypes.POINTER(ctypes.c_void_p)(), ctypes.c_size_t()
        nodes, count = ctypes.byref(self._nodes), ctypes.byref(self._count)
        places = ctypes.byref(self._status), None, ctypes.byref(self._graph), nodes
        if driver.has("cuStreamGetCaptureInfo_v3"):  # also answers where edges carry data
            self._edges = ctypes.c_void_p()
            self.ask = driver.function("cuStreamGetCaptureInfo_v3")
            self._places: tuple[Any, ...] = (*places, ctypes.byref(self._edges), count)
        else:
            self.ask = driver.function("cuStreamGetCaptureInfo_v2")
            self._places = (*places, count)
        self.with_edges = len(self._places) == 6
        self.log: list[tuple[Newest, Owner]] = []
        self.open: list[Owner] = []
        self._last: Newest = ()
        self._blind = False
        self.newest()
        if self._status.value != 1:
            raise DriverError("the current stream does not capture")
        self.graph = int(self._graph.value or 0)

    def newest(self) -> Newest:
        """Handles of the nodes that the current stream's next node would depend on; unchanged where the driver cannot
        tell."""
        stream = torch._C._cuda_getCurrentRawStream(self.device)
        if self.ask(ctypes.c_void_p(stream), *self._places):
            self._blind = True
            return self._last
        return tuple(self._nodes[: self._count.value]) if self._status.value == 1 else self._last

    def begin(self, owner: Owner) -> None:
        """A launch begins: nodes that are new by now belong to the launch around it, if any."""
        self.open.append(owner)  # first: the tracer of C functions must see that a launch runs
        newest = self.newest()
        if newest != self._last:
            self.mark(self.open[-2] if len(self.open) > 1 else None, newest)

    def end(self) -> None:
        """The launch that began last has ended."""
        newest = self.newest()
        if newest != self._last:
            self.mark(self.open[-1], newest)
        self.open.pop()  # last, as in `begin`

    def mark(self, owner: Owner, newest: Newest) -> None:
        """Attribute the nodes that are new since the last mark to `owner`."""
        self._last = newest
        self.log.append((newest, None if self._blind else owner))
        self._blind = False

    def advanced(self) -> Newest | None:
        """The newest nodes, if they differ from those at the last mark."""
        newest = self.newest()
        return newest if newest != self._last else None


def owners_of(
    handles: Sequence[int], edges: Sequence[tuple[int, int]], log: Sequence[tuple[Newest, Owner]]
) -> list[Owner]:
    """The owner of each node; None where the marks do not tell.

    Parameters
    ----------
    handles
        A graph's nodes.
    edges
        Pairs of handles: the second waits for the first.
    """
    places = {handle: place for place, handle in enumerate(handles)}
    before: list[list[int]] = [[] for _ in handles]
    for first, second in edges:
        before[places[second]].append(places[first])
    owners: list[Owner] = [None] * len(handles)
    settled = [False] * len(handles)
    for newest, owner in log:
        reached = [places[handle] for handle in newest if handle in places]
        while reached:
            place = reached.pop()
            if not settled[place]:
                settled[place], owners[place] = True, owner
                reached += before[place]
    return owners
