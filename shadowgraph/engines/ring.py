"""The ring of evidence records in pinned memory: the record layout, the memory that all checks share, and a reader that
never blocks.

The caller holds the engine's lock; the device writes concurrently.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from shadowgraph.engines.base import RANGES, WINDOW
from shadowgraph.engines.device import Device
from shadowgraph.model.canary import PERIOD, canary

SLOTS = 1024  # checks in flight and ring records, as in kernels.cu
KEPT, KEPT_NBYTES = 512, 72  # records of broken guards, as in kernels.cu

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


class CheckMemory:
    """Memory that every check uses: the ring, the canary table, counters, completion words, records of broken guards.

    Attributes
    ----------
    records
        The ring's slots, an array of `RECORD`.
    done
        One word for each slot: the serial of the check that is done.
    ring, table, counters, done_words, kept
        Their device addresses.
    """

    def __init__(self, device: Device) -> None:
        self._canaries = device.upload(np.frombuffer(canary(0, PERIOD) * 2, dtype=np.uint8))
        self._pinned = device.pinned(SLOTS * RECORD.itemsize + SLOTS * 4)
        whole = np.frombuffer(self._pinned, dtype=np.uint8, count=SLOTS * RECORD.itemsize + SLOTS * 4)
        self.records: npt.NDArray[np.void] = whole[: SLOTS * RECORD.itemsize].view(RECORD)
        self.done = whole[SLOTS * RECORD.itemsize :].data.cast("I")
        header = np.zeros(1, dtype=[("head", "<u8"), ("capacity", "<u8"), ("records", "<u8")])
        header["capacity"], header["records"] = SLOTS, self._pinned.ptr
        self._ring = device.upload(header.view(np.uint8))
        self._counters, self._kept = device.zeros(8 * SLOTS), device.zeros(KEPT * KEPT_NBYTES)
        self.ring, self.table, self.counters, self.kept = (
            int(made.data.ptr) for made in (self._ring, self._canaries, self._counters, self._kept)
        )
        self.done_words = int(self._pinned.ptr) + SLOTS * RECORD.itemsize

    @property
    def addresses(self) -> tuple[int, ...]:
        """The addresses, in the order of the parameters of ``check_step``."""
        return self.ring, self.table, self.counters, self.done_words, self.kept


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
