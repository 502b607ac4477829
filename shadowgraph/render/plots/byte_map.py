"""Drawing of a byte map: sixteen bytes a row around damage, with the owner of each byte, changed and expected values.

Gids: ``bytes:own``, ``bytes:guard``, ``bytes:other``, ``bytes:free`` for bytes of each kind, ``changed`` and
``as was`` for the bytes of a finding, ``edges`` for boundaries of buffers, guards and owners.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from shadowgraph.common.words import plural, size
from shadowgraph.render.plots.page import MARGIN, WIDTH
from shadowgraph.render.plots.panel_page import Entry, Panel, PanelPage, blank_page
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
from shadowgraph.render.plots.saving import save_map
from shadowgraph.views.byte_map import ByteEdge, ByteFold, ByteMap, folded
from shadowgraph.views.byte_rows import ROW, ByteCell, ByteRow, Fate, Ground
from shadowgraph.views.map_rows import require_limit

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_OFFSETS = (MARGIN, 1.15)
_CELL = 0.335
_LEFT = 1.3
_RIGHT = _LEFT + ROW * _CELL
_VALUES = (_RIGHT + 0.15, 9.9)
_EDGES = (10.05, WIDTH - MARGIN)
_ROW, _BEFORE, _FOLD = 0.25, 0.17, 0.22  # a row, the expected values below it, a fold
_HEADINGS = 0.3
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
    """
    require_limit(limit)
    title = title or f"Bytes of {map.name}"
    rows = folded(map.rows, limit)
    if not rows:
        return blank_page(title, f"{map.form}: it has no bytes")
    drawing = _Drawing(map)
    page = PanelPage(title, _counts(map), _legend(map), [drawing.panel(row) for row in rows], above=_HEADINGS)
    _headings(page.pen, map, page.top - _HEADINGS / 2)
    figure = page.draw_panels(rule=None)
    drawing.draw_boxes(page.pen)
    return figure


def save_byte_map(map: ByteMap, path: str | os.PathLike[str], *, limit: int = 40, title: str | None = None) -> Path:
    """Draw a byte map into a file, as `save_map` does."""
    return save_map(byte_map, map, path, limit=limit, title=title)


def _height(row: ByteRow | ByteFold) -> float:
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
    known = any(cell.changed and cell.expected is not None for cell in cells)
    changed = "changed (below: what was there)" if known else "changed (what was there is not known)"
    entries = [Entry(VERMILLION, changed)] if Fate.CHANGED in fates else []
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

    def __init__(self, map: ByteMap) -> None:
        self._grounds: dict[Ground, list[Box]] = defaultdict(list)
        self._fates: dict[Fate, list[Box]] = defaultdict(list)
        self._bars: list[tuple[tuple[float, float], tuple[float, float]]] = []
        self._edges: Mapping[int, list[ByteEdge]] = defaultdict(list)
        for edge in map.edges:
            self._edges[edge.offset // ROW * ROW].append(edge)

    def panel(self, row: ByteRow | ByteFold) -> Panel:
        if isinstance(row, ByteFold):
            return Panel(_height(row), lambda pen, top: _fold(pen, row, top))
        return Panel(_height(row), lambda pen, top: self._row(pen, row, top))

    def draw_boxes(self, pen: Pen) -> None:
        """Draw what the rows have collected."""
        for ground, boxes in self._grounds.items():
            hatch = GUARD_HATCH if ground is Ground.GUARD else None
            look = {"edge": FAINT, "hatch": hatch, "width": 0.4, "order": 0.8}
            pen.boxes(boxes, _COLORS[ground], gid=f"bytes:{_GIDS[ground]}", **look)  # type: ignore[arg-type]
        for fate, color in ((Fate.CHANGED, VERMILLION), (Fate.AS_WAS, YELLOW)):
            if self._fates[fate]:
                gid = "changed" if fate is Fate.CHANGED else "as was"
                pen.boxes(self._fates[fate], color, edge=BLACK, width=0.5, gid=gid, order=1.0)
        if self._bars:
            pen.lines(self._bars, BLACK, width=2.0, gid="edges", order=2.0)

    def _bar(self, edge: ByteEdge, offset: int, top: float) -> tuple[tuple[float, float], tuple[float, float]]:
        x = _LEFT + (edge.offset - offset) * _CELL
        return (x, top), (x, top + _ROW)

    def _row(self, pen: Pen, row: ByteRow, top: float) -> None:
        y = top + _ROW / 2
        pen.text(_OFFSETS[1], y, f"{row.offset:+,}", size=7.5, mono=True, color=GREY, align="right")
        for place, cell in enumerate(row.cells):
            self._cell(pen, cell, _LEFT + place * _CELL, top)
        pen.text(_VALUES[0], y, row.values, size=7.5, mono=True, bold=row.changed, room=_VALUES[1] - _VALUES[0])
        if _before(row):
            below = top + _ROW + _BEFORE / 2 - 0.01
            pen.text(_OFFSETS[1], below, "was", size=6.5, color=GREY, align="right")
            room = _VALUES[1] - _VALUES[0]
            pen.text(_VALUES[0], below, row.expected, size=6.5, mono=True, color=GREY, room=room)
        pen.text(_EDGES[0], y, self._edges_said(pen, row.offset), size=7, room=_EDGES[1] - _EDGES[0])
        self._bars += [self._bar(edge, row.offset, top) for edge in self._edges.get(row.offset, ())]

    def _edges_said(self, pen: Pen, offset: int) -> str:
        """Boundaries inside a row as text; the first one and a count where there is no room for all."""
        texts = [edge.text for edge in self._edges.get(offset, ())]
        said = "; ".join(texts)
        for kept in range(len(texts) - 1, 0, -1):
            if pen.measure(drawable(said), size=7) <= _EDGES[1] - _EDGES[0]:
                break
            said = f"{'; '.join(texts[:kept])}; {len(texts) - kept} more"
        return said

    def _cell(self, pen: Pen, cell: ByteCell, left: float, top: float) -> None:
        box = (left, top + 0.015, left + _CELL, top + _ROW - 0.015)
        (self._grounds[cell.ground] if cell.fate is Fate.APART else self._fates[cell.fate]).append(box)
        text = f"{cell.value:02x}" if cell.value is not None else ".."
        changed = cell.changed
        guard = cell.ground is Ground.GUARD and not changed
        x = left + _CELL / 2
        color = GREY if guard or cell.value is None else BLACK
        pen.text(x, top + _ROW / 2, text, size=7.5, mono=True, bold=changed, color=color, align="center")
        if changed and cell.expected is not None:
            below = top + _ROW + _BEFORE / 2 - 0.01
            pen.text(x, below, f"{cell.expected:02x}", size=6.5, mono=True, color=GREY, align="center")


def _fold(pen: Pen, fold: ByteFold, top: float) -> None:
    y, nbytes = top + _FOLD / 2, fold.stop - fold.offset
    text = f"… {plural(nbytes, 'more byte')} from {fold.offset:+,} on"
    text += f", {fold.changed:,} of them changed" if fold.changed else ""
    gid = f"fold:{fold.offset}:{fold.stop}"
    pen.text(_LEFT, y, text, size=7.5, color=BLACK if fold.changed else GREY, bold=bool(fold.changed), gid=gid)
