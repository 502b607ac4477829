"""The ring of evidence records, in the check log: the memory that all checks share, and a reader that never blocks.

The caller holds the engine's lock; the device writes concurrently.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt

from shadowgraph.common.mapped_files import MappedMemory
from shadowgraph.engines.device import Device
from shadowgraph.model.canary import PERIOD, canary
from shadowgraph.model.check_log import RECORD, RECORDS, CheckLog

SLOTS = 1024  # checks in flight, as in kernels.cu
_MAPPED_PORTABLE = 3  # cudaHostRegisterPortable | cudaHostRegisterMapped
KEPT, KEPT_NBYTES = 512, 72  # records of broken guards, as in kernels.cu


class CheckMemory:
    """Memory that every check uses: the ring, the canary table, counters, completion words, records of broken guards.

    Attributes
    ----------
    log
        Where checks write what they find, and check nodes how far they are; kept for the life of the process.
    is_mapped
        Whether `log` is the given one; else it is pinned memory, which ends with the process.
    records
        The ring's slots, an array of `RECORD`.
    done
        One word for each slot: the serial of the check that is done.
    ring, table, counters, done_words, kept
        Their device addresses.
    """

    def __init__(self, device: Device, log: CheckLog) -> None:
        self._canaries = device.upload(np.frombuffer(canary(0, PERIOD) * 2, dtype=np.uint8))
        self._pinned = device.pinned(SLOTS * 4)
        self.done = np.frombuffer(self._pinned, dtype=np.uint8, count=SLOTS * 4).data.cast("I")
        mapped = _mapped(device, log)
        self.is_mapped = mapped is not None
        if mapped is None:
            self._room = device.pinned(log.nbytes)
            mapped = int(self._room.ptr)
            log = CheckLog(MappedMemory(mapped, log.nbytes, None))
        self._mapped = mapped
        self.log = log
        self.records: npt.NDArray[np.void] = log.records
        header = np.zeros(1, dtype=[("head", "<u8"), ("capacity", "<u8"), ("records", "<u8")])
        header["capacity"], header["records"] = RECORDS, self._mapped + log.records_offset
        self._ring = device.upload(header.view(np.uint8))
        self._counters, self._kept = device.zeros(8 * SLOTS), device.zeros(KEPT * KEPT_NBYTES)
        self.ring, self.table, self.counters, self.kept = (
            int(made.data.ptr) for made in (self._ring, self._canaries, self._counters, self._kept)
        )
        self.done_words = int(self._pinned.ptr)

    def row(self, place: int) -> int:
        """Device address of a row of the log."""
        return self._mapped + self.log.row_address(place) - self.log.address

    @property
    def addresses(self) -> tuple[int, ...]:
        """The addresses, in the order of the parameters of ``check_step``."""
        return self.ring, self.table, self.counters, self.done_words, self.kept


def _mapped(device: Device, log: CheckLog) -> int | None:
    """Let the device write to a log, for the life of the process; returns the log's device address, or None where the
    driver refuses it, as it does for files of some file systems."""
    with device.context.current():
        try:
            device.runtime.hostRegister(log.address, log.nbytes, _MAPPED_PORTABLE)
        except device.runtime.CUDARuntimeError:
            return None
        pointer = ctypes.c_uint64()
        device.context.call("cuMemHostGetDevicePointer_v2", ctypes.byref(pointer), ctypes.c_void_p(log.address), 0)
        return pointer.value


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

    def arrival(self) -> Callable[[], bool]:
        """A function that tells whether a record can be taken. On the replay path: reading a word costs less than an
        array element, and a closure less than a property."""
        words, capacity, stride = self._words, len(self._records), self._stride

        def arrived() -> bool:
            following = self._next
            return words[following % capacity * stride] > following

        return arrived

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
