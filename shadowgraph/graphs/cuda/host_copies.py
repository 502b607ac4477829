"""The memcpy nodes of a captured graph that have host memory on one side, read as the capture ends.

Only the types of the other nodes are read. Called in the capturing thread; the graph is not destroyed meanwhile.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator

from shadowgraph.engines.context import PrimaryContext
from shadowgraph.graphs.cuda.driver import Driver, DriverError, MemcpyParameters
from shadowgraph.graphs.cuda.reading import side_of
from shadowgraph.model.host_copies import HostCopy, HostKind
from shadowgraph.model.ranges import ByteRange

_MEMCPY = 1  # CUgraphNodeType
_HOST = 1  # CUmemorytype


def host_copies(driver: Driver, graph: int, context: PrimaryContext) -> tuple[HostCopy, ...]:
    """The copies from and to host memory among a graph's own nodes, not in graphs inside it."""
    with context.current():
        return tuple(_found(driver, graph, context))


def _found(driver: Driver, graph: int, context: PrimaryContext) -> Iterator[HostCopy]:
    for place, node in enumerate(driver.nodes(graph)):
        if driver.kind(node) == _MEMCPY:
            held = MemcpyParameters()
            try:
                driver.call("cuGraphMemcpyNodeGetParams", ctypes.c_void_p(node), ctypes.byref(held))
            except DriverError:
                continue
            made = _copy(context, place, held)
            if made is not None:
                yield made


def _copy(context: PrimaryContext, place: int, held: MemcpyParameters) -> HostCopy | None:
    """The copy of a node; None where both sides or neither are host memory, or one is an array."""
    (source, _), (target, _) = side_of(held, "src"), side_of(held, "dst")
    if source is None or target is None:
        return None
    from_host, to_host = _on_host(context, source, held.src_type), _on_host(context, target, held.dst_type)
    if from_host is to_host:
        return None
    host, device = (target, source) if to_host else (source, target)
    nbytes = held.width * max(1, held.height) * max(1, held.depth)
    flat = host.nbytes == device.nbytes == nbytes
    return HostCopy(place, host, device, to_host, context.host_block(host.start), flat)


def _on_host(context: PrimaryContext, where: ByteRange, kind: int) -> bool:
    """Whether one side of a copy is host memory. A node may have an address of any kind for pinned memory; where it is
    of any kind and the driver does not know it, it may be anything."""
    block = context.host_block(where.start)
    return block is not None and (kind == _HOST or block.kind is HostKind.PINNED)
