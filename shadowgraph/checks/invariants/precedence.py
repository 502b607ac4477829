"""Elements that rules were seen to break at one moment, so that no rule tells what a surer one has told.

Used by `Invariants`: declared rules come first, then those that an adapter keeps, then those that follow from names. Of
one look at several rules, in its thread.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from shadowgraph.model.ranges import ByteRange

Addresses = npt.NDArray[np.int64]


class ToldElements:
    """Bytes of elements of which a finding tells."""

    def __init__(self) -> None:
        self._spans: list[tuple[ByteRange, Addresses, Addresses]] = []  # hull, first bytes, stops of each violation

    def add(self, starts: Addresses, itemsize: int) -> None:
        """Add the elements of one violation, by ascending addresses."""
        if starts.size:
            self._spans.append((_hull(starts, itemsize), starts, starts + itemsize))

    def have(self, starts: Addresses, itemsize: int) -> npt.NDArray[np.bool_]:
        """Which of some elements, by ascending addresses, have a byte that was told."""
        found = np.zeros(starts.shape, dtype=np.bool_)
        if not starts.size:
            return found
        where = _hull(starts, itemsize)
        for hull, first, stop in self._spans:
            if hull.overlaps(where):
                ended, begun = np.searchsorted(stop, starts, "right"), np.searchsorted(first, starts + itemsize, "left")
                found |= ended < begun
        return found


def _hull(starts: Addresses, itemsize: int) -> ByteRange:
    return ByteRange(int(starts[0]), int(starts[-1]) + itemsize)
