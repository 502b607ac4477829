"""The ring of evidence records in pinned memory: the record layout, and a reader that never blocks.

The caller holds the engine's lock; the device writes concurrently.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from shadowgraph.engines.base import RANGES, WINDOW

# As `struct Record` in kernels.cu.
RECORD = np.dtype(
    [
        ("sequence", "<u8"),
        ("check", "<u4"),
        ("is_part", "<u4"),
        ("index", "<u4"),
        ("truncated", "<u4"),
        ("first", "<u8"),
        ("last", "<u8"),
        ("count", "<u8"),
        ("window", "<u8"),
        ("window_len", "<u4"),
        ("ranges_listed", "<u4"),
        ("ranges_total", "<u4"),
        ("unused", "<u4"),
        ("ranges", "<u8", (2 * RANGES,)),
        ("expected", "u1", (WINDOW,)),
        ("found", "u1", (WINDOW,)),
    ]
)


class RingReader:
    """Reads records in the order of their sequence numbers, which the device assigns.

    Parameters
    ----------
    records
        The ring's slots, an array of `RECORD` over pinned memory that the engine owns.

    Attributes
    ----------
    dropped
        Records that were overwritten before they were read.
    """

    def __init__(self, records: npt.NDArray[np.void]) -> None:
        self._records = records
        self._sequence = records["sequence"]
        self._words = records.view("u1").data.cast("Q") if len(records) else memoryview(b"").cast("Q")
        self._stride = RECORD.itemsize // 8
        self._next = 0
        self.dropped = 0

    @property
    def arrived(self) -> bool:
        """Whether a record can be taken. On the replay path, where reading a word costs less than an array element."""
        return self._words[self._next % len(self._records) * self._stride] > self._next

    def take(self) -> Iterator[np.void]:
        """Yield copies of the records that arrived since the last call."""
        capacity = len(self._records)
        while True:
            slot = self._next % capacity
            arrived = int(self._sequence[slot])
            if arrived <= self._next:
                return
            if arrived > self._next + 1:  # the ring wrapped around: older records are lost
                lost = arrived - 1 - self._next
                self.dropped += lost
                self._next += lost
            record = self._records[slot].copy()
            if int(self._sequence[slot]) == arrived:  # not overwritten during the copy
                yield record
            else:
                self.dropped += 1
            self._next = arrived
