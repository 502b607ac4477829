"""Drawing of a stale-row map: rows of the static inputs of graphs against replays, with the stale rows of findings.

Each input has a grid: replays from left to right, rows from top to bottom. Gids: ``kept:3`` for the rows of input 3 of
`RowMap.panels` that were kept (``refreshed``, ``padded``, ``unknown``), ``stale:1`` for the rows of finding 1.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from shadowgraph.checks.verdicts import rows_said
from shadowgraph.common.words import plural
from shadowgraph.model.row_history import RowState
from shadowgraph.render.plots.columns import Axis, draw_axis
from shadowgraph.render.plots.mark_labels import draw_ids
from shadowgraph.render.plots.page import LABELS, NOTES
from shadowgraph.render.plots.panel_page import Entry, Panel, PanelPage, blank_page, fitting, with_folds
from shadowgraph.render.plots.pen import (
    BLACK,
    GREEN,
    GREY,
    PALE,
    SKY,
    TINT,
    VERMILLION,
    YELLOW,
    Box,
    Pen,
)
from shadowgraph.render.plots.saving import save_map
from shadowgraph.views.map_rows import require_limit
from shadowgraph.views.row_map import RowMap, RowMark, RowPanel

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLORS = {RowState.REFRESHED: SKY, RowState.PADDED: GREEN, RowState.KEPT: YELLOW, RowState.UNKNOWN: PALE}
_SAID = {
    RowState.REFRESHED: "written for this replay",
    RowState.PADDED: "filled with one value for it",
    RowState.KEPT: "kept from an older replay",
    RowState.UNKNOWN: "set-up, an older fill, or not known",
}
_GRID = (4.2, NOTES[0] - 0.15)
_ROW, _LEAST, _MOST = 0.13, 0.3, 1.2  # inches of a row; least and most height of all rows
_ABOVE, _BELOW, _FOLD = 0.24, 0.3, 0.21
_THIN = 0.02
_PAGE = 220.0  # inches


def row_map(map: RowMap, *, limit: int = 40, title: str | None = None) -> Figure:
    """Draw a stale-row map.

    Parameters
    ----------
    map
        The map to draw; without inputs the figure says so.
    limit
        Inputs that are drawn, 1 to 200: inputs with findings first, then inputs with partly written rows, then the
        other inputs of these graphs; runs of the rest are folded.
    title
        First line, instead of "Rows of static inputs".
    """
    require_limit(limit)
    title = title or "Rows of static inputs"
    panels = map.panels
    if not panels:
        return blank_page(title, "no history of rows of what was asked for")
    shown = chosen(panels, limit)
    rows = with_folds(len(panels), shown, lambda place: _input(panels[place], place), _fold)
    return PanelPage(title, _counts(map, len(shown)), _legend(map, shown), rows).draw_panels()


def save_row_map(map: RowMap, path: str | os.PathLike[str], *, limit: int = 40, title: str | None = None) -> Path:
    """Draw a stale-row map into a file, as `save_map` does."""
    return save_map(row_map, map, path, limit=limit, title=title)


def chosen(panels: Sequence[RowPanel], limit: int) -> list[int]:
    """The inputs that are drawn, in order."""
    graphs = {panel.graph for panel in panels if panel.marks}
    rank = [(not p.marks, p.graph not in graphs, not p.mixed, place) for place, p in enumerate(panels)]
    order = sorted(range(len(panels)), key=rank.__getitem__)[:limit]
    return fitting(order, lambda place: _tall(panels[place]), _PAGE)


def _grid(panel: RowPanel) -> float:
    return min(max(panel.count * _ROW, _LEAST), _MOST)


def _tall(panel: RowPanel) -> float:
    return _ABOVE + _grid(panel) + _BELOW


def _input(panel: RowPanel, index: int) -> Panel:
    return Panel(_tall(panel), lambda pen, top: _panel(pen, panel, index, top))


def _fold(first: int, stop: int) -> Panel:
    """One line for the inputs ``[first, stop)``."""

    def draw(pen: Pen, top: float) -> None:
        text = f"… {plural(stop - first, 'more input')}"
        pen.text(LABELS[0], top + _FOLD / 2, text, size=7.5, color=GREY, gid=f"fold:{first}:{stop}")

    return Panel(_FOLD, draw)


def _counts(map: RowMap, shown: int) -> str:
    graphs = {panel.graph for panel in map.panels}
    parts = [f"{plural(len(map.panels), 'input')} of {plural(len(graphs), 'graph')}"]
    if shown < len(map.panels):
        parts.append(f"{plural(shown, 'input')} drawn")
    parts.append(map.counted)
    return "; ".join(parts)


def _legend(map: RowMap, shown: Sequence[int]) -> list[Entry]:
    drawn = [map.panels[place] for place in shown]
    states = {stretch.state for panel in drawn for at in panel.replays for stretch in at.rows}
    entries = [Entry("white", "stale, says a finding", edge=VERMILLION, hatch="xxxx")] if map.marked else []
    return entries + [Entry(COLORS[state], text, edge=GREY) for state, text in _SAID.items() if state in states]


def _panel(pen: Pen, panel: RowPanel, index: int, top: float) -> None:
    if panel.marks:
        ground = (LABELS[0] - 0.1, top, NOTES[1] + 0.1, top + _tall(panel))
        pen.boxes([ground], TINT, gid=f"input:{index}", order=0.1)
    axis = Axis.of(len(panel.replays), left=_GRID[0], right=_GRID[1])
    y = top + _ABOVE
    height = _grid(panel)
    _label(pen, panel, y, height)
    for state, color in COLORS.items():
        boxes = [
            _box(axis, panel, place, (stretch.first, stretch.last), y)
            for place, at in enumerate(panel.replays)
            for stretch in at.rows
            if stretch.state is state
        ]
        if boxes:
            pen.boxes(boxes, color, edge=GREY, width=0.3, gid=f"{state}:{index}", order=1.0)
    _skips(pen, panel, axis, y, height)
    _marks(pen, panel, axis, y)
    numbers = [str(at.replay) for at in panel.replays]
    draw_axis(pen, axis, numbers, y + height + 0.1, y + height + 0.04, y + height + 0.04)
    pen.text(_GRID[0] - 0.06, y + height + 0.1, "replay", size=6.5, color=GREY, align="right")


def _box(axis: Axis, panel: RowPanel, place: int, rows: tuple[int, int], y: float) -> Box:
    left, right = axis.cell(place)
    unit = _grid(panel) / panel.count
    low, high = y + unit * rows[0], y + unit * (rows[1] + 1)
    return left, low, right, max(high, low + _THIN)


def _label(pen: Pen, panel: RowPanel, y: float, height: float) -> None:
    room = LABELS[1] - LABELS[0] - 0.1
    pen.text(LABELS[0], y + 0.05, panel.buffer, size=8.5, mono=True, bold=bool(panel.marks), room=room)
    facts = f"{plural(panel.count, 'row')} of {panel.row_nbytes:,} B, {panel.dtype}, read by {panel.graph}"
    if panel.first_byte:
        facts += f", from byte {panel.first_byte:,} on"
    pen.text(LABELS[0], y + 0.23, facts, size=7, color=GREY, room=room)
    unit, x = height / panel.count, _GRID[0] - 0.06
    pen.text(x, y + min(unit / 2, 0.07), "0", size=6.5, color=GREY, align="right")
    if panel.count > 1:
        pen.text(x, y + height - min(unit / 2, 0.07), f"{panel.count - 1:,}", size=6.5, color=GREY, align="right")


def _skips(pen: Pen, panel: RowPanel, axis: Axis, y: float, height: float) -> None:
    """A dashed line where replays in between were not kept."""
    skipped = [
        place
        for place in range(1, len(panel.replays))
        if panel.replays[place].replay > panel.replays[place - 1].replay + 1
    ]
    if skipped:
        xs = [axis.left + axis.unit * place for place in skipped]
        lines = [((x, y - 0.05), (x, y + height + 0.05)) for x in xs]
        pen.lines(lines, BLACK, width=1.0, dashed=True, order=1.5)


def _marks(pen: Pen, panel: RowPanel, axis: Axis, y: float) -> None:
    places = {at.replay: place for place, at in enumerate(panel.replays)}
    labels = []
    for mark in panel.marks:
        place = places.get(mark.replay)
        if place is not None:
            boxes = [_box(axis, panel, place, rows, y) for rows in mark.rows]
            look = {"edge": VERMILLION, "hatch": "xxxx", "width": 1.6, "order": 2.0}
            pen.boxes(boxes, "none", gid=f"stale:{mark.finding}", **look)  # type: ignore[arg-type]
            labels.append((axis.middle(place), mark.finding))
    draw_ids(pen, sorted(labels), y - 0.12, (_GRID[0], _GRID[1]), {mark.finding: mark.code for mark in panel.marks})
    for line, mark in enumerate(panel.marks[:1]):
        _note(pen, mark, len(panel.marks) - 1, y + 0.05 + 0.4 * line)


def _note(pen: Pen, mark: RowMark, more: int, y: float) -> None:
    room = NOTES[1] - NOTES[0]
    others = f" (+{more})" if more else ""
    said = f"#{mark.finding} {rows_said(mark.rows)}, replay {mark.replay}{others}"
    pen.text(NOTES[0], y, said, size=8, bold=True, room=room)
    pen.text(NOTES[0], y + 0.17, f"written for {mark.since}", size=7, color=GREY, room=room)
    if mark.padded:
        names = ", ".join(name.rsplit(".", 1)[-1] for name in mark.padded)
        pen.text(NOTES[0], y + 0.32, f"padded: {names}", size=7, color=GREY, room=room)
