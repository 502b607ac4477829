"""The CUDA allocator: guarded tensors of exact size on a device, for static buffers that the program allocates eagerly.

Called in any thread that allocates or frees, under the allocator's lock.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, cast

import torch

from shadowgraph.model.ranges import ByteRange
from shadowgraph.tracking.allocator import Block, HostAllocator, Pool
from shadowgraph.tracking.captures import captures
from shadowgraph.tracking.fences import FencedSpans
from shadowgraph.tracking.guard_keeper import CanaryWriter
from shadowgraph.tracking.large_buffers import NO_MEMORY, LargeBuffers, Request
from shadowgraph.tracking.memory import construct_storage
from shadowgraph.tracking.slabs import SlabArena
from shadowgraph.tracking.torch_segments import TorchSegments


class DeviceMemory(Protocol):
    """Device memory and the work queued on it: `engines.device.Device`."""

    def malloc(self, nbytes: int) -> int:
        """Allocate device memory and return its address; raises `MemoryError`."""

    def note_stream(self) -> None:
        """Let later calls of `wait` include the current stream."""

    def wait(self) -> bool:
        """Wait for the known streams; False, without a wait, while a capture runs."""

    def passed(self) -> bool:
        """Whether `wait` would return True at once."""

    def may_be_unmapped(self, address: int) -> bool:
        """Whether the memory at an address may be unmapped while its owner keeps it."""


class CudaAllocator(HostAllocator):
    """`HostAllocator` over slabs of device memory; the engine writes canaries on its own stream.

    Memory is reused only after the device has finished all work queued when it was freed: the host waits for the known
    streams. While a capture runs there is no wait, and fresh memory is allocated.

    Large buffers stay in torch's memory.

    Parameters
    ----------
    expandable
        Whether torch's allocator uses expandable segments.
    """

    def __init__(self, memory: DeviceMemory, canaries: CanaryWriter, index: int, expandable: bool = False) -> None:
        self._memory, self.index = memory, index
        self._slabs = SlabArena(memory.malloc)
        super().__init__(self._slabs, canaries)
        self.device = f"cuda:{index}"
        segments = TorchSegments(index, expandable, memory.may_be_unmapped)
        self._large = LargeBuffers(self._lock, self.guards, self.ledger, segments, self.large)

    def make_large(self, request: Request) -> tuple[torch.Tensor | None, str | None]:
        """As `HostAllocator.make_large`, in a segment of torch's allocator."""
        return self._large.make(request, self.policy) if self.policy is not None else (None, NO_MEMORY)

    def sweep_large(self) -> None:
        self._large.sweep()

    def end_segment(self, address: int) -> None:
        """A segment goes back to CUDA: its guards must no longer be read, and its buffer ends."""
        with self._lock.section:
            tenant = self.guards.retire(address, readable=False)
            if tenant is not None:
                self.ledger.free(tenant)

    def may_be_unmapped(self, ranges: Iterable[ByteRange]) -> bool:
        """Whether any of the ranges lies in memory that may be unmapped while its owner keeps it."""
        return any(self._memory.may_be_unmapped(where.start) for where in ranges)

    def in_private_pool(self, where: ByteRange) -> bool:
        """Asks torch's caching allocator, which takes milliseconds; True where that one cannot answer."""
        try:
            segments = torch.cuda.memory_snapshot()
        except RuntimeError:  # another allocator
            return True
        spans = ((ByteRange(s["address"], s["address"] + s["total_size"]), s["segment_pool_id"]) for s in segments)
        return any(tuple(pool) != (0, 0) for span, pool in spans if span.contains(where.start))

    def lends(self, storage: torch.UntypedStorage) -> bool:
        """Torch's own storages may be resized, those over other owners' memory may not."""
        return not storage.resizable()

    def _storage_at(self, address: int, nbytes: int) -> torch.UntypedStorage:
        self._memory.note_stream()  # work that the program queues there may outlive the tensor
        place = torch.device("cuda", self.index)
        return cast(torch.UntypedStorage, construct_storage(address, place, nbytes))

    def _take(self, pool: Pool, capacity: int) -> Block | None:
        if captures.running:
            return None
        block = super()._take(pool, capacity)
        if block is not None and not self._memory.wait():  # a capture has begun meanwhile
            pool.give(block)
            return None
        return block

    def _span(self, nbytes: int) -> int:
        if self._slabs.needs_settling(nbytes):
            self._slabs.settle(self._memory.wait)
        return super()._span(nbytes)

    def _fenced_span(self, fences: FencedSpans, nbytes: int) -> int:
        if fences.needs_settling(nbytes):
            fences.settle(self._memory.wait)
        return fences.take(nbytes)

    def wait(self) -> None:
        """Wait for work queued on the known streams, unless a capture runs."""
        self._memory.wait()

    def settle(self) -> None:
        """Allow reuse of memory that no queued work writes; called before a capture, during which there is no wait."""
        self._slabs.settle(self._memory.passed)
        if self.fences is not None:
            self.fences.settle(self._memory.passed)
        self._large.capture_begins()
