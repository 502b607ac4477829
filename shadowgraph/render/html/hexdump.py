"""Hex dumps as HTML tables: each row is a few runs of bytes of one kind, so that a page stays small."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby

from shadowgraph.model.findings import Finding
from shadowgraph.render.text.bytes_text import hexadecimal
from shadowgraph.render.text.finding_rows import unlike_what
from shadowgraph.views.byte_rows import ByteCell, Ground, Kind, window_rows
from shadowgraph.views.dumped_rows import ByteLine, Gap, Same

MOST = 64  # rows of one table


@dataclass(frozen=True, slots=True)
class Run:
    """Adjacent bytes of one kind; `css` names the kind."""

    text: str
    css: str


@dataclass(frozen=True, slots=True)
class HexLine:
    """A row of a table; without runs, `note` describes the omitted rows.

    Attributes
    ----------
    css
        ``held``, ``found``, ``expected`` or ``skip``.
    """

    css: str
    offset: str = ""
    label: str = ""
    runs: tuple[Run, ...] = ()
    values: str = ""
    note: str = ""


@dataclass(frozen=True, slots=True)
class HexTable:
    """Rows of one buffer with notes; `all` is the command that shows the omitted rows."""

    caption: str
    lines: tuple[HexLine, ...]
    notes: tuple[str, ...] = ()
    more: int = 0
    all: str = ""


def window_table(finding: Finding) -> HexTable | None:
    """The changed rows of the bytes that a finding itself kept; None where it kept none."""
    rows = list(window_rows(finding))
    return table("bytes as the finding saw them", rows, unlike=unlike_what(finding)) if rows else None


def table(
    caption: str, rows: Iterable[ByteLine], notes: Iterable[str] = (), all: str = "", unlike: str = "was"
) -> HexTable:
    """Rows as a table of at most `MOST` lines; `unlike` is the label of expected bytes."""
    lines = [line for row in rows for line in _lines(row, unlike)]
    return HexTable(caption, tuple(lines[:MOST]), tuple(notes), max(0, len(lines) - MOST), all)


def _lines(row: ByteLine, unlike: str) -> Iterator[HexLine]:
    if isinstance(row, Gap):
        yield HexLine("skip", note="...")
    elif isinstance(row, Same):
        yield HexLine("skip", note=f"the same to {row.last:+,}")
    elif row.kind is Kind.HELD:
        yield HexLine("held", f"{row.offset:+,}", "", tuple(_runs(row.cells, guards=True)), row.values)
    else:
        alone = row.finding is None  # else a held row precedes it, with the same offset and the guards
        offset, label = (f"{row.offset:+,}", "found") if alone else ("", f"#{row.finding} found")
        yield HexLine("found", offset, label, tuple(_runs(row.cells, guards=alone)), row.values)
        before = (ByteCell(cell.offset, cell.expected) for cell in row.cells)
        yield HexLine("expected", "", unlike, tuple(_runs(before, guards=False)))


def _runs(cells: Iterable[ByteCell], guards: bool) -> Iterator[Run]:
    for css, group in groupby(cells, key=lambda cell: _css(cell, guards)):
        yield Run(" ".join(hexadecimal(cell.value) for cell in group), css)


def _css(cell: ByteCell, guards: bool) -> str:
    if cell.value is None:
        return "unknown"
    if cell.changed:
        return "changed"
    return "guard" if guards and cell.ground is Ground.GUARD else ""
