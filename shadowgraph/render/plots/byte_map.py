"""Drawing of a byte map: sixteen bytes a row around damage, with the owner of each byte, changed and expected values.

Gids: ``bytes:own``, ``bytes:guard``, ``bytes:other``, ``bytes:free`` for bytes of each kind, ``changed`` and
``as was`` for the bytes of a finding, ``edges`` for boundaries of buffers, guards and owners.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from shadowgraph.common.errors import UsageError
from shadowgraph.common.words import plural, size
from shadowgraph.render.plots.heads import HEAD, Entry, blank_page, draw_head
from shadowgraph.render.plots.page import MARGIN, WIDTH
from shadowgraph.render.plots.pen import (
    BLACK,
    FAINT,
    GREEN,
    GREY,
    GUARD_HATCH,
    PALE,
    SKY,
    VERMILLION,
    YELLOW,
    Box,
    Pen,
    drawable,
)
from shadowgraph.render.plots.saving import format_of, save_figure
from shadowgraph.views.byte_map import ByteEdge, ByteFold, ByteMap, folded
from shadowgraph.views.byte_rows import ROW, ByteCell, ByteRow, Fate, Ground
from shadowgraph.views.map_rows import MOST_ROWS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_OFFSETS = (MARGIN, 1.15)
_CELL = 0.335
_LEFT = 1.3
_RIGHT = _LEFT + ROW * _CELL
_VALUES = (_RIGHT + 0.15, 9.9)
_EDGES = (10.05, WIDTH - MARGIN)
_ROW, _BEFORE, _FOLD = 0.25, 0.17, 0.22  # a row, the expected values below it, a fold
_COLORS = {Ground.OWN: SKY, Ground.GUARD: "white", Ground.OTHER: GREEN, Ground.FREE: PALE}
_GIDS = {Ground.OWN: "own", Ground.GUARD: "guard", Ground.OTHER: "other", Ground.FREE: "free"}


def byte_map(map: ByteMap, *, limit: int = 40, title: str | None = None) -> Figure:
    """Draw a byte map.

    Parameters
    ----------
    map
        The map to draw.
    limit
        Rows that are drawn, 1 to 200: rows where changed bytes begin and end, and their neighbours.
    title
        First line, instead of "Bytes of" and the buffer's name.

    Returns
    -------
    matplotlib.figure.Figure
        Owned by the caller, on no display; lengths are in inches, ``axes[0]`` spans the page with y downward.

    Raises
    ------
    UsageError
        For a limit out of range.
    MissingPackageError
        When matplotlib is not installed.
    """
    if not 1 <= limit <= MOST_ROWS:
        raise UsageError(f"limit must be from 1 to {MOST_ROWS}, not {limit}")
    title = title or f"Bytes of {map.name}"
    rows = folded(map.rows, limit)
    if not rows:
        return blank_page(title, f"{map.form}: it has no bytes").figure
    pen = Pen(WIDTH, HEAD + 0.3 + sum(map_height(row) for row in rows) + MARGIN)
    draw_head(pen, title, _counts(map), _legend(map))
    _headings(pen, map, HEAD + 0.15)
    _Drawing(pen, map).rows(rows, HEAD + 0.3)
    return pen.figure


def save_byte_map(map: ByteMap, path: str | os.PathLike[str], *, limit: int = 40, title: str | None = None) -> Path:
    """Draw a byte map into a file, atomically.

    Parameters
    ----------
    map
        The map to draw.
    path
        The suffix png, svg or pdf selects the format.
    limit
        Rows at most; the rest is folded.
    title
        Above the drawing; by default the kind of map and its subject.

    Returns
    -------
    Path
        The file.

    Raises
    ------
    UsageError
        For a suffix that is no picture format.
    MissingFileError
        When the file cannot be written.
    MissingPackageError
        When matplotlib is not installed.
    """
    format_of(path)
    return save_figure(byte_map(map, limit=limit, title=title), path)


def map_height(row: ByteRow | ByteFold) -> float:
    """Height of a row in inches."""
    if isinstance(row, ByteFold):
        return _FOLD
    return _ROW + (_BEFORE if _before(row) else 0.0)


def _before(row: ByteRow) -> bool:
    return any(cell.changed and cell.expected is not None for cell in row.cells)


def _counts(map: ByteMap) -> str:
    changed = sum(cell.changed for row in map.rows for cell in row.cells)
    parts = [f"{map.form}, {size(map.nbytes)} at {map.address:#x}"]
    parts += [f"#{number} {code}" for number, code in map.findings[:4]]
    parts += [f"and {plural(len(map.findings) - 4, 'more finding')}"] if len(map.findings) > 4 else []
    parts.append(f"{plural(changed, 'changed byte')} shown" if changed else "no changed bytes")
    if map.missing:
        parts.append(f"{plural(map.missing, 'byte')} not in the dump")
    return "; ".join(parts)


def _legend(map: ByteMap) -> list[Entry]:
    cells = [cell for row in map.rows for cell in row.cells]
    grounds, fates = {cell.ground for cell in cells}, {cell.fate for cell in cells}
    entries = [Entry(VERMILLION, "changed (below: what was there)")] if Fate.CHANGED in fates else []
    entries += [Entry(YELLOW, "among them, as it was")] if Fate.AS_WAS in fates else []
    for ground in Ground:
        if ground in grounds:
            hatch = GUARD_HATCH if ground is Ground.GUARD else None
            entries.append(Entry(_COLORS[ground], ground.value, edge=GREY, hatch=hatch))
    return entries


def _headings(pen: Pen, map: ByteMap, y: float) -> None:
    pen.text(_OFFSETS[1], y, "offset", size=7.5, color=GREY, align="right")
    for place in range(ROW):
        pen.text(_LEFT + (place + 0.5) * _CELL, y, f"+{place}", size=6.5, color=GREY, align="center")
    pen.text(_VALUES[0], y, f"values as {map.dtype}", size=7.5, color=GREY)
    pen.text(_EDGES[0], y, "in this row", size=7.5, color=GREY)


class _Drawing:
    """Collects boxes by style, so that each style is one artist."""

    def __init__(self, pen: Pen, map: ByteMap) -> None:
        self.pen = pen
        self.grounds: dict[Ground, list[Box]] = defaultdict(list)
        self.fates: dict[Fate, list[Box]] = defaultdict(list)
        self.edges: Mapping[int, list[ByteEdge]] = defaultdict(list)
        for edge in map.edges:
            self.edges[edge.offset // ROW * ROW].append(edge)

    def rows(self, rows: Sequence[ByteRow | ByteFold], top: float) -> None:
        bars = []
        for row in rows:
            if isinstance(row, ByteFold):
                self._fold(row, top)
            else:
                self._row(row, top)
                bars += [self._bar(edge, row.offset, top) for edge in self.edges.get(row.offset, ())]
            top += map_height(row)
        for ground, boxes in self.grounds.items():
            hatch = GUARD_HATCH if ground is Ground.GUARD else None
            look = {"edge": FAINT, "hatch": hatch, "width": 0.4, "order": 0.8}
            self.pen.boxes(boxes, _COLORS[ground], gid=f"bytes:{_GIDS[ground]}", **look)  # type: ignore[arg-type]
        for fate, color in ((Fate.CHANGED, VERMILLION), (Fate.AS_WAS, YELLOW)):
            if self.fates[fate]:
                gid = "changed" if fate is Fate.CHANGED else "as was"
                self.pen.boxes(self.fates[fate], color, edge=BLACK, width=0.5, gid=gid, order=1.0)
        if bars:
            self.pen.lines(bars, BLACK, width=2.0, gid="edges", order=2.0)

    def _bar(self, edge: ByteEdge, offset: int, top: float) -> tuple[tuple[float, float], tuple[float, float]]:
        x = _LEFT + (edge.offset - offset) * _CELL
        return (x, top), (x, top + _ROW)

    def _row(self, row: ByteRow, top: float) -> None:
        pen, y = self.pen, top + _ROW / 2
        pen.text(_OFFSETS[1], y, f"{row.offset:+,}", size=7.5, mono=True, color=GREY, align="right")
        for place, cell in enumerate(row.cells):
            self._cell(cell, _LEFT + place * _CELL, top)
        pen.text(_VALUES[0], y, row.values, size=7.5, mono=True, bold=row.changed, room=_VALUES[1] - _VALUES[0])
        if _before(row):
            below = top + _ROW + _BEFORE / 2 - 0.01
            pen.text(_OFFSETS[1], below, "was", size=6.5, color=GREY, align="right")
            room = _VALUES[1] - _VALUES[0]
            pen.text(_VALUES[0], below, row.expected, size=6.5, mono=True, color=GREY, room=room)
        pen.text(_EDGES[0], y, self._edges_said(row.offset), size=7, room=_EDGES[1] - _EDGES[0])

    def _edges_said(self, offset: int) -> str:
        """Boundaries inside a row as text; the first one and a count where there is no room for all."""
        texts = [edge.text for edge in self.edges.get(offset, ())]
        said = "; ".join(texts)
        for kept in range(len(texts) - 1, 0, -1):
            if self.pen.measure(drawable(said), size=7) <= _EDGES[1] - _EDGES[0]:
                break
            said = f"{'; '.join(texts[:kept])}; {len(texts) - kept} more"
        return said

    def _cell(self, cell: ByteCell, left: float, top: float) -> None:
        box = (left, top + 0.015, left + _CELL, top + _ROW - 0.015)
        (self.grounds[cell.ground] if cell.fate is Fate.APART else self.fates[cell.fate]).append(box)
        text = f"{cell.value:02x}" if cell.value is not None else ".."
        changed = cell.changed
        guard = cell.ground is Ground.GUARD and not changed
        x = left + _CELL / 2
        color = GREY if guard or cell.value is None else BLACK
        self.pen.text(x, top + _ROW / 2, text, size=7.5, mono=True, bold=changed, color=color, align="center")
        if changed and cell.expected is not None:
            below = top + _ROW + _BEFORE / 2 - 0.01
            self.pen.text(x, below, f"{cell.expected:02x}", size=6.5, mono=True, color=GREY, align="center")

    def _fold(self, fold: ByteFold, top: float) -> None:
        y, nbytes = top + _FOLD / 2, fold.stop - fold.offset
        text = f"… {plural(nbytes, 'more byte')} from {fold.offset:+,} on"
        text += f", {fold.changed:,} of them changed" if fold.changed else ""
        gid = f"fold:{fold.offset}:{fold.stop}"
        self.pen.text(_LEFT, y, text, size=7.5, color=BLACK if fold.changed else GREY, bold=bool(fold.changed), gid=gid)
