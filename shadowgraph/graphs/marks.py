"""Which nodes a capture had by when: how a node gets the launch, or the Python line, that made it.

While a stream captures, the driver tells for a microsecond which nodes its next one would wait for: the newest. Asked
after every launch that somebody sees, the newest nodes divide the graph's nodes, in order of creation, among launches.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from shadowgraph.graphs.driver import Driver, DriverError

Owner = Any  # whatever tells the caller who made a node
Newest = tuple[int, ...]


class Marks:
    """Marks of one capture. Used by the capturing thread only.

    Attributes
    ----------
    log
        Newest nodes after each mark, and who had run by then.
    busy
        Above 0 while a launch runs that marks its end itself.
    """

    def __init__(self, driver: Driver, device: int) -> None:
        self._device = device
        self._ask = driver.function("cuStreamGetCaptureInfo_v2")
        self._status = ctypes.c_int()
        self._nodes = ctypes.POINTER(ctypes.c_void_p)()
        self._count = ctypes.c_size_t()
        self._places = (
            ctypes.byref(self._status), None, None, ctypes.byref(self._nodes), ctypes.byref(self._count),
        )  # fmt: skip
        self.log: list[tuple[Newest, Owner]] = []
        self.busy = 0
        self._last: Newest = ()
        self.newest()
        if self._status.value != 1:
            raise DriverError("the current stream does not capture")

    def newest(self) -> Newest:
        """Handles of the nodes that the current stream's next one would wait for."""
        stream = torch._C._cuda_getCurrentRawStream(self._device)
        if self._ask(ctypes.c_void_p(stream), *self._places) or self._status.value != 1:
            return self._last
        return tuple(self._nodes[: self._count.value])

    def advanced(self) -> Newest | None:
        """The newest nodes if they are others than at the last mark."""
        newest = self.newest()
        return newest if newest != self._last else None

    def begin(self) -> None:
        """A launch begins that will mark its end: what is new since the last mark is not its own."""
        newest = self.newest()
        if newest != self._last:
            self.mark(None, newest)
        self.busy += 1

    def end(self) -> None:
        """Undo one `begin`."""
        self.busy -= 1

    def mark(self, owner: Owner, newest: Newest | None = None) -> None:
        """What is new since the last mark was made by `owner`."""
        newest = self.newest() if newest is None else newest
        if newest != self._last:
            self._last = newest
            self.log.append((newest, owner))


def owners_of(handles: Sequence[int], log: Sequence[tuple[Newest, Owner]]) -> list[Owner | None]:
    """Who made each node; None where the marks do not say.

    Parameters
    ----------
    handles
        A graph's nodes, in order of creation.
    """
    places: Mapping[int, int] = {handle: place for place, handle in enumerate(handles)}
    owners: list[Owner | None] = [None] * len(handles)
    done = -1
    for newest, owner in log:
        last = max((places.get(handle, -1) for handle in newest), default=-1)
        for place in range(done + 1, last + 1):
            owners[place] = owner
        done = max(done, last)
    return owners
