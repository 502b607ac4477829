"""Which nodes a capture had by when: how a node gets the launch, or the Python line, that made it.

While a stream captures, the driver tells for a microsecond which nodes its next one would wait for: the newest. Asked
before and after every launch that somebody sees, these divide the graph: what leads up to the newest nodes, and did not
before, was made in between. Nodes that another stream got meanwhile do not lead there, and are nobody's until they do.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import torch

from shadowgraph.graphs.cuda.driver import Driver, DriverError

Owner = Any  # whatever tells the caller who made a node; None for nobody
Newest = tuple[int, ...]


class Marks:
    """Marks of one capture. Used by one thread at a time.

    Attributes
    ----------
    graph
        Handle of the graph that is being captured.
    log
        Newest nodes at each mark, and who had run by then.
    open
        Launches that run now and will mark their end, outermost first.
    """

    def __init__(self, driver: Driver, device: int) -> None:
        self._device = device
        self._status, self._graph = ctypes.c_int(), ctypes.c_void_p()
        self._nodes, self._count = ctypes.POINTER(ctypes.c_void_p)(), ctypes.c_size_t()
        nodes, count = ctypes.byref(self._nodes), ctypes.byref(self._count)
        places = ctypes.byref(self._status), None, ctypes.byref(self._graph), nodes
        if driver.has("cuStreamGetCaptureInfo_v3"):  # which also answers where edges carry data
            self._edges = ctypes.c_void_p()
            self._ask = driver.function("cuStreamGetCaptureInfo_v3")
            self._places: tuple[Any, ...] = (*places, ctypes.byref(self._edges), count)
        else:
            self._ask = driver.function("cuStreamGetCaptureInfo_v2")
            self._places = (*places, count)
        self.log: list[tuple[Newest, Owner]] = []
        self.open: list[Owner] = []
        self._last: Newest = ()
        self._blind = False
        self.newest()
        if self._status.value != 1:
            raise DriverError("the current stream does not capture")
        self.graph = int(self._graph.value or 0)

    def newest(self) -> Newest:
        """Handles of the nodes that the current stream's next one would wait for; as before where nobody can tell."""
        stream = torch._C._cuda_getCurrentRawStream(self._device)
        if self._ask(ctypes.c_void_p(stream), *self._places):
            self._blind = True
            return self._last
        return tuple(self._nodes[: self._count.value]) if self._status.value == 1 else self._last

    def begin(self, owner: Owner) -> None:
        """A launch begins: what is new by now belongs to the one around it, if any."""
        self.open.append(owner)  # first: whoever is told of a C function meanwhile must see that a launch runs
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
        """What is new since the last mark was made by `owner`."""
        self._last = newest
        self.log.append((newest, None if self._blind else owner))
        self._blind = False

    def advanced(self) -> Newest | None:
        """The newest nodes if they are others than at the last mark."""
        newest = self.newest()
        return newest if newest != self._last else None


def owners_of(
    handles: Sequence[int], edges: Sequence[tuple[int, int]], log: Sequence[tuple[Newest, Owner]]
) -> list[Owner]:
    """Who made each node; None where the marks do not say.

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
