"""Guards inside the program's own private pools (layout ``faithful``): no memory is added, moved or kept from reuse.

`InPlacePools` knows the pools and finds room; the guard keeper moves the guards there. `captured`, `dropped`,
`refuse`, `entered` and `close` take the allocator's lock; `confirm`, `may_rearm` and `refit` are called by the keeper
with that lock held.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from shadowgraph.graphs.cuda.pool_buffers import Made, Tenants, pool_buffer, stacks_at
from shadowgraph.graphs.dispatch import active_pools
from shadowgraph.model.buffers import Buffer
from shadowgraph.model.graphs import Graph
from shadowgraph.model.guards import Guard, guards_of
from shadowgraph.model.ranges import ByteRange, RangeSet
from shadowgraph.tracking.cuda_allocator import CudaAllocator
from shadowgraph.tracking.free_gaps import Placement, place_guards

PoolHandle = tuple[int, int]
INCOMPLETE = "the program's own recording of memory history leaves allocations out"
ENTERED = "a pool of graphs in which the program allocates outside of captures, too"
UNMAPPABLE = "a pool whose memory may be unmapped (a memory saver or a sleep mode)"


@dataclass(slots=True, eq=False)
class _Native:
    """One pool: the allocations of its live graphs, and the buffers that stand for them, by start address."""

    handle: PoolHandle
    tenants: dict[int, Tenants] = field(default_factory=dict)
    buffers: dict[int, Buffer] = field(default_factory=dict)


class InPlacePools:
    """Finds room for guards in bytes that the caching allocator has not handed out: rounding slack, and unused parts of
    segments.

    The memory stays the allocator's own. A check therefore never writes there: broken guards are re-armed once the host
    knows that the bytes are still unallocated (`may_rearm`). The segments exist as long as a graph of the pool does;
    with the last graph the guards are retired, before the pool can be released.

    Attributes
    ----------
    left_alone
        Captures without guards in their pools, by reason.
    """

    def __init__(self, allocator: CudaAllocator, near: int) -> None:
        self._allocator, self._guards, self._near = allocator, allocator.guards, near
        self.left_alone: Counter[str] = Counter()
        self._pools: dict[PoolHandle, _Native] = {}
        self._refused: set[PoolHandle] = set()
        self._moved: dict[int, tuple[int, ByteRange]] = {}  # moved guards: when, and where they stood

    def may_guard(self, handle: PoolHandle | None, expandable: bool) -> bool:
        """Whether a capture that is about to begin uses a pool that is known from its first allocation on."""
        if expandable:
            self.left_alone["expandable segments are on"] += 1
            return False
        if handle is not None and tuple(handle) in self._refused:
            return False
        if handle is not None and tuple(handle) not in self._pools and torch.cuda.memory_snapshot(handle):
            self.left_alone["a MemPool of the program's own, in use already"] += 1
            return False
        return True

    def captured(self, handle: PoolHandle, graph: Graph, tenants: Tenants, made: Made) -> None:
        """A capture into a pool is complete; guards are placed when they are first needed."""
        if active_pools.leads_to(handle):
            self.refuse(handle, ENTERED)
            return
        with self._allocator.lock.section:
            pool = self._pools.get(handle)
            if pool is None:
                pool = self._pools[handle] = _Native(handle)
                self._guards.external = self
            pool.tenants[graph.serial] = tenants
        self._guards.waiting.append(partial(self._enter, pool, graph, made))

    def dropped(self, graph: Graph) -> None:
        """A graph is going. The guards of its pool go with the pool's last graph."""
        with self._allocator.lock.section:
            for pool in [pool for pool in self._pools.values() if graph.serial in pool.tenants]:
                del pool.tenants[graph.serial]
                if not pool.tenants:
                    self._retire(pool)

    def refuse(self, handle: PoolHandle, reason: str) -> None:
        """A pool can have no guards after a capture into it, and from here on."""
        with self._allocator.lock.section:
            self.left_alone[reason] += 1
            self._refused.add(handle)
            pool = self._pools.get(handle)
            if pool is not None:
                self._retire(pool)

    def entered(self, handle: PoolHandle) -> None:
        """The program allocates in a pool outside of captures from here on: what is freed before the host looks leaves
        no trace but its bytes."""
        if handle in self._pools:
            self.refuse(handle, ENTERED)

    def close(self) -> None:
        """Retire every guard."""
        with self._allocator.lock.section:
            for pool in list(self._pools.values()):
                self._retire(pool)

    def confirm(self, guard: Guard, extent: tuple[int, int], order: int, clock: Iterator[int]) -> bool:
        """Whether a change in a guard is damage. The caller holds the allocator's lock.

        It is not if the program has allocated there meanwhile; guards are then placed around the allocation, and checks
        that ran before see the program's own bytes once more. Where a later capture has moved the guard it is damage.

        Parameters
        ----------
        extent
            First and last changed byte.
        order
            Time of the check, by `clock`.
        """
        moved = self._moved.get(guard.whole.start)
        if moved is not None and order < moved[0]:
            return not moved[1].covers(ByteRange(extent[0], extent[1] + 1))
        pool = self._pool_of(guard)
        return pool is None or self._is_unallocated(guard, pool, clock)

    def may_rearm(self, guard: Guard, clock: Iterator[int]) -> bool:
        """Whether a guard is in place and its bytes are unallocated. The caller holds the allocator's lock.

        If the program has allocated there, guards are placed around the allocation.
        """
        pool = self._pool_of(guard)
        return pool is not None and self._is_unallocated(guard, pool, clock)

    def refit(self) -> None:
        """Restrict guards to bytes that are unallocated by now. The caller holds the allocator's lock."""
        for pool in self._pools.values():
            self._refit(pool)

    def _pool_of(self, guard: Guard) -> _Native | None:
        """The pool of a guard that is in place; None also while the pool must not be changed."""
        pool = next((p for p in self._pools.values() if guard.buffer.start in p.buffers), None)
        if pool is None or not self._stands(guard, pool) or torch.cuda.is_current_stream_capturing():
            return None
        return pool

    def _is_unallocated(self, guard: Guard, pool: _Native, clock: Iterator[int]) -> bool:
        if not any(block.overlaps(guard.whole) for block in _state_of(pool.handle)[1]):
            return True
        with self._guards.batch():
            self._refit(pool)
        self._moved[guard.whole.start] = next(clock), guard.whole
        return False

    def _stands(self, guard: Guard, pool: _Native) -> bool:
        """Whether a guard is where it was, and overlaps no tenant of a graph of the pool."""
        buffer = guard.buffer
        standing = [one.whole for one in guards_of(buffer, self._near)]
        if self._guards.tenants.get(buffer.start) is not buffer or guard.whole not in standing:
            return False
        given = (ByteRange(s, s + n) for tenants in pool.tenants.values() for s, n in tenants.items())
        return not any(span.overlaps(guard.whole) for span in given)

    def _retire(self, pool: _Native) -> None:
        self._pools.pop(pool.handle, None)
        for start, buffer in pool.buffers.items():
            self._moved.pop(buffer.guard_start, None)
            self._moved.pop(start - buffer.head_guard, None)
        for start in pool.buffers:
            self._guards.retire(start, readable=False)
        for buffer in pool.buffers.values():
            self._allocator.ledger.free(buffer)

    def _enter(self, pool: _Native, graph: Graph, made: Made) -> None:
        tenants = pool.tenants.get(graph.serial)
        if tenants is None or self._pools.get(pool.handle) is not pool:
            return
        stacks = stacks_at(tenants, made)
        with self._guards.batch():
            given = RangeSet.of(ByteRange(start, start + nbytes) for start, nbytes in tenants.items())
            for start, nbytes in tenants.items():
                before = pool.buffers.get(start)
                largest = max(nbytes, before.nbytes if before is not None else 0)
                buffer = pool_buffer(self._allocator, graph, start, nbytes, largest, made, stacks)
                buffer.lent = True
                if before is not None:
                    if before.nbytes == largest:
                        self._guards.move_to(buffer, before)
                    else:
                        self._move(before, Placement(0, 0), given)
                    self._allocator.ledger.free(before)
                pool.buffers[start] = self._allocator.ledger.add(buffer)
            self._refit(pool)

    def _refit(self, pool: _Native) -> None:
        """Move guards to where there is no live graph's tenant and no live block; guards that need not move stay."""
        segments, live = _state_of(pool.handle)
        blocks = {start: buffer.stop for start, buffer in pool.buffers.items()}
        for tenants in pool.tenants.values():
            live += [ByteRange(start, start + nbytes) for start, nbytes in tenants.items()]
        given = RangeSet.of(live)
        for start, placement in place_guards(segments, blocks, live, self._near).items():
            self._move(pool.buffers[start], placement, given)

    def _move(self, buffer: Buffer, placement: Placement, given: RangeSet) -> None:
        """Move guards. Since the program was given the bytes of one, it may have written there: it is not checked."""
        standing = guards_of(buffer, self._near)
        self._guards.move(buffer, placement, not any(given.overlaps(guard.whole) for guard in standing))


def _state_of(handle: PoolHandle) -> tuple[list[ByteRange], list[ByteRange]]:
    """A pool's segments, and the requested bytes of its live blocks."""
    segments, live = [], []
    for segment in torch.cuda.memory_snapshot(handle):
        segments.append(ByteRange(segment["address"], segment["address"] + segment["total_size"]))
        for block in segment["blocks"]:
            if block["state"] in ("active_allocated", "active_pending_free") and block["requested_size"]:
                live.append(ByteRange(block["address"], block["address"] + block["requested_size"]))
    return segments, live


def segments_of(snapshot: Mapping[str, Any], handle: PoolHandle) -> list[ByteRange]:
    """A pool's segments in a snapshot of the whole allocator."""
    return [
        ByteRange(segment["address"], segment["address"] + segment["total_size"])
        for segment in snapshot["segments"]
        if tuple(segment["segment_pool_id"]) == handle
    ]
