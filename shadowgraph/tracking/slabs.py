"""Address space of the cuda backend: slabs from cudaMalloc, allocated in spans and kept until the process ends.

Called with the allocator's lock held, and by torch's allocator for private pools; has its own lock.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Callable

from shadowgraph.tracking.arena import HostArena

SLAB = 128 << 20


class SlabArena(HostArena):
    """Spans of device memory with the interface of `HostArena`, without a view of the bytes.

    Slabs are plain ``cudaMalloc`` memory, so that IPC handles of tensors in them work. Spans above half a slab have
    their own allocation. Nothing is given back to CUDA: a stale pointer stays harmless to follow.

    The program may have queued writes to a span before it freed the tensor there. So a span is reused only after a wait
    that began after its free: `settle` waits and marks it reusable.

    Parameters
    ----------
    malloc
        Allocates device memory of a given size and returns its address; raises `MemoryError`.
    slab
        Bytes of a slab; 0 for an allocation of its own for each span.
    """

    def __init__(self, malloc: Callable[[int], int], slab: int = SLAB) -> None:
        self._device_malloc, self._slab = malloc, slab
        self._lock = threading.RLock()
        self.base = 0
        self.size = 0
        self._starts: list[int] = []
        self._stops: list[int] = []
        self._next = self._end = 0
        self._free: dict[int, list[int]] = {}  # reusable
        self._unsettled: dict[int, list[int]] = {}

    def take(self, nbytes: int) -> int:
        """Allocate a span that no queued work writes, the last freed first; returns its address.

        Raises
        ------
        MemoryError
            When the device is out of memory.
        """
        with self._lock:
            spans = self._free.get(nbytes)
            if spans:
                return spans.pop()
            if nbytes > self._slab // 2:
                return self._malloc(nbytes)
            if self._next + nbytes > self._end:
                self._next = self._malloc(self._slab)
                self._end = self._next + self._slab
            address, self._next = self._next, self._next + nbytes
            return address

    def needs_settling(self, nbytes: int) -> bool:
        """Whether a wait would avoid fresh memory for a span of this size."""
        with self._lock:
            return bool(self._unsettled.get(nbytes)) and not self._free.get(nbytes)

    def settle(self, wait: Callable[[], bool]) -> None:
        """Wait, and allow reuse of spans freed before if `wait` returned True. `wait` is called without
        the lock."""
        with self._lock:
            before, self._unsettled = self._unsettled, {}
        into = self._unsettled
        try:
            into = self._free if wait() else self._unsettled
        finally:
            with self._lock:
                for nbytes, addresses in before.items():
                    into.setdefault(nbytes, []).extend(addresses)

    def give(self, address: int, nbytes: int) -> None:
        """Free a span, for reuse after the next `settle`; its bytes stay unchanged."""
        with self._lock:
            self._unsettled.setdefault(nbytes, []).append(address)

    @property
    def used(self) -> int:
        with self._lock:
            free = (*self._free.items(), *self._unsettled.items())
            return self._next - sum(nbytes * len(addresses) for nbytes, addresses in free)

    def holds(self, address: int) -> bool:
        with self._lock:
            at = bisect_right(self._starts, address) - 1
            return at >= 0 and address < self._stops[at]

    @property
    def reserved(self) -> int:
        return self.size

    def _malloc(self, nbytes: int) -> int:
        address = self._device_malloc(nbytes)
        at = bisect_right(self._starts, address)
        self._starts.insert(at, address)
        self._stops.insert(at, address + nbytes)
        self.size += nbytes
        return address
