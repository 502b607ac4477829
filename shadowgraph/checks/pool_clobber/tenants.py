"""The tensors that captures allocated from their pools, and which of them a pointer of a node belongs to.

Several tensors, of one graph or of several, have the same bytes in turn: each is a *tenant* of them. Used by the check,
under the debugger's lock, but for `Tenants.enter` at the end of a capture on the host; it has a lock of its own.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence

from shadowgraph.common.fork_safety import fork_safe
from shadowgraph.model.graphs import Access, Allocation, Graph, Node, Pointer
from shadowgraph.model.launches import RESULT
from shadowgraph.model.ranges import ByteRange, RangeIndex, RangeSet


class Tenant:
    """One allocation of a capture.

    Attributes
    ----------
    final
        Whether no later tensor of its own capture got bytes of it.
    """

    __slots__ = ("final", "graph", "made")

    def __init__(self, graph: Graph, made: Allocation, final: bool) -> None:
        self.graph, self.made, self.final = graph, made, final

    @property
    def where(self) -> ByteRange:
        """Its bytes."""
        return self.made.where

    @property
    def age(self) -> tuple[int, int]:
        """What orders tenants by their allocation."""
        return self.made.serial, self.made.before

    @property
    def place(self) -> int:
        """Where it would begin if its capture had kept no freed memory from reuse."""
        buffer = self.made.buffer
        return buffer.place if buffer is not None and buffer.place >= 0 else self.where.start


class Tenants:
    """All tenants of the captured graphs, by address."""

    def __init__(self) -> None:
        self._lock = fork_safe(threading.RLock())
        self._index: RangeIndex[Tenant] = RangeIndex()
        self._handles: dict[int, list[int]] = {}  # by graph
        self._own: dict[int, dict[int, list[Tenant]]] = {}  # by graph and first address, oldest first
        self._covered: tuple[RangeSet, RangeSet] | None = None
        self._entered: set[int] = set()  # serials of graphs
        self._moved: dict[int, list[Tenant]] = {}  # of a graph: those of which some would lie elsewhere, see `apart`

    def enter(self, graph: Graph) -> list[ByteRange]:
        """Enter a graph's tenants; returns the bytes in which a tensor that may be alive shares memory with tenants of
        another graph."""
        with self._lock:
            self._entered.add(graph.serial)
            tenants, shared = _tenants_of(graph), list[ByteRange]()
            covered, final = self._covered_before()
            for tenant in tenants:
                if covered.overlaps(tenant.where):
                    shared += final.intersection(tenant.where)
                    if tenant.final:
                        shared.append(tenant.where)
            own = self._own[graph.serial] = {}
            for tenant in tenants:
                own.setdefault(tenant.where.start, []).append(tenant)
            if any(tenant.place != tenant.where.start for tenant in tenants):
                self._moved[graph.serial] = tenants
            self._handles[graph.serial] = [self._index.add(tenant.where, tenant) for tenant in tenants]
            for tenant in tenants:
                covered.add(tenant.where)
                if tenant.final:
                    final.add(tenant.where)
            return shared

    def _covered_before(self) -> tuple[RangeSet, RangeSet]:
        """The bytes of all tenants entered, and of the final ones."""
        if self._covered is None:
            known = [tenant for _, tenant in self._index]
            finals = RangeSet.of(tenant.where for tenant in known if tenant.final)
            self._covered = RangeSet.of(tenant.where for tenant in known), finals
        return self._covered

    def drop(self, serial: int) -> None:
        """A graph is gone."""
        with self._lock:
            for handle in self._handles.pop(serial, ()):
                self._index.remove(handle)
                self._covered = None
            self._entered.discard(serial)
            self._own.pop(serial, None)
            self._moved.pop(serial, None)

    def entered(self) -> list[int]:
        """Serials of the graphs entered."""
        return list(self._entered)

    def at(self, where: ByteRange) -> list[Tenant]:
        """Tenants with bytes of a range, oldest first."""
        with self._lock:
            return sorted(self._overlapping(where), key=lambda tenant: tenant.age)

    def newest(self, address: int, until: int) -> Tenant | None:
        """The last tenant of a byte among those allocated up to a serial of the ledger."""
        found = [tenant for tenant in self.at(ByteRange(address, address + 1)) if tenant.made.serial <= until]
        return found[-1] if found else None

    def of_pointer(self, graph: Graph, node: Node, pointer: Pointer) -> Tenant | None:
        """The tenant that a node was given; None where its memory is not known to be a pool's."""
        start = pointer.view.storage_address
        sight = graph.borrowed.get((node.index, start)) if not _is_result(pointer) else None
        if sight is not None:
            return self.newest(start, sight)
        own = self._own_at(graph, node, pointer)
        if own is not None:
            return own
        found = [each for each in self.at(ByteRange(start, start + 1)) if each.made.serial <= graph.ended]
        return next((each for each in reversed(found) if each.graph is not graph), None)

    def _own_at(self, graph: Graph, node: Node, pointer: Pointer) -> Tenant | None:
        """The graph's own tenant that a node was given at the beginning of a pointer's storage."""
        own = self._own.get(graph.serial, {}).get(pointer.view.storage_address)
        if own is None:
            return None
        until = node.index if _is_result(pointer) or not _makes(node, own[0].where.start) else node.index - 1
        return next((each for each in reversed(own) if each.made.before <= until), None)

    def given(self, graph: Graph) -> list[Tenant]:
        """Tenants of other graphs that a graph was given pointers into, or its own by a storage that owns nothing."""
        found: dict[int, Tenant] = {}
        if len(self._entered) < 2 and not graph.borrowed:
            return []
        looked: set[int] = set()
        for node, pointer in graph.pointers():
            start = pointer.view.storage_address
            if (node.index, start) not in graph.borrowed:
                if start in looked or self._own_at(graph, node, pointer) is not None:
                    continue
                looked.add(start)
            tenant = self.of_pointer(graph, node, pointer)
            if tenant is not None:
                found[id(tenant)] = tenant
        return list(found.values())

    def apart(self, tenant: Tenant) -> Iterator[tuple[Tenant, int]]:
        """Tenants of the same capture that would share bytes with a tenant if freed memory were reused at once (layout
        ``isolate``), and how far their bytes lie from there, in the tenant's own addresses."""
        start, nbytes = tenant.place, tenant.where.nbytes
        for other in self._moved.get(tenant.graph.serial, ()):
            shift = other.place - start + tenant.where.start - other.where.start
            moved = other.where.shift(shift)
            if other is not tenant and shift and moved.overlaps(tenant.where) and nbytes:
                yield other, shift

    def shares(self, tenant: Tenant) -> bool:
        """Whether any other tenant has, or would have, bytes of it."""
        return len(self.at(tenant.where)) > 1 or next(self.apart(tenant), None) is not None

    def _overlapping(self, where: ByteRange) -> list[Tenant]:
        return [tenant for _, tenant in self._index.overlapping(where.start, where.stop)]


def _is_result(pointer: Pointer) -> bool:
    return pointer.access is Access.WRITE and pointer.argument.startswith(RESULT)


def _makes(node: Node, start: int) -> bool:
    """Whether a node returned a new tensor at an address: what it was given there was another one before."""
    return any(_is_result(each) and each.view.storage_address == start for each in node.launch.pointers)


def _tenants_of(graph: Graph) -> list[Tenant]:
    taken, found = RangeSet(), list[Tenant]()
    for made in reversed(graph.allocations):
        if made.where.nbytes:
            found.append(Tenant(graph, made, not taken.overlaps(made.where)))
            taken.add(made.where)
    return found[::-1]


def matching(tenants: Sequence[Tenant], storage: tuple[int, int]) -> Tenant | None:
    """The only one of the tenants that a storage without a known beginning fits: one of its address and size."""
    exact = [each for each in tenants if (each.where.start, each.where.nbytes) == storage]
    found = exact or tenants
    return found[0] if len(found) == 1 else None
