"""Rows of sixteen bytes of a dumped buffer: held bytes, then the bytes that findings saw and expected. Pure data."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from itertools import groupby
from typing import Any, NamedTuple

from shadowgraph.model.ranges import ByteRange, RangeSet
from shadowgraph.views.byte_dump import DumpedBuffer, Mark
from shadowgraph.views.hexview import ROW, decoded

_FOLDED = 2  # equal rows that are shown one by one before the rest is folded

Bytes = dict[int, int]


class Kind(StrEnum):
    """Source of a row's bytes."""

    HELD = "held"  # in the dump
    FOUND = "found"  # as a finding saw it
    EXPECTED = "expected"  # as a finding expected it


class Cell(NamedTuple):
    """A byte; `value` is None where it is unknown."""

    value: int | None
    changed: bool = False
    guard: bool = False


class ByteRow(NamedTuple):
    """Sixteen bytes at `offset` from the buffer's start; `values` in its dtype; `finding` is a finding's id, if any."""

    kind: Kind
    offset: int
    cells: tuple[Cell, ...]
    values: str
    finding: int | None = None


class Gap(NamedTuple):
    """Omitted rows without held bytes."""


class Same(NamedTuple):
    """Omitted rows with the same bytes as the row before, up to the offset `last`."""

    last: int


ByteLine = ByteRow | Gap | Same


def byte_rows(buffer: DumpedBuffer, dtype: str) -> Iterator[ByteLine]:
    """Rows of held bytes, with a gap between rows that are not adjacent and equal rows folded."""
    held = _held(buffer)
    seen = _found(buffer)
    changed = _changed(buffer, held.keys() | seen.keys())
    wanted = {at // ROW for at in held} | {at // ROW for at in changed & seen.keys()}
    before = None
    for same, group in groupby(sorted(wanted), key=_Runs(held, changed)):
        rows = list(group)
        if before is not None and rows[0] != before + 1:
            yield Gap()
        folded = same is not None and len(rows) > _FOLDED + 1
        for row in rows[:_FOLDED] if folded else rows:
            yield from _row(buffer, row * ROW, held, changed, dtype)
        if folded:
            yield Same(rows[-1] * ROW + ROW - 1)
        before = rows[-1]


def _held(buffer: DumpedBuffer) -> Bytes:
    held: Bytes = {}
    for stretch in buffer.stretches:
        held.update(enumerate(stretch.data, stretch.offset))
    return held


def _found(buffer: DumpedBuffer) -> Bytes:
    """Bytes as findings saw them; of several findings on one byte the last counts."""
    return {at: value for mark in buffer.marks for at, value in enumerate(bytes.fromhex(mark.found), mark.window)}


class _Runs:
    """Groups adjacent rows that hold the same sixteen bytes; None for rows with changed or missing bytes."""

    def __init__(self, held: Bytes, changed: set[int]) -> None:
        self._held, self._changed = held, changed
        self._last: tuple[int, tuple[int | None, ...]] | None = None
        self._run = 0

    def __call__(self, row: int) -> int | None:
        places = range(row * ROW, row * ROW + ROW)
        data = tuple(self._held.get(at) for at in places)
        if None in data or not self._changed.isdisjoint(places):
            self._last = None
            self._run += 1
            return None
        if self._last is None or self._last != (row - 1, data):
            self._run += 1
        self._last = row, data
        return self._run


def _row(buffer: DumpedBuffer, start: int, held: Bytes, changed: set[int], dtype: str) -> Iterator[ByteRow]:
    places = range(start, start + ROW)
    cells = tuple(Cell(held.get(at), at in changed, buffer.guarded(at)) for at in places)
    own = {at: held[at] for at in places if at in held and not buffer.guarded(at)}  # values of a canary mean nothing
    yield ByteRow(Kind.HELD, start, cells, _values(own, places, dtype))
    if any(at in changed for at in places):
        for mark in buffer.marks:
            yield from _seen(mark, places, changed, dtype)


def _seen(mark: Mark, places: range, changed: set[int], dtype: str) -> Iterator[ByteRow]:
    """The rows of found and of expected bytes of a finding."""
    for kind, text in ((Kind.FOUND, mark.found), (Kind.EXPECTED, mark.expected)):
        data = dict(enumerate(bytes.fromhex(text), mark.window))
        if any(at in data for at in places):
            cells = tuple(Cell(data.get(at), kind is Kind.FOUND and at in data and at in changed) for at in places)
            values = _values(data, places, dtype) if kind is Kind.FOUND else ""
            yield ByteRow(kind, places.start, cells, values, mark.finding)


def _values(held: Bytes, places: range, dtype: str) -> str:
    """Values of the whole elements of a row, run by run."""
    told = []
    for _, group in groupby((at for at in places if at in held), key=_since(held)):
        run = list(group)
        told.append(decoded(bytes(held[at] for at in run), dtype, run[0]))
    return " .. ".join(filter(None, told))


def _since(held: Bytes) -> Any:
    """A key that changes where a byte is missing."""
    gaps = 0
    last: int | None = None

    def key(at: int) -> int:
        nonlocal gaps, last
        gaps += last is not None and at != last + 1
        last = at
        return gaps

    return key


def _changed(buffer: DumpedBuffer, places: set[int]) -> set[int]:
    """The changed bytes among `places`: bytes that differ in a finding's window, outside of it bytes in its ranges."""
    changed = set()
    for mark in buffer.marks:
        expected, found = bytes.fromhex(mark.expected), bytes.fromhex(mark.found)
        window = range(mark.window, mark.window + len(found))
        changed |= {at for at, old, new in zip(window, expected, found, strict=True) if old != new}
        inside = RangeSet.of(ByteRange(first, last + 1) for first, last in mark.ranges)
        changed |= {at for at in places if at not in window and at in inside}
    return changed
