"""Rows of sixteen bytes of a dumped buffer: held bytes, then the bytes that findings saw there. Pure data.
Used by `shadowgraph hexdump` and by the byte tables of HTML pages.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby

from shadowgraph.model.ranges import ByteRange, RangeSet
from shadowgraph.views.byte_dump import DumpedBuffer, Mark
from shadowgraph.views.byte_rows import ROW, ByteCell, ByteRow, Fate, Ground, found_row, places_of
from shadowgraph.views.byte_values import decoded_runs

_FOLDED = 2  # equal rows that are shown one by one before the rest is folded

Bytes = dict[int, int]


@dataclass(frozen=True, slots=True)
class Gap:
    """Omitted rows without held bytes."""


@dataclass(frozen=True, slots=True)
class Same:
    """Omitted rows with the same bytes as the row before, up to the offset `last`."""

    last: int


ByteLine = ByteRow | Gap | Same


def dumped_rows(buffer: DumpedBuffer, dtype: str) -> Iterator[ByteLine]:
    """Rows of held bytes, with a gap between rows that are not adjacent and equal rows folded."""
    held = held_bytes(buffer)
    seen = {at for mark in buffer.marks for at in seen_bytes(mark)}
    changed = _changed_bytes(buffer.marks, held.keys() | seen)
    rearmed = _rearmed_bytes(buffer, held, changed)
    wanted = {at // ROW for at in held} | {at // ROW for at in changed & seen}
    before = None
    for same, group in groupby(sorted(wanted), key=_Runs(held, changed)):
        rows = list(group)
        if before is not None and rows[0] != before + 1:
            yield Gap()
        folded = same is not None and len(rows) > _FOLDED + 1
        for row in rows[:_FOLDED] if folded else rows:
            yield from _rows_at(buffer, row * ROW, held, changed, rearmed, dtype)
        if folded:
            yield Same(rows[-1] * ROW + ROW - 1)
        before = rows[-1]


def held_bytes(buffer: DumpedBuffer) -> Bytes:
    """The bytes that the dump holds, by offset."""
    held: Bytes = {}
    for stretch in buffer.stretches:
        held.update(enumerate(stretch.data, stretch.offset))
    return held


def seen_bytes(mark: Mark) -> dict[int, tuple[int, int]]:
    """The found and the expected value of each byte that a finding kept, by offset."""
    pairs = zip(bytes.fromhex(mark.found), bytes.fromhex(mark.expected), strict=True)
    return dict(enumerate(pairs, mark.window))


class _Runs:
    """Groups adjacent rows that hold the same sixteen bytes; None for rows with changed or missing bytes."""

    def __init__(self, held: Bytes, changed: set[int]) -> None:
        self._held, self._changed = held, changed
        self._last: tuple[int, tuple[int | None, ...]] | None = None
        self._run = 0

    def __call__(self, row: int) -> int | None:
        places = places_of(row * ROW)
        data = tuple(self._held.get(at) for at in places)
        if None in data or not self._changed.isdisjoint(places):
            self._last = None
            self._run += 1
            return None
        if self._last is None or self._last != (row - 1, data):
            self._run += 1
        self._last = row, data
        return self._run


def _rows_at(
    buffer: DumpedBuffer, start: int, held: Bytes, changed: set[int], rearmed: set[int], dtype: str
) -> Iterator[ByteRow]:
    places = places_of(start)
    cells = tuple(_cell(buffer, at, held.get(at), None, changed, rearmed) for at in places)
    own = [None if cell.ground is Ground.GUARD else cell.value for cell in cells]  # values of a canary mean nothing
    yield ByteRow(start, cells, decoded_runs(own, dtype, start))
    if changed.isdisjoint(places):
        return
    for mark in buffer.marks:
        seen = seen_bytes(mark)
        found = {at: _cell(buffer, at, *seen[at], changed) for at in places if at in seen}
        if found:
            yield found_row(start, found, dtype, mark.finding)


def _cell(
    buffer: DumpedBuffer,
    at: int,
    value: int | None,
    expected: int | None,
    changed: set[int],
    rearmed: Container[int] = (),
) -> ByteCell:
    fate = Fate.REARMED if at in rearmed else Fate.CHANGED if at in changed else Fate.APART
    return ByteCell(at, value, expected, buffer.ground(at), fate)


def _changed_bytes(marks: Iterable[Mark], places: Iterable[int]) -> set[int]:
    """The changed bytes: bytes that differ in what a finding kept; among the other `places`, bytes in its ranges."""
    changed: set[int] = set()
    for mark in marks:
        seen = seen_bytes(mark)
        changed |= {at for at, (found, expected) in seen.items() if found != expected}
        inside = RangeSet.of(ByteRange(first, last + 1) for first, last in mark.ranges)
        changed |= {at for at in places if at not in seen and at in inside}
    return changed


def _rearmed_bytes(buffer: DumpedBuffer, held: Bytes, changed: set[int]) -> set[int]:
    """The changed bytes of guards that hold their canary again: guards are armed again after a finding, whole. Bytes
    beyond those that a finding kept are judged by the bytes that it kept.
    """
    rearmed: set[int] = set()
    for mark in buffer.marks:
        seen = seen_bytes(mark)
        guards = {at for at in changed & held.keys() if buffer.ground(at) is Ground.GUARD}
        again = {at for at in guards & seen.keys() if held[at] == seen[at][1]}
        rearmed |= again
        if again and again == guards & seen.keys():
            inside = RangeSet.of(ByteRange(first, last + 1) for first, last in mark.ranges)
            rearmed |= {at for at in guards - seen.keys() if at in inside}
    return rearmed
