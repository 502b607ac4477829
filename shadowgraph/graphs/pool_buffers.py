"""After a capture: which tensors its pool holds, of which requested size, and where guards may stand around them."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from shadowgraph.graphs.cuda_pools import GuardedPool
from shadowgraph.graphs.model import Graph
from shadowgraph.tracking.buffers import Buffer, Role
from shadowgraph.tracking.cuda_allocator import CudaAllocator
from shadowgraph.tracking.stacks import RawStack, stack_of

_FAR = 64 << 10  # most guard bytes behind a tensor of a pool

Made = Mapping[int, tuple[torch.dtype, tuple[int, ...], RawStack]]


def enter_pool_buffers(
    allocator: CudaAllocator, pool: GuardedPool, graph: Graph, requested: Mapping[int, int], made: Made
) -> None:
    """Enter the capture's tensors into the ledger and let their guards stand.

    `requested`: largest bytes asked for, by segment. A segment's guard starts behind its largest tenant of any live
    graph; it is exact where that is the tenant's size.
    """
    with allocator.batch():
        for address, nbytes in requested.items():
            pool.tenancies.setdefault(address, {})[graph.serial] = nbytes
            buffer = _buffer(allocator, pool, graph, address, nbytes, made)
            if buffer is None:
                continue
            previous = allocator.tenants.get(address)
            if previous is not None:
                allocator.ledger.free(previous)
            allocator.install_tenant(buffer)
            allocator.ledger.add(buffer)


def _buffer(
    allocator: CudaAllocator, pool: GuardedPool, graph: Graph, address: int, nbytes: int, made: Made
) -> Buffer | None:
    room = pool.room(address)
    if room is None:
        return None
    segment = pool.segments[address]
    dtype, shape, stack = made.get(address, (torch.uint8, (nbytes,), ()))
    guard_start, guard_stop = room
    largest = guard_start - address
    return Buffer(
        serial=allocator.ledger.next_serial(),
        start=address,
        nbytes=largest,
        role=Role.POOL,
        dtype=str(dtype).removeprefix("torch."),
        shape=shape if largest == nbytes else (largest // dtype.itemsize,),
        itemsize=dtype.itemsize,
        stack=stack_of(stack),
        device=allocator.device,
        graph=graph.serial,
        head_guard=segment.head,
        tail_guard=min(guard_stop - guard_start, _FAR) if segment.tail else 0,
        inexact=largest - nbytes,
    )


def requested_sizes(pool: GuardedPool) -> dict[int, int]:
    """Largest requested size of each segment in the capture that just ended, from the allocator's own trace.

    Blocks that live now are taken from the pool's snapshot as well, in case the trace was full.
    """
    sizes: dict[int, int] = {}
    for events in torch.cuda.memory._snapshot()["device_traces"]:
        for event in events:
            if event["action"] == "alloc" and event["addr"] in pool.segments:
                sizes[event["addr"]] = max(sizes.get(event["addr"], 0), event["size"])
    for segment in torch.cuda.memory_snapshot(pool.pool.id):
        for block in segment["blocks"]:
            if block["state"] == "active_allocated":
                sizes[block["address"]] = max(sizes.get(block["address"], 0), block["requested_size"])
    return sizes
