"""Copies of launch arguments in a ring of pinned host memory, made just before each launch: they survive a dead
context.

The crash recorder requests and reads them; any thread, under the ring's own lock.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Sequence

import numpy as np

from shadowgraph.engines.base import LARGEST_COPY, RANGES_COPIED
from shadowgraph.engines.device import Device
from shadowgraph.engines.launcher import Launcher
from shadowgraph.model.ranges import ByteRange

RING = 4 << 20
_THREADS = 256


class _Given(ctypes.Structure):
    """``struct Given`` of kernels.cu."""

    _fields_ = (
        ("source", ctypes.c_uint64 * RANGES_COPIED),
        ("target", ctypes.c_uint64 * RANGES_COPIED),
        ("nbytes", ctypes.c_uint32 * RANGES_COPIED),
        ("said", ctypes.c_uint64),
        ("sequence", ctypes.c_uint64),
        ("count", ctypes.c_uint32),
        ("unused", ctypes.c_uint32),
    )


class RingCopy:
    """Copies of ranges in the ring, valid until newer copies overwrite them."""

    __slots__ = ("_at", "_ring", "_sequence", "_sizes")

    def __init__(self, ring: MirrorRing, at: int, sequence: int, sizes: tuple[int, ...]) -> None:
        self._ring, self._at, self._sequence, self._sizes = ring, at, sequence, sizes

    def read(self) -> list[bytes] | None:
        """The bytes of each range, or None: not yet or never copied, or overwritten. Needs no device."""
        return self._ring.read(self._at, self._sequence, self._sizes)


class NoCopy:
    """The missing copies of a captured launch, whose arguments have no meaning yet."""

    def read(self) -> None:
        return None


class MirrorRing:
    """Queues copies on the program's current stream. Thread-safe.

    Each entry is a completion word and its copies, each aligned to 16 bytes.
    """

    def __init__(self, device: Device, function: int) -> None:
        self._device = device
        self._launcher = Launcher(device.context, function, (_Given,))
        self._lock = threading.Lock()
        self._pinned = device.pinned(RING)
        self._bytes = np.frombuffer(self._pinned, dtype=np.uint8, count=RING)
        self._words = self._bytes.data.cast("Q")
        given = self._given = self._launcher.values[0]
        self._source, self._target, self._nbytes = given.source, given.target, given.nbytes
        self._head = 0  # bytes ever allocated
        self._sequence = 0

    def copy(self, ranges: Sequence[ByteRange]) -> RingCopy:
        """Queue copies of the first `RANGES_COPIED` ranges, of each the first `LARGEST_COPY` bytes."""
        chosen = ranges[:RANGES_COPIED]
        sizes = tuple([min(where.stop - where.start, LARGEST_COPY) for where in chosen])
        with self._lock:
            at, self._sequence = self._take(16 + sum(map(_padded, sizes))), self._sequence + 1
            given, place = self._given, self._pinned.ptr + at % RING
            given.said, given.sequence, given.count = place, self._sequence, len(chosen)
            self._words[at % RING // 8] = 0  # contents of an older entry must not pass for this completion word
            source, target, nbytes = self._source, self._target, self._nbytes
            place += 16
            for index, (where, size) in enumerate(zip(chosen, sizes, strict=True)):
                source[index], target[index], nbytes[index] = where.start, place, size
                place += _padded(size)
            self._launcher.launch(1, _THREADS, self._device.raw_stream())
            return RingCopy(self, at, self._sequence, sizes)

    def read(self, at: int, sequence: int, sizes: tuple[int, ...]) -> list[bytes] | None:
        """See `RingCopy.read`."""
        with self._lock:
            if self._head - at > RING or self._words[at % RING // 8] != sequence:
                return None
            found, place = [], at % RING + 16
            for size in sizes:
                found.append(self._bytes[place : place + size].tobytes())
                place += _padded(size)
            return found

    def _take(self, nbytes: int) -> int:
        """Allocate an entry; no entry wraps around the ring's end."""
        if self._head % RING + nbytes > RING:
            self._head += RING - self._head % RING
        at, self._head = self._head, self._head + nbytes
        return at


def _padded(nbytes: int) -> int:
    return -(-nbytes // 16) * 16
