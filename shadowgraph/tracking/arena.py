"""Address space of the host backend: one anonymous mapping, allocated in spans and never unmapped.

Because it is never unmapped, dereferencing a stale pointer of a captured graph stays harmless, as it is inside the
segments of the CUDA caching allocator: the error shows as wrong bytes, not as a segmentation fault. Any thread; the
arena has its own fork-safe lock.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
import threading
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from shadowgraph.common.errors import BackendError
from shadowgraph.common.fork_safety import fork_safe
from shadowgraph.model.canary import canary
from shadowgraph.model.ranges import ByteRange
from shadowgraph.tracking.memory import raw_bytes

_RESERVE = 64 << 30
_SMALLEST_RESERVE = 1 << 30
_WORTH_RETURNING = 1 << 20
# Python names the flag from 3.13 on; without it Linux refuses to reserve more than it has memory for.
_NORESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000 if sys.platform == "linux" else 0)


class HostArena:
    """Spans of one mapping. Pages cost memory only once touched.

    Attributes
    ----------
    base, size
        First address and reserved bytes.
    bytes
        uint8 view of the whole mapping, indexed by ``address - base``.

    Raises
    ------
    BackendError
        When not even 1 GiB of address space can be reserved.
    """

    def __init__(self, reserve: int = _RESERVE) -> None:
        self._lock = fork_safe(threading.RLock())
        self._mapping, self.size = _reserve(reserve)
        self.base = ctypes.addressof(ctypes.c_char.from_buffer(self._mapping))
        self.bytes: npt.NDArray[np.uint8] = np.frombuffer(self._mapping, dtype=np.uint8)
        self._next = 0
        self._free: dict[int, list[int]] = {}

    def take(self, nbytes: int) -> int:
        """Allocate a span of `nbytes` (a multiple of the alignment), the last freed first; returns its address.

        Raises
        ------
        MemoryError
            When the reserved address space is exhausted.
        """
        with self._lock:
            spans = self._free.get(nbytes)
            if spans:
                return spans.pop()
            if self._next + nbytes > self.size:
                raise MemoryError(f"the host arena of {self.size} bytes is used up")
            offset, self._next = self._next, self._next + nbytes
            return self.base + offset

    def give(self, address: int, nbytes: int) -> None:
        """Free a span; it stays readable, but the pages of a large one go back to the system and read as zero."""
        if nbytes >= _WORTH_RETURNING and hasattr(mmap, "MADV_DONTNEED"):
            start = -(-(address - self.base) // mmap.PAGESIZE) * mmap.PAGESIZE
            stop = (address - self.base + nbytes) // mmap.PAGESIZE * mmap.PAGESIZE
            self._mapping.madvise(mmap.MADV_DONTNEED, start, stop - start)
        with self._lock:
            self._free.setdefault(nbytes, []).append(address)

    def holds(self, address: int) -> bool:
        """Whether an address lies in the mapping."""
        return self.base <= address < self.base + self.size

    def view(self, start: int, stop: int) -> npt.NDArray[np.uint8]:
        """Writable bytes of ``[start, stop)``, absolute addresses."""
        return self.bytes[start - self.base : stop - self.base]

    @property
    def reserved(self) -> int:
        """Bytes allocated so far, freed spans included."""
        return self._next

    @property
    def used(self) -> int:
        """Bytes allocated and not freed."""
        with self._lock:
            return self._next - sum(nbytes * len(addresses) for nbytes, addresses in self._free.items())


class HostCanaries:
    """Writes canaries at once; their positions count from the arena's start. The caller holds the allocator's lock.

    Attributes
    ----------
    arena
        None until the allocator has made it with its first block; no guard stands before.
    """

    def __init__(self, arena: HostArena | None) -> None:
        self.arena = arena

    @property
    def origin(self) -> int:
        assert self.arena is not None
        return self.arena.base

    def write_canaries(self, ranges: Sequence[ByteRange], here: bool = False) -> None:
        """Write the canary over ranges; `here` makes no difference on the host."""
        for where in ranges:
            assert self.arena is not None
            inside = self.arena.holds(where.start)
            room = self.arena.view(where.start, where.stop) if inside else raw_bytes(where.start, where.nbytes)
            room.data[:] = canary(where.start - self.origin, where.nbytes)

    def withdraw_guards(self, starts: Sequence[int]) -> None:
        """No effect: each check compares the guards that stand then."""

    def withdraw_shadows(self, buffer: int) -> None:
        """No effect: each check compares the bytes of living buffers."""

    def order_canaries(self) -> None:
        """No effect: nothing is queued on the host."""


def _reserve(nbytes: int) -> tuple[mmap.mmap, int]:
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NORESERVE
    while nbytes >= _SMALLEST_RESERVE:
        try:
            return mmap.mmap(-1, nbytes, flags=flags), nbytes
        except (OSError, ValueError, OverflowError):
            nbytes //= 2
    raise BackendError("the host backend cannot reserve 1 GiB of address space; raise the limit (ulimit -v)")
