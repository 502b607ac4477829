"""The standing guards of all tenants, cached as tuples, and a look-up of the guards that known stores hit.

Phase boundaries ask for them at each check, with the allocator's lock held; takes no lock of its own.
"""

from __future__ import annotations

from dataclasses import replace

from shadowgraph.model.buffers import Buffer
from shadowgraph.model.guards import Guard, guards_of
from shadowgraph.model.ranges import RangeIndex
from shadowgraph.tracking.guard_keeper import GuardKeeper
from shadowgraph.tracking.writes import WriteLog

_KNOWN = 8  # graphs that share a pool each leave it with other tenants
_Form = tuple[int, int, int, int, int, bool]  # all that a buffer's guards depend on


class ActiveGuards:
    """Guards of every tenant, recomputed when a tenant changes. A tuple stays the same object while it is valid.

    A check reads only the near part of most guards, and in rotation the rest of some; see `Engine.check`.
    """

    def __init__(self, keeper: GuardKeeper, near: int) -> None:
        self._keeper, self._near = keeper, near
        self._version = self._turns = -1
        self._made: dict[int, tuple[_Form, Buffer, tuple[Guard, ...]]] = {}  # by the buffer's serial
        self._known: list[tuple[list[Buffer], tuple[Guard, ...]]] = []  # the last results, the latest first
        self._guards: tuple[Guard, ...] = ()
        self._by_address: RangeIndex[Guard] | None = None

    def now(self) -> tuple[Guard, ...]:
        """All guards."""
        keeper = self._keeper
        if keeper.waiting:
            keeper.enter_waiting()
        if self._version != keeper.changes or self._turns != keeper.turns:
            self._look(keeper)
        return self._guards

    def _look(self, keeper: GuardKeeper) -> None:
        """Recompute the guards, with a cache: a replay moves blocks from tenant to tenant and ends with the same
        ones."""
        if self._version != keeper.changes:
            self._known.clear()
        self._version, self._turns = keeper.changes, keeper.turns
        tenants = list(keeper.tenants.values())
        found = next((each for each in self._known if each[0] == tenants), None)
        if found is None:
            found = tenants, self._guards_of(tenants)
        else:
            self._known.remove(found)
        self._known = [found, *self._known[: _KNOWN - 1]]
        if self._guards is not found[1]:
            self._guards, self._by_address = found[1], None

    def _guards_of(self, tenants: list[Buffer]) -> tuple[Guard, ...]:
        """The guards of all tenants; those of a tenant whose guards have not moved are the same objects again."""
        before = self._made
        made: dict[int, tuple[_Form, Buffer, tuple[Guard, ...]]] = {}
        for buffer in tenants:
            form = buffer.start, buffer.stop, buffer.head_guard, buffer.tail_guard, buffer.gap, buffer.lent
            known = before.get(buffer.serial)
            if known is None or known[0] != form or known[1] is not buffer:
                known = form, buffer, guards_of(buffer, self._near)
            made[buffer.serial] = known
        self._made = made
        return tuple(guard for _, _, guards in made.values() for guard in guards)

    def hit(self, writes: WriteLog) -> tuple[Guard, ...]:
        """Guards that known stores hit beyond the near part, for a full read at this check."""
        chosen: dict[int, Guard] = {}
        for write in writes.stored():
            for part in write.ranges:
                chosen |= {id(guard): guard for guard in self._beyond(part.start, part.stop)}
        return tuple(chosen.values())

    def _beyond(self, start: int, stop: int) -> list[Guard]:
        if self._by_address is None:
            far = [replace(g, near=g.whole) for g in self.now() if g.whole.nbytes > g.near.nbytes]
            self._by_address = RangeIndex((guard.whole, guard) for guard in far)
        return [guard for _, guard in self._by_address.overlapping(start, stop)]
