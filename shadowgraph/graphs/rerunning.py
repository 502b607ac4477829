"""The ranges to restore so that a graph can run again from its initial state: every byte that its nodes may write.

Pure functions over the model; the locator, the experiments of SG107 and the backends use them before a replay.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from shadowgraph.model.device_nodes import DeviceNode, NodeKind
from shadowgraph.model.graphs import Graph
from shadowgraph.model.launches import Pointer
from shadowgraph.model.ranges import ByteRange, RangeSet
from shadowgraph.model.reruns import AllocationOf
from shadowgraph.tracking.allocator import HostAllocator
from shadowgraph.tracking.readable import readable

_CLOSED = (NodeKind.CHILD, NodeKind.CONDITIONAL, NodeKind.OTHER)


class NotRerun(Exception):
    """A graph cannot be run again; the message is the reason, in one clause."""


def written(graph: Graph) -> Iterator[ByteRange]:
    """Where the nodes of a graph may write: one byte at each address that they were given.

    Raises
    ------
    NotRerun
        Where that is not known, or where a node has effects that cannot be undone.
    """
    for node in graph.device_nodes:
        launch = graph.launch_of(node)
        yield from _written(node, launch.pointers if launch is not None else ())


def _written(node: DeviceNode, pointers: tuple[Pointer, ...]) -> Iterator[ByteRange]:
    _refuse_unknown(node)
    fixed = RangeSet.of(p.view.hull for p in pointers if not p.may_write)
    for pointer in pointers:
        if pointer.may_write and pointer.view.nbytes:
            fixed.discard(pointer.view.hull)
            yield ByteRange(pointer.view.start, pointer.view.start + 1)
    yield from node.writes
    if node.kind is NodeKind.KERNEL:
        yield from (ByteRange(w.address, w.address + 1) for w in node.words if w.address not in fixed)
    for inner in node.inner:
        yield from _written(inner, ())


def _refuse_unknown(node: DeviceNode) -> None:
    if node.kind is NodeKind.HOST:
        raise NotRerun(f"node {node.index} runs host code, which must not run twice")
    if node.note or (node.kind in _CLOSED and not node.inner):
        raise NotRerun(f"where node {node.index} ({node.name}) writes is not known")


def state_of(
    graph: Graph,
    buffer_at: Callable[[int], ByteRange | None],
    allocation_of: AllocationOf,
    more: Sequence[ByteRange],
    room: int,
) -> list[ByteRange]:
    """The ranges to restore: whole buffers, and whole allocations where no tracked buffer is.

    Parameters
    ----------
    buffer_at
        The tracked buffer that holds an address and that can be read.
    allocation_of
        Start and size of the allocation that holds an address, or None; of size 0 where no byte is to be restored.
    more
        Ranges to restore in any case.
    room
        Bytes of copies that may be made.

    Raises
    ------
    NotRerun
        Where the ranges are not known, or larger than `room`.
    """
    found = RangeSet.of(more)
    for where in written(graph):
        if found.intersection(where) == [where]:
            continue
        home = buffer_at(where.start)
        if home is None:
            known = allocation_of(where.start)
            if known is None:
                raise NotRerun("it writes memory that is not tracked")
            home = ByteRange(known[0], known[0] + known[1])
        if home.nbytes:
            found.add(home)
    if found.nbytes > room:
        raise NotRerun(f"there is no room for copies of the {found.nbytes:,} bytes that it may write")
    return list(found)


def state_within(
    graph: Graph, allocator: HostAllocator, allocation_of: AllocationOf, more: Sequence[ByteRange], room: int
) -> list[ByteRange]:
    """`state_of` with the buffers of an allocator's ledger."""

    def buffer_at(address: int) -> ByteRange | None:
        buffer = allocator.ledger.owner(address, address + 1)
        return buffer.range if buffer is not None and readable(buffer, allocator) else None

    return state_of(graph, buffer_at, allocation_of, more, room)
