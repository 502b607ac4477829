"""Bytes of buffers as text and JSON: sixteen a row with their values, guards and changed bytes marked."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

import msgspec
from rich.text import Text

from shadowgraph.dumps.schema import Why
from shadowgraph.reports.byte_dump import DumpedBuffer, Mark
from shadowgraph.reports.hexview import ROW, decoded
from shadowgraph.reports.shown import Reporter, said
from shadowgraph.reports.verdicts import form, plural
from shadowgraph.tracking.ranges import ByteRange, RangeSet

SCHEMA = "shadowgraph.hexdump/1"
_CHANGED, _GUARD = "*", "|"
_FOLDED = 2  # rows of the same bytes that are still shown one by one

Bytes = dict[int, int]


class BytesReport(Reporter):
    """Buffers and the bytes that a dump holds of them. Holds data only.

    Parameters
    ----------
    dtype
        What to decode values as, instead of each buffer's own.
    """

    schema = SCHEMA

    def __init__(self, buffers: Sequence[DumpedBuffer], dtype: str | None = None) -> None:
        self.buffers, self.dtype = tuple(buffers), dtype

    def document(self) -> dict[str, Any]:
        return {"buffers": [self._plain(buffer) for buffer in self.buffers]}

    def lines(self, width: int | None = None) -> Iterator[Text]:
        """Every line; rows have one width everywhere."""
        for place, buffer in enumerate(self.buffers):
            if place:
                yield Text()
            yield from _head(buffer)
            yield from _rows(buffer, self.dtype or buffer.dtype)
            yield from _tail(buffer)

    def _plain(self, buffer: DumpedBuffer) -> dict[str, Any]:
        """The buffer's facts, each stretch with its values."""
        dtype = self.dtype or buffer.dtype
        plain: dict[str, Any] = msgspec.to_builtins(buffer)
        for stretch, made in zip(buffer.stretches, plain["stretches"], strict=True):
            made["values"] = decoded(stretch.data, dtype, stretch.offset).split()
        return {**plain, "decoded_as": dtype}


def _head(buffer: DumpedBuffer) -> Iterator[Text]:
    fate = "" if buffer.alive else ", freed"
    yield said(
        f"{buffer.name}  {form(buffer.dtype, buffer.shape)}  {plural(buffer.nbytes, 'byte')} at {buffer.address:#x}, "
        f"{buffer.role}, allocation {buffer.serial} of process {buffer.pid}{fate}",
        "bold",
    )
    gap = f", {plural(buffer.gap, 'byte')} after its end" if buffer.gap and buffer.tail_guard else ""
    guards = f"{plural(buffer.head_guard, 'byte')} before, {plural(buffer.tail_guard, 'byte')} after{gap}"
    yield said(f"  guards: {guards if buffer.head_guard or buffer.tail_guard else 'none'}")


def _rows(buffer: DumpedBuffer, dtype: str) -> Iterator[Text]:
    """Rows of what is held, a line between those that do not follow each other, equal ones folded."""
    held: Bytes = {}
    for stretch in buffer.stretches:
        held.update(enumerate(stretch.data, stretch.offset))
    seen = {at: value for mark in buffer.marks for at, value in enumerate(bytes.fromhex(mark.found), mark.window)}
    changed = _changed(buffer, held.keys() | seen.keys())
    wanted = {at // ROW for at in held} | {at // ROW for at in changed & seen.keys()}
    before = None
    for same, group in groupby(sorted(wanted), key=_Runs(held, changed)):
        rows = list(group)
        if before is not None and rows[0] != before + 1:
            yield said(f"  {'...':>9}", "dim")
        folded = same is not None and len(rows) > _FOLDED + 1
        for row in rows[:_FOLDED] if folded else rows:
            yield from _row(buffer, row * ROW, held, changed, dtype)
        if folded:
            yield said(f"  {'':>9}  the same to {rows[-1] * ROW + ROW - 1:+,}", "dim")
        before = rows[-1]


class _Runs:
    """Groups rows that hold the same sixteen bytes and follow each other; None for rows with something to see."""

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


def _row(buffer: DumpedBuffer, start: int, held: Bytes, changed: set[int], dtype: str) -> Iterator[Text]:
    places = range(start, start + ROW)
    line = Text("  ")
    line.append(f"{start:+9,}  ", style="dim")
    for at in places:
        guard = buffer.guarded(at)
        mark, style = (_CHANGED, "bold red") if at in changed else (_GUARD, "dim") if guard else (" ", "")
        line.append(f"{held[at]:02x}{mark}" if at in held else f"..{mark}", style=style)
    own = {at: held[at] for at in places if at in held and not buffer.guarded(at)}  # a canary's values say nothing
    line.append(f" {_values(own, places, dtype)}", style="cyan")
    line.rstrip()
    yield line
    if any(at in changed for at in places):
        for number in buffer.marks:
            yield from _seen(number, places, dtype)


def _seen(mark: Mark, places: range, dtype: str) -> Iterator[Text]:
    """What a finding saw in a row, and what it expected there."""
    for label, text, style in (("found", mark.found, "red"), ("not", mark.expected, "dim")):
        data = dict(enumerate(bytes.fromhex(text), mark.window))
        if any(at in data for at in places):
            who = f"#{mark.finding} {label}" if label == "found" else label
            cells = "".join(f"{data[at]:02x} " if at in data else ".. " for at in places)
            values = _values(data, places, dtype) if label == "found" else ""
            yield Text(f"  {who:>9}  {cells} {values}".rstrip(), style=style)


def _values(held: Bytes, places: range, dtype: str) -> str:
    """Values of the whole elements of a row, stretch by stretch."""
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
    """Which of some bytes changed: those that differ in a finding's window, beyond it those in its ranges."""
    changed = set()
    for mark in buffer.marks:
        expected, found = bytes.fromhex(mark.expected), bytes.fromhex(mark.found)
        window = range(mark.window, mark.window + len(found))
        changed |= {at for at, old, new in zip(window, expected, found, strict=True) if old != new}
        inside = RangeSet.of(ByteRange(first, last + 1) for first, last in mark.ranges)
        changed |= {at for at in places if at not in window and at in inside}
    return changed


def _tail(buffer: DumpedBuffer) -> Iterator[Text]:
    for mark in buffer.marks:
        first, last = mark.ranges[0][0], mark.ranges[-1][1]
        places = f" in {mark.ranges_total:,} places" if mark.ranges_total > 1 else ""
        kept = "" if mark.found else "; what it saw there is not in the dump"
        yield said(f"  #{mark.finding} {mark.code}: bytes {first:,} to {last:,}{places}{kept}", "red")
    mirrored = [stretch for stretch in buffer.stretches if stretch.why is Why.SHADOW]
    if mirrored:
        yield said("  mirrored: as host memory had them when its graph last began to replay", "yellow")
    for missing in buffer.missing:
        last = missing.offset + missing.nbytes - 1
        yield said(f"  not in the dump: bytes {missing.offset:,} to {last:,} ({missing.reason})", "yellow")
    if not buffer.stretches and not buffer.missing:
        yield said("  the dump holds none of these bytes", "yellow")
    if buffer.more:
        yield said(f"  {plural(buffer.more, 'more byte')} in the dump: --start and --count show them")
    if buffer.marks:
        yield said(f"  {_CHANGED} a finding says it changed   {_GUARD} guard   .. not in the dump", "dim")
