"""Selection of the ranges that one probed replay compares: damaged bytes, guards, all tracked memory within bounds.

Called by the locator before a replay, under the debugger's lock.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from shadowgraph.model.buffers import Buffer, Ledger
from shadowgraph.model.graphs import Graph
from shadowgraph.model.guards import Guard, Side, guards_of
from shadowgraph.model.ranges import ByteRange, RangeSet
from shadowgraph.tracking.aliases import NameBook
from shadowgraph.tracking.foreign import hold

OTHER_GUARDS = 128
PIECES = 1024  # pieces that a disputed range is cut into
_CUT = 8 * PIECES  # most pieces of one replay
_SMALL = 1 << 20
_INTEGERS = ("int", "uint", "bool")


@dataclass(slots=True)
class Plan:
    """The parts of a probe, each once, and the buffers that they belong to.

    Attributes
    ----------
    buffers
        The buffer that a part consists of, by the part's index.
    left_out
        Buffers left out because there was no room for their copies.
    room
        Bytes still available for copies.
    held
        References that keep foreign memory in place.
    """

    room: int
    parts: list[ByteRange] = field(default_factory=list)
    buffers: dict[int, Buffer] = field(default_factory=dict)
    left_out: list[Buffer] = field(default_factory=list)
    held: list[object] = field(default_factory=list)
    _places: dict[ByteRange, int] = field(default_factory=dict)

    def add(self, where: ByteRange) -> int | None:
        """Add a range; returns its index, or None where there is no room for a copy of it."""
        known = self._places.get(where)
        if known is None and where.nbytes and where.nbytes <= self.room:
            known = self._places[where] = len(self.parts)
            self.parts.append(where)
            self.room -= where.nbytes
        return known

    def add_damaged(self, buffer: Buffer, side: Side | None, damage: Sequence[ByteRange], near: int) -> None:
        """Add the bytes that a finding is about, and the near part of the guard that was broken."""
        for guard in guards_of(buffer, near):
            if guard.side is side:
                self.add(guard.near)
        hull = ByteRange(damage[0].start, damage[-1].stop)
        if self.add(hull) is None:
            for part in damage:
                self.add(part)
        self.held.append(hold(buffer))

    def add_guards(self, guards: Iterable[Guard]) -> None:
        """Add the near parts of guards."""
        for guard in guards:
            self.add(guard.near)

    def add_memory(self, buffers: Iterable[Buffer], names: NameBook) -> None:
        """Add buffers as long as there is room: integers first, then small buffers, then those with a name."""

        def rank(buffer: Buffer) -> tuple[bool, bool, bool, int]:
            plain = not buffer.dtype.startswith(_INTEGERS)
            return plain, buffer.nbytes > _SMALL, not names.owners_of(buffer.range, buffer.serial), buffer.nbytes

        for buffer in sorted(buffers, key=rank):
            kept = hold(buffer)
            if kept is None:
                continue
            place = self.add(buffer.range)
            if place is None:
                self.left_out.append(buffer)
            else:
                self.held.append(kept)
                self.buffers.setdefault(place, buffer)


def nearest(guards: Sequence[Guard], graph: Graph, damage: Sequence[ByteRange]) -> list[Guard]:
    """Up to `OTHER_GUARDS` guards: those of buffers that the graph was given first, then by distance from the
    damage."""
    middle = damage[0].start if damage else 0

    def rank(guard: Guard) -> tuple[bool, int]:
        return not graph.touches(guard.buffer.range), abs(guard.near.start - middle)

    return heapq.nsmallest(OTHER_GUARDS, guards, key=rank)


def tracked(ledger: Ledger, device: str) -> list[Buffer]:
    """Non-empty buffers of a device, none of them inside another."""
    found: list[Buffer] = []
    covered = RangeSet()
    for buffer in sorted(ledger, key=lambda b: (-b.nbytes, b.serial)):
        inside = covered.intersection(buffer.range)
        if buffer.device != device or not buffer.nbytes or inside == [buffer.range]:
            continue
        covered.add(buffer.range)
        found.append(buffer)
    return found


def cut(disputed: Sequence[tuple[Buffer, ByteRange]]) -> Iterator[tuple[Buffer, ByteRange]]:
    """Disputed ranges in pieces, as fine as there is room for among all of them; of too many ranges only the first."""
    most = min(PIECES, max(1, _CUT // max(1, len(disputed))))
    for buffer, where in disputed[:_CUT]:
        for part in pieces(where, most):
            yield buffer, part


def pieces(where: ByteRange, most: int = PIECES) -> list[ByteRange]:
    """A range cut into equal pieces, of one byte at least."""
    size = max(1, -(-where.nbytes // most))
    return [ByteRange(at, min(at + size, where.stop)) for at in range(where.start, where.stop, size)]
