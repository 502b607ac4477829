"""Bytes of buffers as text and JSON: sixteen a row with their values, guards and changed bytes marked."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec
from rich.text import Text

from shadowgraph.common.words import form, plural
from shadowgraph.dumps.schema import Why
from shadowgraph.render.text.shown import Reporter, said
from shadowgraph.views.byte_dump import DumpedBuffer
from shadowgraph.views.byte_rows import ByteCell, ByteRow, Fate, Ground, Kind
from shadowgraph.views.byte_values import decoded
from shadowgraph.views.dumped_rows import ByteLine, Gap, Same, dumped_rows

SCHEMA = "shadowgraph.hexdump/1"
_CHANGED, _GUARD, _REARMED = "*", "|", "+"


class BytesReport(Reporter):
    """Buffers and their dumped bytes. Holds data only.

    Parameters
    ----------
    dtype
        The dtype to decode values as, instead of each buffer's own.
    note
        A line before the buffers; empty for none.
    """

    schema = SCHEMA

    def __init__(self, buffers: Sequence[DumpedBuffer], dtype: str | None = None, note: str = "") -> None:
        self.buffers, self.dtype, self.note = tuple(buffers), dtype, note

    def document(self) -> dict[str, Any]:
        return {"buffers": [self._plain(buffer) for buffer in self.buffers]}

    def lines(self, width: int | None = None) -> Iterator[Text]:
        """Every line; rows have the same width on a terminal and in a pipe."""
        if self.note:
            yield said(self.note, "yellow")
        for place, buffer in enumerate(self.buffers):
            if place:
                yield Text()
            yield from _head(buffer)
            yield from _lines(dumped_rows(buffer, self.dtype or buffer.dtype))
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
    fenced = ", and a fence" if buffer.fence >= 0 else ""
    guards = f"{plural(buffer.head_guard, 'byte')} before, {plural(buffer.tail_guard, 'byte')} after{gap}{fenced}"
    yield said(f"  guards: {guards if buffer.head_guard or buffer.tail_guard else 'none'}")


def _lines(rows: Iterable[ByteLine]) -> Iterator[Text]:
    for row in rows:
        if isinstance(row, Gap):
            yield said(f"  {'...':>9}", "dim")
        elif isinstance(row, Same):
            yield said(f"  {'':>9}  the same to {row.last:+,}", "dim")
        elif row.kind is Kind.HELD:
            yield _held(row)
        else:
            yield _seen(f"#{row.finding} found", row.cells, row.values, "red")
            yield _seen("not", [ByteCell(cell.offset, cell.expected) for cell in row.cells], "", "dim")


def _seen(who: str, row: Iterable[ByteCell], values: str, style: str) -> Text:
    """The bytes that a finding found or expected."""
    cells = "".join(f"{hexadecimal(cell.value)}{_CHANGED if cell.changed else ' '}" for cell in row)
    return Text(f"  {who:>9}  {cells} {values}".rstrip(), style=style)


def _held(row: ByteRow) -> Text:
    line = Text("  ")
    line.append(f"{row.offset:+9,}  ", style="dim")
    for cell in row.cells:
        mark, style = _marked(cell)
        line.append(f"{hexadecimal(cell.value)}{mark}", style=style)
    line.append(f" {row.values}", style="cyan")
    line.rstrip()
    return line


def _marked(cell: ByteCell) -> tuple[str, str]:
    """The sign behind a byte, and the style of both."""
    if cell.changed:
        return _CHANGED, "bold red"
    if cell.fate is Fate.REARMED:
        return _REARMED, "dim"
    return (_GUARD, "dim") if cell.ground is Ground.GUARD else (" ", "")


def hexadecimal(value: int | None) -> str:
    """Two digits, or two dots for a byte that is not known."""
    return ".." if value is None else f"{value:02x}"


def _tail(buffer: DumpedBuffer) -> Iterator[Text]:
    for mark in buffer.marks:
        first, last = mark.ranges[0][0], mark.ranges[-1][1]
        places = f" in {mark.ranges_total:,} places" if mark.ranges_total > 1 else ""
        kept = "" if mark.found else "; what it saw there is not in the dump"
        yield said(f"  #{mark.finding} {mark.code}: bytes {first:,} to {last:,}{places}{kept}", "red")
    for note in byte_notes(buffer):
        yield said(f"  {note}", "yellow")
    if buffer.more:
        yield said(f"  {plural(buffer.more, 'more byte')} in the dump: --start and --count show them")
    if buffer.marks:
        yield said(
            f"  {_CHANGED} a finding says it changed   {_REARMED} so, and armed again since   {_GUARD} guard   "
            ".. not in the dump",
            "dim",
        )


def byte_notes(buffer: DumpedBuffer) -> Iterator[str]:
    """Notes on the bytes: which are older than the rest, and which are missing."""
    if any(stretch.why is Why.SHADOW for stretch in buffer.stretches):
        yield "mirrored: as host memory had them when its graph last began to replay"
    for missing in buffer.missing:
        last = missing.offset + missing.nbytes - 1
        yield f"not in the dump: bytes {missing.offset:,} to {last:,} ({missing.reason})"
    if not buffer.stretches and not buffer.missing:
        yield "the dump holds none of these bytes"
