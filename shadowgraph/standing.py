"""The guards that stand now, and which of them known stores hit."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from shadowgraph.tracking.allocator import HostAllocator
from shadowgraph.tracking.guards import Guard, guards_of
from shadowgraph.tracking.ranges import RangeIndex
from shadowgraph.tracking.writes import Write


class StandingGuards:
    """Guards of every tenant, worked out anew when a tenant changes. A tuple stays the same object while it is valid.

    Of most guards only the near part is read at a check, and of some in turn the rest; see `Engine.check`.
    """

    def __init__(self, allocator: HostAllocator, near: int) -> None:
        self._allocator, self._near = allocator, near
        self._version = -1
        self._guards: tuple[Guard, ...] = ()
        self._by_address: RangeIndex[Guard] | None = None

    def now(self) -> tuple[Guard, ...]:
        """All guards."""
        allocator = self._allocator
        if allocator.waiting:
            allocator.enter_waiting()
        if self._version != allocator.tenancies:
            self._version = allocator.tenancies
            tenants = list(allocator.tenants.values())
            self._guards = tuple(guard for buffer in tenants for guard in guards_of(buffer, self._near))
            self._by_address = None
        return self._guards

    def hit(self, writes: Iterable[Write]) -> tuple[Guard, ...]:
        """Guards that known stores hit beyond the near part, to be read in full at this check."""
        chosen: dict[int, Guard] = {}
        for write in writes:
            if write.stores is not None:
                for part in write.ranges:
                    chosen |= {id(guard): guard for guard in self._beyond(part.start, part.stop)}
        return tuple(chosen.values())

    def _beyond(self, start: int, stop: int) -> list[Guard]:
        if self._by_address is None:
            far = [replace(g, near=g.whole) for g in self.now() if g.whole.nbytes > g.near.nbytes]
            self._by_address = RangeIndex((guard.whole, guard) for guard in far)
        return [guard for _, guard in self._by_address.overlapping(start, stop)]
