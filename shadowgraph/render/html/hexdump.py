"""Hex dumps as HTML tables: each row is a few runs of bytes of one kind, so that a page stays small."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby

from shadowgraph.model.findings import Finding
from shadowgraph.render.text.finding_rows import unlike_what
from shadowgraph.views.byte_rows import ByteLine, ByteRow, Cell, Gap, Kind, Same
from shadowgraph.views.hexview import ROW, hex_rows

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
    rows = list(_window_rows(finding))
    return table("bytes as the finding saw them", rows, unlike=unlike_what(finding)) if rows else None


def table(
    caption: str, rows: Iterable[ByteLine], notes: Iterable[str] = (), all: str = "", unlike: str = "was"
) -> HexTable:
    """Rows as a table of at most `MOST` lines; `unlike` is the label of expected bytes."""
    lines = [_line(row, unlike) for row in rows]
    return HexTable(caption, tuple(lines[:MOST]), tuple(notes), max(0, len(lines) - MOST), all)


def _window_rows(finding: Finding) -> Iterator[ByteRow]:
    for row in hex_rows(finding):
        start = row.offset // ROW * ROW
        places = range(start, start + ROW)
        found = dict(enumerate(zip(row.found, row.changed, strict=True), row.offset))
        cells = tuple(_cell(at, found.get(at), finding.buffer.nbytes) for at in places)
        yield ByteRow(Kind.FOUND, start, cells, row.values)
        old = dict(enumerate(row.expected, row.offset))
        yield ByteRow(Kind.EXPECTED, start, tuple(Cell(old.get(at)) for at in places), "")


def _cell(at: int, found: tuple[int, bool] | None, nbytes: int) -> Cell:
    value, changed = found or (None, False)
    return Cell(value, changed, guard=not 0 <= at < nbytes)


def _line(row: ByteLine, unlike: str) -> HexLine:
    if isinstance(row, Gap):
        return HexLine("skip", note="...")
    if isinstance(row, Same):
        return HexLine("skip", note=f"the same to {row.last:+,}")
    label = {Kind.HELD: "", Kind.FOUND: "found", Kind.EXPECTED: unlike}[row.kind]
    if row.kind is Kind.FOUND and row.finding is not None:
        label = f"#{row.finding} found"
    again = row.kind is Kind.EXPECTED or row.finding is not None  # same offset as the row above
    offset = "" if again else f"{row.offset:+,}"
    return HexLine(str(row.kind), offset, label, tuple(_runs(row.cells)), row.values)


def _runs(cells: Iterable[Cell]) -> Iterator[Run]:
    for css, group in groupby(cells, key=_css):
        yield Run(" ".join(".." if cell.value is None else f"{cell.value:02x}" for cell in group), css)


def _css(cell: Cell) -> str:
    if cell.value is None:
        return "unknown"
    return "changed" if cell.changed else "guard" if cell.guard else ""
