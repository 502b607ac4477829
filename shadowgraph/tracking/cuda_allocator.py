"""Guarded tensors of exact size on a CUDA device, for static buffers that the program allocates eagerly."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol, cast

import torch

from shadowgraph.compat import relaxed_capture
from shadowgraph.tracking.allocator import Block, HostAllocator, Pool
from shadowgraph.tracking.ranges import ByteRange
from shadowgraph.tracking.slabs import SlabArena


class Filler(Protocol):
    """Who writes canaries into device memory: the engine of the cuda backend."""

    def fill(self, where: ByteRange) -> None:
        """Fill a range on the current stream."""

    def fill_many(self, ranges: Sequence[ByteRange]) -> None:
        """Fill many ranges in one launch on the current stream."""


class CudaAllocator(HostAllocator):
    """`HostAllocator` over slabs of device memory; guards are armed by the engine on the current stream.

    A block is handed out again only after the device has done all that was queued when it was freed: the host waits
    for that, in `guard()` and nowhere else.
    """

    def __init__(self, filler: Filler, device: int) -> None:
        self._filler, self._index = filler, device
        self._batched: list[ByteRange] | None = None
        super().__init__(SlabArena(device))
        self.device = f"cuda:{device}"

    def fill(self, where: ByteRange) -> None:
        if self._batched is not None:
            self._batched.append(where)
        else:
            self._filler.fill(where)

    @contextmanager
    def batch(self) -> Iterator[None]:
        """Arm all guards of the block in one launch at its end."""
        self._batched = []
        try:
            yield
        finally:
            ranges, self._batched = self._batched, None
            self._filler.fill_many(ranges)

    def drop_tenant(self, address: int) -> None:
        """Memory at an address goes back to CUDA: nothing may look at its guards any more."""
        with self._lock:
            buffer = self.tenants.pop(address, None)
            if buffer is not None:
                self.tenancies += 1
                self.ledger.free(buffer)

    def _storage_at(self, address: int, nbytes: int) -> torch.UntypedStorage:
        place = torch.device("cuda", self._index)
        return cast(torch.UntypedStorage, torch._C._construct_storage_from_data_pointer(address, place, nbytes))

    def _take(self, pool: Pool, capacity: int) -> Block | None:
        block = super()._take(pool, capacity)
        if block is not None:
            with relaxed_capture():
                torch.cuda.synchronize(self._index)
        return block
