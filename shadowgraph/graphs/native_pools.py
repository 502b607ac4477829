"""Guards inside the program's own private pools (layout ``faithful``): nothing is added, moved or kept from reuse."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from shadowgraph.graphs.model import Graph
from shadowgraph.graphs.pool_buffers import Made, Tenants, pool_buffer, stacks_at
from shadowgraph.tracking.buffers import Buffer
from shadowgraph.tracking.cuda_allocator import CudaAllocator
from shadowgraph.tracking.guards import Guard
from shadowgraph.tracking.holes import Placement, place_guards
from shadowgraph.tracking.ranges import ByteRange

PoolHandle = tuple[int, int]


@dataclass(slots=True, eq=False)
class _Native:
    """One pool: what its live graphs were given in it, and the buffers that stand for that, by start."""

    handle: PoolHandle
    tenants: dict[int, Tenants] = field(default_factory=dict)
    buffers: dict[int, Buffer] = field(default_factory=dict)


class NativePools:
    """Guards in bytes that the caching allocator gave to nobody: what rounding adds, and the rest of segments.

    The memory stays the allocator's own. A check therefore never writes there: broken guards are armed again by the
    host, once it knows that the bytes are nobody's still (`confirm`). The segments exist as long as a graph of the pool
    does; with the last one their guards go, before the pool can.

    Attributes
    ----------
    left_alone
        Captures whose pools have no guards, by reason.
    """

    def __init__(self, allocator: CudaAllocator, near: int) -> None:
        self._allocator, self._near = allocator, near
        self.left_alone: Counter[str] = Counter()
        self._pools: dict[PoolHandle, _Native] = {}
        self._armed: dict[int, int] = {}  # when broken guards were armed again, by address

    def may_guard(self, handle: PoolHandle | None, expandable: bool) -> bool:
        """Whether a capture that is about to begin uses a pool that is known from its first allocation on."""
        if expandable:
            self.left_alone["expandable segments are on"] += 1
            return False
        if handle is not None and tuple(handle) not in self._pools and torch.cuda.memory_snapshot(handle):
            self.left_alone["a MemPool of the program's own, in use already"] += 1
            return False
        return True

    def captured(self, handle: PoolHandle, graph: Graph, tenants: Tenants, made: Made) -> None:
        """A capture into a pool is complete; guards are laid when they are first looked at."""
        pool = self._pools.get(handle)
        if pool is None:
            pool = self._pools[handle] = _Native(handle)
            self._allocator.confirm_lent = self.confirm
        pool.tenants[graph.serial] = tenants
        self._allocator.waiting.append(partial(self._enter, pool, graph, made))

    def dropped(self, graph: Graph) -> None:
        """A graph is going. With the last one of a pool its guards go, too."""
        for pool in [pool for pool in self._pools.values() if graph.serial in pool.tenants]:
            del pool.tenants[graph.serial]
            if not pool.tenants:
                self._let_go(pool)

    def close(self) -> None:
        """Take every guard away."""
        for pool in list(self._pools.values()):
            self._let_go(pool)

    def confirm(self, guard: Guard, order: int, clock: Iterator[int]) -> bool:
        """Whether what changed in a guard is damage that was not told before.

        If the bytes are nobody's still, the guard is armed again behind what is queued; checks that ran before that see
        the same damage once more. Else the program has allocated there meanwhile, and guards are laid around it.

        Parameters
        ----------
        order
            When the check ran, by `clock`.
        """
        if order < self._armed.get(guard.whole.start, 0):
            return False
        pool = next((p for p in self._pools.values() if p.buffers.get(guard.buffer.start) is guard.buffer), None)
        if pool is None:
            return False
        if any(block.overlaps(guard.whole) for block in _state_of(pool.handle)[1]):
            with self._allocator.batch():
                self._lay(pool)
            return False
        self._allocator.fill_behind(guard.whole)
        self._armed[guard.whole.start] = next(clock)
        return True

    def _let_go(self, pool: _Native) -> None:
        self._pools.pop(pool.handle, None)
        for start in pool.buffers:
            self._allocator.drop_tenant(start)
        for buffer in pool.buffers.values():
            self._allocator.ledger.free(buffer)

    def _enter(self, pool: _Native, graph: Graph, made: Made) -> None:
        tenants = pool.tenants.get(graph.serial)
        if tenants is None or self._pools.get(pool.handle) is not pool:
            return
        stacks = stacks_at(tenants, made)
        with self._allocator.batch():
            for start, nbytes in tenants.items():
                before = pool.buffers.get(start)
                largest = max(nbytes, before.nbytes if before is not None else 0)
                buffer = pool_buffer(self._allocator, graph, start, nbytes, largest, made, stacks)
                buffer.lent = True
                if before is not None:
                    if before.nbytes == largest:
                        self._allocator.hand_on_guards(before, buffer)
                    else:
                        self._allocator.move_guards(before, Placement(0, 0))
                    self._allocator.ledger.free(before)
                pool.buffers[start] = self._allocator.ledger.add(buffer)
            self._lay(pool)

    def _lay(self, pool: _Native) -> None:
        """Let guards stand where no live graph's tenant and no live block is; those that need not move are left."""
        segments, live = _state_of(pool.handle)
        blocks = {start: buffer.stop for start, buffer in pool.buffers.items()}
        for tenants in pool.tenants.values():
            live += [ByteRange(start, start + nbytes) for start, nbytes in tenants.items()]
        for start, placement in place_guards(segments, blocks, live, self._near).items():
            self._place(pool.buffers[start], placement)

    def _place(self, buffer: Buffer, new: Placement) -> None:
        tenant = self._allocator.tenants.get(buffer.start) is buffer
        if tenant == bool(new.head or new.tail) and (buffer.head_guard, buffer.tail_guard) == (new.head, new.tail):
            buffer.gap = new.gap
            return
        self._allocator.move_guards(buffer, new)


def _state_of(handle: PoolHandle) -> tuple[list[ByteRange], list[ByteRange]]:
    """A pool's segments, and the requested bytes of its live blocks."""
    segments, live = [], []
    for segment in torch.cuda.memory_snapshot(handle):
        if segment.get("is_expandable"):
            continue
        segments.append(ByteRange(segment["address"], segment["address"] + segment["total_size"]))
        for block in segment["blocks"]:
            if block["state"] == "active_allocated" and block["requested_size"]:
                live.append(ByteRange(block["address"], block["address"] + block["requested_size"]))
    return segments, live


def segments_of(snapshot: Mapping[str, Any], handle: PoolHandle) -> list[ByteRange]:
    """A pool's segments in a snapshot of the whole allocator."""
    return [
        ByteRange(segment["address"], segment["address"] + segment["total_size"])
        for segment in snapshot["segments"]
        if tuple(segment["segment_pool_id"]) == handle
    ]
