"""Elements that rules were seen to break at one moment, so that no rule tells what a surer one has told.

Used by `Invariants`: declared rules come first, then those that an adapter keeps, then those that follow from names. Of
one look at several rules, in its thread.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Addresses = npt.NDArray[np.int64]


class ToldElements:
    """Bytes of elements of which a finding tells."""

    def __init__(self) -> None:
        self._spans: list[tuple[Addresses, Addresses]] = []  # first bytes and stops, ascending, of each violation

    def add(self, starts: Addresses, itemsize: int) -> None:
        """Add the elements of one violation, by ascending addresses."""
        self._spans.append((starts, starts + itemsize))

    def have(self, starts: Addresses, itemsize: int) -> npt.NDArray[np.bool_]:
        """Which of some elements have a byte that was told."""
        found = np.zeros(starts.shape, dtype=np.bool_)
        for first, stop in self._spans:
            ended, begun = np.searchsorted(stop, starts, "right"), np.searchsorted(first, starts + itemsize, "left")
            found |= ended < begun
        return found
