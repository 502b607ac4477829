"""The CUDA allocator: guarded tensors of exact size on a device, for static buffers that the program allocates eagerly.

Called in any thread that allocates or frees, under the allocator's lock.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol, cast

import torch

from shadowgraph.model.buffers import Buffer
from shadowgraph.model.guards import Guard
from shadowgraph.model.ranges import ByteRange
from shadowgraph.tracking.allocator import Block, HostAllocator, Pool
from shadowgraph.tracking.captures import captures
from shadowgraph.tracking.free_gaps import Placement
from shadowgraph.tracking.slabs import SlabArena


class Filler(Protocol):
    """Writes canaries into device memory: the engine of the cuda backend."""

    def fill(self, where: ByteRange) -> None:
        """Fill a range before the next check."""

    def fill_many(self, ranges: Sequence[ByteRange]) -> None:
        """Fill many ranges in one launch."""

    def fill_after(self) -> None:
        """Order later fills behind the work queued on the current stream."""

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


class ExternalPoolOwner(Protocol):
    """Manages guards in memory that belongs to another allocator."""

    def confirm(self, guard: Guard, extent: tuple[int, int], order: int, clock: Iterator[int]) -> bool:
        """As `HostAllocator.confirm`."""

    def may_arm(self, guard: Guard, clock: Iterator[int]) -> bool:
        """As `HostAllocator.may_arm`."""

    def refit(self) -> None:
        """Restrict guards to bytes that are still free. The caller holds the allocator's lock."""


class CudaAllocator(HostAllocator):
    """`HostAllocator` over slabs of device memory; the engine arms guards on its own stream.

    Memory is reused only after the device has finished all work queued when it was freed: the host waits for the known
    streams. While a capture runs there is no wait, and fresh memory is allocated.
    """

    def __init__(self, filler: Filler, device: int) -> None:
        self._filler, self.index = filler, device
        self._batched: list[ByteRange] | None = None
        self.lender: ExternalPoolOwner | None = None
        self._slabs = SlabArena(filler.malloc)
        super().__init__(self._slabs)
        self.device = f"cuda:{device}"

    def fill(self, where: ByteRange) -> None:
        if self._batched is not None:
            self._batched.append(where)
        else:
            self._filler.fill(where)

    @contextmanager
    def batch(self) -> Iterator[None]:
        """Arm all guards of the block in one launch at its end."""
        if self._batched is not None:  # part of an outer batch
            yield
            return
        self._batched = []
        try:
            yield
        finally:
            ranges, self._batched = self._batched, None
            self._filler.fill_many(ranges)

    def rearm(self) -> None:
        """Queued work of the program may still write to unchecked guards: they are armed behind it, and not over memory
        that was allocated since they were placed."""
        self.enter_waiting()
        self._filler.fill_after()
        with self._lock.section, self.batch():
            if self.lender is not None:
                self.lender.refit()
            super().rearm()

    def drop_tenant(self, address: int) -> None:
        """Drop the tenant of memory that goes back to CUDA: its guards must no longer be read."""
        with self._lock.section:
            buffer = self.tenants.pop(address, None)
            if buffer is not None:
                self.tenancies += 1
                self.ledger.free(buffer)

    def transfer_guards(self, before: Buffer, buffer: Buffer) -> None:
        """Pass the standing guards to another buffer of the same range."""
        buffer.head_guard, buffer.tail_guard, buffer.gap = before.head_guard, before.tail_guard, before.gap
        with self._lock.section:
            if self.tenants.get(before.start) is before:
                self.tenants[buffer.start] = buffer
                self.tenancies += 1

    def move_guards(self, buffer: Buffer, placement: Placement) -> None:
        """Replace a buffer's guards, or place its first ones, after a final check of the standing ones."""
        with self._lock.section:
            if self.tenants.get(buffer.start) is buffer:
                self._final_check(buffer)
                del self.tenants[buffer.start]
            buffer.head_guard, buffer.tail_guard, buffer.gap = placement.head, placement.tail, placement.gap
            if placement.head or placement.tail:
                self.tenants[buffer.start] = buffer
                self.arm(buffer)
            self.tenancies += 1

    def may_be_unmapped(self, ranges: Iterable[ByteRange]) -> bool:
        """Whether any of the ranges lies in memory that may be unmapped while its owner keeps it."""
        return any(self._filler.may_be_unmapped(where.start) for where in ranges)

    def confirm(self, guard: Guard, extent: tuple[int, int], order: int, clock: Iterator[int]) -> bool:
        """The memory may have been allocated meanwhile."""
        with self._lock.section:
            return self.lender is None or self.lender.confirm(guard, extent, order, clock)

    def may_arm(self, guard: Guard, clock: Iterator[int]) -> bool:
        """The memory may have been allocated meanwhile."""
        if guard.rearm or self.lender is None:
            return super().may_arm(guard, clock)
        return self.lender.may_arm(guard, clock)

    def in_private_pool(self, where: ByteRange) -> bool:
        """Asks torch's caching allocator, which takes milliseconds; True where that one cannot answer."""
        try:
            segments = torch.cuda.memory_snapshot()
        except RuntimeError:  # another allocator
            return True
        spans = ((ByteRange(s["address"], s["address"] + s["total_size"]), s["segment_pool_id"]) for s in segments)
        return any(tuple(pool) != (0, 0) for span, pool in spans if span.contains(where.start))

    def _final_check(self, tenant: Buffer) -> None:
        super()._final_check(tenant)
        self._filler.fill_after()  # the check is only queued; the next fill may overwrite the same bytes

    def _storage_at(self, address: int, nbytes: int) -> torch.UntypedStorage:
        self._filler.note_stream()  # work that the program queues there may outlive the tensor
        place = torch.device("cuda", self.index)
        return cast(torch.UntypedStorage, torch._C._construct_storage_from_data_pointer(address, place, nbytes))

    def _take(self, pool: Pool, capacity: int) -> Block | None:
        if captures.running:
            return None
        block = super()._take(pool, capacity)
        if block is not None and not self._filler.wait():  # a capture has begun meanwhile
            pool.give(block)
            return None
        return block

    def _span(self, nbytes: int) -> int:
        if self._slabs.needs_settling(nbytes):
            self._slabs.settle(self._filler.wait)
        return super()._span(nbytes)

    def settle(self) -> None:
        """Allow reuse of memory that no queued work writes; called before a capture, during which there is no wait."""
        self._slabs.settle(self._filler.passed)
