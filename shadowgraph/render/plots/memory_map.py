"""Drawing of a memory map: address ranges by owner, with guards, other owners of the same bytes, and damaged bytes.

On top a strip shows all memory on one axis. Below, each buffer has a row at a scale of its own, in order of address;
with too many, runs of unremarkable buffers share one line. Every artist that stands for data carries a gid, such as
``damage:3``, which an SVG keeps as the id of its element.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shadowgraph.common.words import plural, size
from shadowgraph.render.plots.overview import HEIGHT as OVERVIEW
from shadowgraph.render.plots.overview import draw_overview
from shadowgraph.render.plots.page import BARS, COLUMNS, LABELS, MARGIN, NOTES, WIDTH, role_color
from shadowgraph.render.plots.pen import BLACK, FAINT, GREY, GUARD_HATCH, PURPLE, SOME_HATCH, VERMILLION, Pen
from shadowgraph.render.plots.row_drawing import draw_fold, draw_row, height_of
from shadowgraph.render.plots.saving import format_of, save_figure
from shadowgraph.views.map_rows import Fold, Row, rows_of
from shadowgraph.views.memory_map import MemoryMap

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_TITLE = "Memory map"
_HEAD = 1.05  # title, counts and legend
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
    rows = rows_of(map, limit)
    if not rows:
        return _empty(title)
    top = _HEAD + OVERVIEW + _HEADINGS
    pen = Pen(WIDTH, top + sum(height_of(row) for row in rows) + MARGIN)
    _head(pen, title, _counts(map, rows))
    _legend(pen, map, _HEAD - 0.25)
    draw_overview(pen, map, _HEAD)
    _headings(pen, top - 0.1)
    _rows(pen, map, rows, top)
    return pen.figure


def save_memory_map(map: MemoryMap, path: str | os.PathLike[str], *, limit: int = 40, title: str | None = None) -> Path:
    """Draw a memory map into a file, atomically; its suffix (png, svg, pdf) selects the format.

    Parameters
    ----------
    map
        The map to draw; with no buffers the figure says so.
    path
        The file, which is replaced.
    limit, title
        As for `memory_map`.

    Returns
    -------
    Path
        The file.

    Raises
    ------
    UsageError
        For another suffix, or a limit out of range.
    MissingFileError
        When the file cannot be written.
    MissingPackageError
        When matplotlib is not installed.
    """
    format_of(path)
    return save_figure(memory_map(map, limit=limit, title=title), path)


def _rows(pen: Pen, map: MemoryMap, rows: tuple[Row | Fold, ...], top: float) -> None:
    for row in rows:
        pen.lines([((LABELS[0], top), (NOTES[1], top))], FAINT, width=0.4)
        if isinstance(row, Fold):
            draw_fold(pen, row, map.buffers[row.first].start, top)
        else:
            draw_row(pen, row, map.buffers[row.index], top)
        top += height_of(row)


def _empty(title: str | None) -> Figure:
    pen = Pen(WIDTH, 0.85)
    _head(pen, title, "no buffers: nothing was allocated under guard(), captured or declared")
    return pen.figure


def _head(pen: Pen, title: str | None, counts: str) -> None:
    room = WIDTH - 2 * MARGIN
    pen.text(MARGIN, 0.3, title or _TITLE, size=13, bold=True, room=room, gid="title")
    pen.text(MARGIN, 0.54, counts, size=9, room=room, gid="counts")


def _counts(map: MemoryMap, rows: tuple[Row | Fold, ...]) -> str:
    total = len(map.buffers)
    guarded = sum(buffer.tail_guard > 0 for buffer in map.buffers)
    guards = "all guarded" if guarded == total else f"{guarded:,} of them guarded"
    parts = [f"{plural(total, 'buffer')}, {size(sum(buffer.nbytes for buffer in map.buffers))}, {guards}"]
    damaged = f"{plural(len(map.damages), 'finding')} on {plural(len(map.damaged), 'buffer')}"
    parts.append(damaged if map.damages else "no findings")
    shown = sum(isinstance(row, Row) for row in rows)
    if shown < total:
        parts.append(f"{shown:,} with a row of their own")
    return "; ".join(parts)


_ENTRIES: dict[str, Any] = {
    "freed": {"color": "white", "text": "freed buffer", "dashed": True},
    "guard": {"color": "white", "text": "guard", "hatch": GUARD_HATCH},
    "owner": {"color": PURPLE, "text": "another owner", "height": 0.07},
    "inexact": {"color": "white", "text": "some of these bytes broken", "hatch": SOME_HATCH},
    "damage": {"color": VERMILLION, "text": "broken bytes (widened to be seen)"},
}


def _legend(pen: Pen, map: MemoryMap, y: float) -> None:
    """Entries for the styles in this picture only."""
    box, x = 0.28, MARGIN

    def entry(color: str, text: str, height: float = 0.14, hatch: str | None = None, dashed: bool = False) -> None:
        nonlocal x
        edge = {GUARD_HATCH: GREY, SOME_HATCH: VERMILLION}.get(hatch or "", BLACK)
        pen.bars([(x, x + box)], y - height / 2, height, color, edge=edge, hatch=hatch, dashed=dashed)
        x += box + 0.07
        x += pen.text(x, y, text, size=8) + 0.25

    roles = {buffer.role for buffer in map.buffers if buffer.alive}
    for role in ("static", "pool", "foreign"):
        if role in roles:
            entry(role_color(role), f"{role} buffer")
    drawn = _drawn(map)
    for what, words in _ENTRIES.items():
        if drawn[what]:
            entry(**words)


def _drawn(map: MemoryMap) -> dict[str, bool]:
    """The keys of `_ENTRIES`, and whether the picture of a map has that style."""
    return {
        "freed": any(not buffer.alive for buffer in map.buffers),
        "guard": any(buffer.head_guard or buffer.tail_guard for buffer in map.buffers),
        "owner": any(buffer.aliases for buffer in map.buffers),
        "inexact": any(damage.located and not damage.exact for damage in map.damages),
        "damage": bool(map.damages),
    }


def _headings(pen: Pen, y: float) -> None:
    pen.text(LABELS[0], y, "owner", size=7.5, color=GREY)
    pen.text(COLUMNS.head[0], y, "before", size=7.5, color=GREY)
    pen.text(COLUMNS.payload[0], y, "buffer from its start to its end, each row at its own scale", size=7.5, color=GREY)
    pen.text(BARS[1], y, "after", size=7.5, color=GREY, align="right")
    pen.text(NOTES[0], y, "address", size=7.5, color=GREY)
