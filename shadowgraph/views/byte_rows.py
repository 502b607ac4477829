"""Bytes as rows of sixteen, the one model of hex dumps, byte tables of pages and byte maps. Pure data.

`window_rows` makes the rows of a finding alone; `shadowgraph.views.dumped_rows` those of a dumped buffer, in which a
held row precedes those that findings saw there; `shadowgraph.views.byte_map` one row for each place, from both.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from shadowgraph.model.findings import Finding
from shadowgraph.views.byte_values import decoded_runs

ROW = 16
_WINDOW_ROWS = 4


class Ground(StrEnum):
    """Kinds of memory that a byte belongs to."""

    OWN = "the buffer"
    GUARD = "guard"
    OTHER = "another buffer"
    FREE = "no buffer"


class Fate(StrEnum):
    """Fate of a byte according to a finding."""

    CHANGED = "changed"
    AS_WAS = "as it was"  # between changed bytes, with its value unchanged
    REARMED = "armed again"  # changed, and the guard's canary since
    APART = ""  # outside of every finding


class Kind(StrEnum):
    """Source of a row's values."""

    HELD = "held"  # in the dump
    FOUND = "found"  # as a finding saw them


@dataclass(frozen=True, slots=True)
class ByteCell:
    """One byte at `offset` from the buffer's start; `value` is None where it is not known, `expected` where no finding
    knows the right value.
    """

    offset: int
    value: int | None = None
    expected: int | None = None
    ground: Ground = Ground.OWN
    fate: Fate = Fate.APART

    @property
    def changed(self) -> bool:
        return self.fate is Fate.CHANGED


@dataclass(frozen=True, slots=True)
class ByteRow:
    """Sixteen bytes from `offset` on, a multiple of sixteen.

    Attributes
    ----------
    values, expected
        The values and the expected values of its whole elements, in the buffer's dtype.
    finding
        The id of the finding that saw these bytes, in a row that follows the held bytes of the same place.
    """

    offset: int
    cells: tuple[ByteCell, ...]
    values: str = ""
    expected: str = ""
    kind: Kind = Kind.HELD
    finding: int | None = None

    @property
    def changed(self) -> bool:
        return any(cell.changed for cell in self.cells)

    @property
    def known(self) -> tuple[ByteCell, ...]:
        """The cells with a known value."""
        return tuple(cell for cell in self.cells if cell.value is not None)


def places_of(offset: int) -> range:
    """The offsets of the row that holds a byte."""
    start = offset // ROW * ROW
    return range(start, start + ROW)


def found_row(start: int, found: Mapping[int, ByteCell], dtype: str, finding: int | None = None) -> ByteRow:
    """The row at `start` of bytes that a finding saw; the other bytes of the row are not known."""
    cells = tuple(found.get(at) or ByteCell(at) for at in places_of(start))
    values = decoded_runs([cell.value for cell in cells], dtype, start)
    return ByteRow(start, cells, values, kind=Kind.FOUND, finding=finding)


def window_rows(finding: Finding) -> Iterator[ByteRow]:
    """Up to four rows of the bytes that a finding kept, only rows with changed bytes, in order of address."""
    window, buffer = finding.window, finding.buffer
    if window is None:
        return
    pairs = zip(bytes.fromhex(window.expected), bytes.fromhex(window.found), strict=True)
    found = {
        at: ByteCell(
            at,
            value,
            before,
            Ground.OWN if 0 <= at < buffer.nbytes else Ground.GUARD,
            Fate.CHANGED if value != before else Fate.APART,
        )
        for at, (before, value) in enumerate(pairs, window.offset)
    }
    starts = sorted({at // ROW * ROW for at, cell in found.items() if cell.changed})
    for start in starts[:_WINDOW_ROWS]:
        yield found_row(start, found, buffer.dtype)
