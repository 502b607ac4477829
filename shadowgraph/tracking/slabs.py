"""Address space of the cuda backend: slabs from cudaMalloc, handed out in spans and kept until the process ends."""

from __future__ import annotations

import threading
from bisect import bisect_right
from typing import Any

from shadowgraph.compat import relaxed_capture, require_cupy
from shadowgraph.tracking.arena import HostArena

SLAB = 128 << 20


class SlabArena(HostArena):
    """Spans of device memory with the surface of `HostArena`, without a view of the bytes.

    Slabs are plain ``cudaMalloc`` memory, so that IPC handles of tensors in them go on working. Spans above half a
    slab have an allocation of their own. Nothing is given back to CUDA: a stale pointer stays harmless to follow.
    """

    def __init__(self, device: int) -> None:
        self._cp: Any = require_cupy()
        self._device = device
        self._lock = threading.RLock()
        self.base = 0
        self.size = 0
        self._starts: list[int] = []
        self._stops: list[int] = []
        self._next = self._end = 0
        self._free: dict[int, list[int]] = {}
        self.used_before = False  # whether the span that was taken last had an owner before

    def take(self, nbytes: int) -> int:
        """Address of a span, the last one given back first.

        Raises
        ------
        MemoryError
            When the device has no more.
        """
        with self._lock:
            spans = self._free.get(nbytes)
            self.used_before = bool(spans)
            if spans:
                return spans.pop()
            if nbytes > SLAB // 2:
                return self._malloc(nbytes)
            if self._next + nbytes > self._end:
                self._next = self._malloc(SLAB)
                self._end = self._next + SLAB
            address, self._next = self._next, self._next + nbytes
            return address

    def give(self, address: int, nbytes: int) -> None:
        """Take a span back, to be handed out again; its bytes stay as they are."""
        with self._lock:
            self._free.setdefault(nbytes, []).append(address)

    def holds(self, address: int) -> bool:
        with self._lock:
            at = bisect_right(self._starts, address) - 1
            return at >= 0 and address < self._stops[at]

    @property
    def reserved(self) -> int:
        return self.size

    def _malloc(self, nbytes: int) -> int:
        runtime = self._cp.cuda.runtime
        with relaxed_capture(), self._cp.cuda.Device(self._device):
            try:
                address = int(runtime.malloc(nbytes))
            except runtime.CUDARuntimeError as error:
                raise MemoryError(f"cudaMalloc of {nbytes} bytes: {error}") from None
        at = bisect_right(self._starts, address)
        self._starts.insert(at, address)
        self._stops.insert(at, address + nbytes)
        self.size += nbytes
        return address
