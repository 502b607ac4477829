"""Load log of one launch in the Triton interpreter: the bytes that its programs read. The launching thread fills it; no
lock."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from shadowgraph.model.ranges import ByteRange, RangeSet
from shadowgraph.model.reruns import Load

Addresses = npt.NDArray[np.uint64]
_MOST = 64  # loads that are kept one by one


class LoadLog:
    """The loads of a launch.

    Parameters
    ----------
    within
        Only loads that read bytes of this range count, and these are kept one by one; None for the bytes of all.

    Attributes
    ----------
    found
        The first loads that read bytes of `within`, in order of execution.
    """

    def __init__(self, within: ByteRange | None = None) -> None:
        self.within = within
        self.found: list[Load] = []
        self._pairs: set[tuple[int, int]] = set()

    def add(self, program: tuple[int, int, int], addresses: Addresses, itemsize: int, line: Callable[[], int]) -> None:
        """Note a load's active lanes.

        Parameters
        ----------
        line
            Returns the line in the kernel; called for loads that are kept one by one.
        """
        if not addresses.size:
            return
        if self.within is None:
            distinct = np.unique(addresses)
            breaks = np.flatnonzero(np.diff(distinct) > np.uint64(itemsize)) + 1
            for run in np.split(distinct, breaks):
                self._pairs.add((int(run[0]), int(run[-1]) + itemsize))
            return
        start, stop = self.within.start, self.within.stop
        inside = addresses[(addresses + np.uint64(itemsize) > np.uint64(start)) & (addresses < np.uint64(stop))]
        if inside.size and len(self.found) < _MOST:
            first, last = max(start, int(inside.min())), min(stop, int(inside.max()) + itemsize) - 1
            self.found.append(Load(program, first, last, line()))

    @property
    def ranges(self) -> RangeSet:
        """Every byte read."""
        return RangeSet.spanning(self._pairs)
