"""Drawing of a memory map: address ranges by owner, with guards, other owners of the same bytes, and damaged bytes.

On top a strip shows all memory on one axis. Below, each buffer has a row at a scale of its own, in order of address;
with too many, runs of unremarkable buffers share one line. Every artist that stands for data carries a gid, such as
``damage:3``, which an SVG keeps as the id of its element.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from shadowgraph.common.words import plural, size
from shadowgraph.render.plots.overview import HEIGHT as OVERVIEW
from shadowgraph.render.plots.overview import draw_overview
from shadowgraph.render.plots.page import BARS, COLUMNS, LABELS, NOTES, role_color
from shadowgraph.render.plots.panel_page import HEAD, Entry, Panel, PanelPage, blank_page
from shadowgraph.render.plots.pen import GREY, GUARD_HATCH, PURPLE, SOME_HATCH, VERMILLION, Pen
from shadowgraph.render.plots.row_drawing import draw_fold, draw_row, height_of
from shadowgraph.render.plots.saving import save_map
from shadowgraph.views.map_rows import Fold, Row, rows_of
from shadowgraph.views.memory_map import MemoryMap

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_HEADINGS = 0.3


def memory_map(map: MemoryMap, *, limit: int = 40, title: str | None = None) -> Figure:
    """Draw a memory map.

    Parameters
    ----------
    map
        The map to draw; with no buffers the figure says so.
    limit
        Buffers with a row of their own, 1 to 200; damaged ones keep theirs beyond it (up to 200).
    title
        First line, instead of "Memory map".
    """
    rows = rows_of(map, limit)
    title = title or "Memory map"
    if not rows:
        return blank_page(title, "no buffers: nothing was allocated under guard(), captured or declared")
    panels = [_panel(map, row) for row in rows]
    page = PanelPage(title, _counts(map, rows), _legend(map), panels, above=OVERVIEW + _HEADINGS)
    draw_overview(page.pen, map, HEAD)
    _headings(page.pen, page.top - 0.1)
    return page.draw_panels()


def save_memory_map(map: MemoryMap, path: str | os.PathLike[str], *, limit: int = 40, title: str | None = None) -> Path:
    """Draw a memory map into a file, as `save_map` does."""
    return save_map(memory_map, map, path, limit=limit, title=title)


def _panel(map: MemoryMap, row: Row | Fold) -> Panel:
    if isinstance(row, Fold):
        return Panel(height_of(row), lambda pen, top: draw_fold(pen, row, map.buffers[row.first].start, top))
    return Panel(height_of(row), lambda pen, top: draw_row(pen, row, map.buffers[row.index], top))


def _counts(map: MemoryMap, rows: tuple[Row | Fold, ...]) -> str:
    total = len(map.buffers)
    guarded = sum(buffer.tail_guard > 0 for buffer in map.buffers)
    guards = "all guarded" if guarded == total else f"{guarded:,} of them guarded"
    parts = [f"{plural(total, 'buffer')}, {size(sum(buffer.nbytes for buffer in map.buffers))}, {guards}"]
    damaged = f"{plural(len(map.damages), 'finding')} on {plural(len(map.damaged), 'buffer')}"
    parts.append(damaged if map.damages else "no findings on them")
    shown = sum(isinstance(row, Row) for row in rows)
    if shown < total:
        parts.append(f"{shown:,} with a row of their own")
    return "; ".join(parts)


def _legend(map: MemoryMap) -> list[Entry]:
    """Entries for the styles in this picture only."""
    buffers, damages = map.buffers, map.damages
    roles = {buffer.role for buffer in buffers if buffer.alive}
    entries = [Entry(role_color(role), f"{role} buffer") for role in ("static", "pool", "foreign") if role in roles]
    others = (
        (any(not buffer.alive for buffer in buffers), Entry("white", "freed buffer", dashed=True)),
        (
            any(buffer.head_guard or buffer.tail_guard for buffer in buffers),
            Entry("white", "guard", edge=GREY, hatch=GUARD_HATCH),
        ),
        (any(buffer.aliases for buffer in buffers), Entry(PURPLE, "another owner", height=0.07)),
        (
            any(damage.located and not damage.exact for damage in damages),
            Entry("white", "some of these bytes broken", edge=VERMILLION, hatch=SOME_HATCH),
        ),
        (bool(damages), Entry(VERMILLION, "broken bytes (widened to be seen)")),
    )
    return entries + [entry for drawn, entry in others if drawn]


def _headings(pen: Pen, y: float) -> None:
    pen.text(LABELS[0], y, "owner", size=7.5, color=GREY)
    pen.text(COLUMNS.head[0], y, "before", size=7.5, color=GREY)
    pen.text(COLUMNS.payload[0], y, "buffer from its start to its end, each row at its own scale", size=7.5, color=GREY)
    pen.text(BARS[1], y, "after", size=7.5, color=GREY, align="right")
    pen.text(NOTES[0], y, "address", size=7.5, color=GREY)
