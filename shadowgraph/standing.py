"""The guards that stand now, and which of them are looked at in full this time."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from shadowgraph.tracking.allocator import HostAllocator
from shadowgraph.tracking.guards import Guard, guards_of
from shadowgraph.tracking.ranges import RangeIndex
from shadowgraph.tracking.writes import Write


class StandingGuards:
    """Guards of every tenant, worked out anew when a tenant changes. A tuple stays the same object while it is valid.

    Of most guards only the near part is read at a check. Read in full are those that a known store hit, one other in
    turn, and all of them when somebody asks.
    """

    def __init__(self, allocator: HostAllocator, near: int) -> None:
        self._allocator, self._near = allocator, near
        self._version = -1
        self._guards: tuple[Guard, ...] = ()
        self._far: tuple[Guard, ...] = ()
        self._by_address: RangeIndex[Guard] | None = None
        self._turn = -1

    def now(self) -> tuple[Guard, ...]:
        """All guards, their near parts to be read."""
        if self._version != self._allocator.tenancies:
            self._version = self._allocator.tenancies
            tenants = list(self._allocator.tenants.values())
            self._guards = tuple(guard for buffer in tenants for guard in guards_of(buffer, self._near))
            self._far = tuple(replace(g, near=g.whole) for g in self._guards if g.whole.nbytes > g.near.nbytes)
            self._by_address = None
        return self._guards

    def in_full(self) -> tuple[Guard, ...]:
        """Those that have a far part, all of it to be read."""
        self.now()
        return self._far

    def in_turn(self, writes: Iterable[Write]) -> tuple[Guard, ...]:
        """Guards to read in full at this check: what the stores of `writes` hit, and one more in turn."""
        if not self.in_full():
            return ()
        self._turn = (self._turn + 1) % len(self._far)
        chosen = {id(self._far[self._turn]): self._far[self._turn]}
        for write in writes:
            if write.stores is not None:
                for part in write.ranges:
                    chosen |= {id(guard): guard for guard in self._hit(part.start, part.stop)}
        return tuple(chosen.values())

    def _hit(self, start: int, stop: int) -> list[Guard]:
        if self._by_address is None:
            self._by_address = RangeIndex((guard.whole, guard) for guard in self._far)
        return [guard for _, guard in self._by_address.overlapping(start, stop)]
