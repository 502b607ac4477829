"""What a graph's nodes do to the bytes of one tenant of a pool: which write them, and which read them as its own.

Pure functions over the model.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

from shadowgraph.checks.pool_clobber.tenants import Tenant, Tenants
from shadowgraph.graphs.dataflow import surely_reads
from shadowgraph.model.graphs import Access, Graph, Node, Pointer
from shadowgraph.model.ranges import ByteRange, RangeSet
from shadowgraph.tracking.writes import extent


class Kernel(NamedTuple):
    """The bytes that a kernel was seen to store, and to load."""

    stores: RangeSet
    loads: RangeSet


Kernels = Mapping[tuple[int, int], Kernel]  # by graph and node, where they are known


@dataclass(frozen=True, slots=True)
class Change:
    """A node's write to bytes of a tenant.

    Attributes
    ----------
    parts
        These bytes.
    by
        The tenant that the node wrote; None where that is the tenant itself, or may be.
    sure
        Whether the node is known to write all of them.
    apart
        Whether the two have no byte in common in this layout, and would have in torch's.
    """

    node: Node
    parts: RangeSet
    by: Tenant | None
    sure: bool
    apart: bool = False


@dataclass(frozen=True, slots=True)
class Use:
    """Nodes that read bytes of a tenant that the graph has not written as its own before.

    Attributes
    ----------
    node, sure
        The first of them, and whether it is known to read.
    before
        Writes of other tenants there in the same graph before, the last one first.
    """

    node: Node
    parts: RangeSet
    before: tuple[Change, ...]


def changes_of(graph: Graph, tenant: Tenant, tenants: Tenants, kernels: Kernels) -> tuple[Change, ...]:
    """Writes to a tenant's bytes in one replay of a graph, the last one first."""
    found = [
        change
        for node, pointer in graph.pointing_into(tenant.where)
        if (change := _change(graph, node, pointer, tenant, tenants, kernels)) is not None
    ]
    if graph is tenant.graph:
        found += _changes_apart(graph, tenant, tenants, kernels)
    return tuple(sorted(found, key=lambda change: change.node.index, reverse=True))


def _change(
    graph: Graph, node: Node, pointer: Pointer, tenant: Tenant, tenants: Tenants, kernels: Kernels
) -> Change | None:
    if not pointer.may_write:
        return None
    by = tenants.of_pointer(graph, node, pointer)
    written, sure = _written(graph, node, pointer, kernels)
    parts = RangeSet.of(written.intersection(tenant.where))
    return Change(node, parts, None if by is tenant else by, sure) if parts else None


def _changes_apart(graph: Graph, tenant: Tenant, tenants: Tenants, kernels: Kernels) -> Iterator[Change]:
    for other, shift in tenants.apart(tenant):
        for node, pointer in graph.pointing_into(other.where):
            if pointer.may_write and tenants.of_pointer(graph, node, pointer) is other:
                written, sure = _written(graph, node, pointer, kernels)
                parts = RangeSet.of(filter(None, (part.shift(shift).intersect(tenant.where) for part in written)))
                if parts:
                    yield Change(node, parts, other, sure, apart=True)


def _written(graph: Graph, node: Node, pointer: Pointer, kernels: Kernels) -> tuple[RangeSet, bool]:
    """The bytes that a node may write through a pointer, and whether it is known to write them all."""
    known = kernels.get((graph.serial, node.index)) if pointer.access is Access.UNKNOWN else None
    if known is not None:
        return RangeSet.of(known.stores.intersection(pointer.view.hull)), True
    ranges, gaps = extent(pointer.view)
    return ranges, pointer.access is Access.WRITE and not gaps


def uses_of(
    graph: Graph, tenant: Tenant, tenants: Tenants, kernels: Kernels, changes: tuple[Change, ...]
) -> tuple[Use, ...]:
    """The nodes of a graph that take a tenant's bytes as they find them; of those before any write of another tenant,
    the first stands for all."""
    own, found, first = RangeSet(), list[Use](), RangeSet()
    for _, pairs in groupby(graph.pointing_into(tenant.where), key=lambda pair: pair[0].index):
        given = [pair for pair in pairs if tenants.of_pointer(graph, *pair) is tenant]
        for node, pointer in given:
            parts = RangeSet.of(_read(graph, node, pointer, tenant.where, kernels)) - own
            if not parts:
                continue
            before = tuple(each for each in changes if each.node.index < node.index)
            if any(each.by is not None for each in before):
                found.append(Use(node, parts, before))
            elif parts - first:
                first = first | parts
                found.append(Use(node, parts, ()))
        for _, pointer in given:
            for part in _written(graph, node, pointer, kernels)[0] if pointer.may_write else ():
                own.add(part)
    return tuple(found)


def _read(graph: Graph, node: Node, pointer: Pointer, home: ByteRange, kernels: Kernels) -> Iterator[ByteRange]:
    """Bytes that a node is known to read through a pointer, of a kernel those that it loaded and did not store."""
    if pointer.access is Access.UNKNOWN:
        known = kernels.get((graph.serial, node.index))
        read = only_loaded(known, pointer.view.hull) if known is not None else RangeSet()
    else:
        read = extent(pointer.view)[0] if surely_reads(node.launch, pointer) else RangeSet()
    yield from read.intersection(home)


def only_loaded(kernel: Kernel, where: ByteRange) -> RangeSet:
    """The bytes of a range that a kernel loaded and did not store."""
    return RangeSet.of(kernel.loads.intersection(where)) - kernel.stores
