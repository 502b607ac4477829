"""Pool buffers after a capture: the tensors in its pool, their requested sizes, and the room for guards around them.

`tenants_of` runs as a capture ends; the buffers are entered later, as work in `GuardKeeper.waiting`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import torch

from shadowgraph.graphs.cuda.isolated_pools import IsolatedPool
from shadowgraph.model.buffers import Buffer, Role
from shadowgraph.model.graphs import Graph
from shadowgraph.model.stacks import Stack
from shadowgraph.tracking.cuda_allocator import CudaAllocator
from shadowgraph.tracking.free_gaps import FAR
from shadowgraph.tracking.traces import Trace, stacks_of

Made = Mapping[int, tuple[torch.dtype, tuple[int, ...], Trace]]
Stacks = Mapping[int, Stack]
Tenants = Mapping[int, int]  # largest requested size, by address
_FRAMES = 6


def enter_pool_buffers(
    allocator: CudaAllocator, pool: IsolatedPool, graph: Graph, requested: Tenants, made: Made
) -> None:
    """Enter the capture's tensors into the ledger and arm their guards.

    A segment's guard starts behind its largest tenant of any live graph; it is exact where that is the tenant's size.
    """
    stacks = stacks_at(requested, made)
    guards = allocator.guards
    with guards.batch():
        for address, nbytes in requested.items():
            pool.tenancies.setdefault(address, {})[graph.serial] = nbytes
            room = pool.room(address)
            if room is None:
                continue
            guard_start, guard_stop = room
            buffer = pool_buffer(allocator, graph, address, nbytes, guard_start - address, made, stacks)
            segment = pool.segments[address]
            buffer.head_guard = segment.head
            buffer.tail_guard = min(guard_stop - guard_start, FAR) if segment.tail else 0
            previous = guards.tenants.get(address)
            if previous is not None:
                allocator.ledger.free(previous)
            guards.arm(buffer, given=nbytes)
            allocator.ledger.add(buffer)


def pool_buffer(
    allocator: CudaAllocator, graph: Graph, start: int, nbytes: int, largest: int, made: Made, stacks: Stacks
) -> Buffer:
    """A ledger entry, without guards so far, for the tensor of a capture at an address: `nbytes` of the `largest` size
    that any live graph was given there."""
    dtype, shape, _ = made.get(start, (torch.uint8, (nbytes,), None))
    return Buffer(
        serial=allocator.ledger.next_serial(),
        start=start,
        nbytes=largest,
        role=Role.POOL,
        dtype=str(dtype).removeprefix("torch."),
        shape=shape if largest == nbytes else (largest // dtype.itemsize,),
        itemsize=dtype.itemsize,
        stack=stacks.get(start, ()),
        device=allocator.device,
        graph=graph.serial,
        inexact=largest - nbytes,
    )


def stacks_at(addresses: Iterable[int], made: Made) -> Stacks:
    """Allocation stacks of a capture's tensors, by address."""
    known = [address for address in addresses if address in made]
    return dict(zip(known, stacks_of([made[address][2] for address in known], _FRAMES), strict=True))


def tenants_of(snapshot: Mapping[str, object], ours: Callable[[int], bool]) -> Tenants:
    """Largest requested size at each address in the capture that just ended, from the allocator's history.

    Live blocks are also taken from the snapshot's segments, in case the history was full.
    """
    sizes: dict[int, int] = {}
    traces: list[list[dict[str, object]]] = snapshot["device_traces"]  # type: ignore[assignment]
    for event in (event for events in traces for event in events if event["action"] == "alloc"):
        _note(sizes, event["addr"], event["size"], ours)
    segments: list[dict[str, list[dict[str, object]]]] = snapshot["segments"]  # type: ignore[assignment]
    for block in (block for segment in segments for block in segment["blocks"]):
        if block["state"] == "active_allocated":
            _note(sizes, block["address"], block["requested_size"], ours)
    return sizes


def _note(sizes: dict[int, int], address: object, nbytes: object, ours: Callable[[int], bool]) -> None:
    assert isinstance(address, int)
    assert isinstance(nbytes, int)
    if nbytes and ours(address):
        sizes[address] = max(sizes.get(address, 0), nbytes)
