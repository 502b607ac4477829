"""Tables and tiles of the status pages as data. The templates are `status.html` and `memory.html`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Link:
    """A cell that leads to another page; `href` is relative to the table's page."""

    text: str
    href: str

    def __str__(self) -> str:
        return self.text


Cell = str | int | float | Link
Row = tuple[Cell, ...]


@dataclass(frozen=True, slots=True)
class Tile:
    """One number; `tone` is good, bad, warn or empty."""

    id: str
    label: str
    value: str
    tone: str = ""


@dataclass(frozen=True, slots=True)
class Table:
    """A table; columns of numbers are right-aligned, the last column takes the remaining width.

    Attributes
    ----------
    left_out
        Number of further rows.
    """

    id: str
    headings: tuple[str, ...]
    rows: tuple[Row, ...]
    left_out: int = 0

    @classmethod
    def of(cls, id: str, headings: Sequence[str], rows: Iterable[Row], left_out: int = 0) -> Table:
        """A table of rows that are made one by one."""
        return cls(id, tuple(headings), tuple(rows), left_out)

    @property
    def numbers(self) -> set[int]:
        """Columns of numbers, by the first row."""
        return {at for row in self.rows[:1] for at, cell in enumerate(row) if isinstance(cell, (int, float))}
