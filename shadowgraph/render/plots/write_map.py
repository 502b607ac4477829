"""Drawing of a write map: the nodes of a graph in order against the buffers that they write, with culprits and damage.

Each buffer has a row in order of address, its bytes from top to bottom with its guards above and below; with too many,
runs of them share one line. Artists that stand for data carry a gid: ``write:seen:3`` for writes to the buffer 3 of
`WriteMap.memory`, ``mark:1`` for the bytes of finding 1, ``culprit:1`` for the line at its culprit node.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from shadowgraph.common.words import form, plural, size
from shadowgraph.render.plots.columns import EAGER, Axis, draw_axis
from shadowgraph.render.plots.mark_labels import draw_ids
from shadowgraph.render.plots.page import MARGIN, WIDTH
from shadowgraph.render.plots.panel_page import Entry, Panel, PanelPage, blank_page
from shadowgraph.render.plots.pen import (
    BLACK,
    BLUE,
    FAINT,
    GREY,
    GUARD_HATCH,
    PALE,
    SKY,
    TINT,
    VERMILLION,
    YELLOW,
    Box,
    Pen,
)
from shadowgraph.render.plots.saving import save_map
from shadowgraph.views import map_places
from shadowgraph.views.map_rows import Fold, Row, rows_of
from shadowgraph.views.memory_map import MapBuffer, MapDamage
from shadowgraph.views.scales import Columns, Steps, row_scale, split, widened
from shadowgraph.views.write_map import NodeWrite, Sure, WriteMap, WriteMark, WriteNode

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLORS = {Sure.SEEN: BLUE, Sure.SIGNATURE: SKY, Sure.GIVEN: YELLOW}
_SAID = {
    Sure.SEEN: "bytes seen to be written",
    Sure.SIGNATURE: "written, says the operator",
    Sure.GIVEN: "given to a kernel, from there on",
}
_LABELS = (MARGIN, 3.5)
_ROW, _FOLD, _LINE = 0.5, 0.21, 0.17
_AXIS = 0.55  # labels of marks and numbers of nodes
_GAP = 0.35  # above the list of nodes
_SIDE, _BODY = 0.07, 0.26  # of a row: each guard, and the buffer
_MARK = 0.08  # inches of a mark, whatever the number of nodes
_LEAST = 0.045  # least visible height of bytes, in inches
_LISTED = 16  # nodes listed below the picture


def write_map(map: WriteMap, *, limit: int = 40, title: str | None = None) -> Figure:
    """Draw a write map.

    Parameters
    ----------
    map
        The map to draw; without nodes or writes the figure says so.
    limit
        Buffers with a row of their own, 1 to 200; damaged ones keep theirs beyond it (up to 200).
    title
        First line, instead of "Write map of" and the graph's name.
    """
    rows = rows_of(map.memory, limit)
    title = title or f"Write map of {map.graph}"
    if not rows:
        return blank_page(title, f"{plural(len(map.nodes), 'node')}, of which none writes a buffer that is known")
    axis = Axis.of(len(map.nodes), eager=any(not mark.nodes for mark in map.marks))
    listed = _listed(map)
    below = _GAP + (0.3 + _LINE * len(listed) if listed else 0.0)
    page = PanelPage(title, _counts(map), _legend(map), _panels(map, rows, axis), above=_AXIS, below=below)
    draw_axis(page.pen, axis, [node.place for node in map.nodes], page.top - 0.12, page.top, page.bottom)
    _culprits(page.pen, map, axis, (page.top - 0.3, page.bottom))
    figure = page.draw_panels(rule=WIDTH - MARGIN)
    _list(page.pen, listed, page.bottom + _GAP)
    return figure


def save_write_map(map: WriteMap, path: str | os.PathLike[str], *, limit: int = 40, title: str | None = None) -> Path:
    """Draw a write map into a file, as `save_map` does."""
    return save_map(write_map, map, path, limit=limit, title=title)


def _counts(map: WriteMap) -> str:
    buffers = map.memory.buffers
    parts = [f"{plural(len(map.nodes), 'node')} may write {plural(len(buffers), 'buffer')}"]
    if map.replay is not None:
        parts.append(f"changed bytes as of the probed replay {map.replay}")
    if map.untracked:
        parts.append(f"{plural(map.untracked, 'pointer')} to memory that is not tracked")
    if map.unread:
        parts.append(f"launches, since the nodes are not known ({map.unread})")
    parts.append(map.counted)
    return "; ".join(parts)


def _legend(map: WriteMap) -> list[Entry]:
    known = {write.sure for write in map.writes}
    entries = [Entry(VERMILLION, "broken bytes, at the culprit")] if map.marks else []
    if any(not mark.sure for mark in map.marks):
        entries.append(Entry("white", "the same, the culprit is not sure", edge=VERMILLION, dashed=True))
    entries += [Entry(COLORS[sure], _SAID[sure], edge=GREY) for sure in Sure if sure in known]
    if any(buffer.head_guard or buffer.tail_guard for buffer in map.memory.buffers):
        entries.append(Entry("white", "guard", edge=GREY, hatch=GUARD_HATCH))
    return entries


def _culprits(pen: Pen, map: WriteMap, axis: Axis, ys: tuple[float, float]) -> None:
    """A line at each culprit from the labels to the foot of the page."""
    label, bottom = ys
    places: list[tuple[float, int]] = []
    said: dict[int, str] = {}
    for mark in map.marks:
        damage = map.memory.damages[mark.damage]
        xs = [axis.middle(node) for node in mark.nodes] or [axis.middle(EAGER)]
        lines = [((x, y), (x, stop)) for x in xs for y, stop in ((label + 0.07, label + 0.11), (label + 0.27, bottom))]
        look = {"width": 1.1, "dashed": not mark.sure, "order": 1.6}
        pen.lines(lines, VERMILLION, gid=f"culprit:{damage.finding}", **look)  # type: ignore[arg-type]
        places.append((xs[0], damage.finding))
        said[damage.finding] = damage.culprit
    draw_ids(pen, sorted(places), label, (_LABELS[1] - 1.5, WIDTH - MARGIN), said)


def _panels(map: WriteMap, rows: Sequence[Row | Fold], axis: Axis) -> list[Panel]:
    writes: dict[int, list[NodeWrite]] = defaultdict(list)
    for write in map.writes:
        writes[write.buffer].append(write)
    marks: dict[int, list[WriteMark]] = defaultdict(list)
    for mark in map.marks:
        marks[map.memory.damages[mark.damage].buffer].append(mark)

    def buffer(index: int) -> Panel:
        return Panel(_ROW, lambda pen, top: _row(pen, map, index, writes[index], marks[index], axis, top))

    def folded(fold: Fold) -> Panel:
        hidden = [write for index in range(fold.first, fold.stop) for write in writes[index]]
        return Panel(_FOLD, lambda pen, top: _fold(pen, fold, hidden, axis, top))

    return [folded(row) if isinstance(row, Fold) else buffer(row.index) for row in rows]


def _row(
    pen: Pen, map: WriteMap, index: int, writes: list[NodeWrite], marks: list[WriteMark], axis: Axis, top: float
) -> None:
    buffer = map.memory.buffers[index]
    damages = [map.memory.damages[mark.damage] for mark in marks]
    if marks:
        ground = (_LABELS[0] - 0.1, top, WIDTH - MARGIN + 0.1, top + _ROW)
        pen.boxes([ground], TINT, gid=f"row:{index}", order=0.1)
    _label(pen, buffer, damages, top)
    y = top + (_ROW - _BODY - 2 * _SIDE) / 2
    inner = (y + _SIDE, y + _SIDE + _BODY)
    scale = row_scale(buffer, damages, Columns((y, inner[0]), inner, (inner[1], inner[1] + _SIDE)))
    left, right = axis.span
    sides = [(left, y, right, inner[0])] if buffer.head_guard else []
    sides += [(left, inner[1], right, inner[1] + _SIDE)] if buffer.tail_guard else []
    if sides:
        pen.boxes(sides, "white", edge=FAINT, hatch=GUARD_HATCH, width=0.3, order=0.6)
    pen.boxes([(left, inner[0], right, inner[1])], PALE, edge=GREY, dashed=not buffer.alive, gid=f"buffer:{index}")
    _writes(pen, index, writes, axis, scale)
    for mark, damage in zip(marks, damages, strict=True):
        _mark(pen, mark, damage, buffer, axis, scale)


def _writes(pen: Pen, index: int, writes: Sequence[NodeWrite], axis: Axis, scale: Steps) -> None:
    for sure in reversed(Sure):
        boxes = {_box(axis, scale, write.node, write.start, write.stop) for write in writes if write.sure is sure}
        if boxes:
            pen.boxes(sorted(boxes), COLORS[sure], edge=GREY, width=0.3, gid=f"write:{sure}:{index}", order=1.2)


def _mark(pen: Pen, mark: WriteMark, damage: MapDamage, buffer: MapBuffer, axis: Axis, scale: Steps) -> None:
    pieces = [piece for first, last in damage.pieces for piece in split(first, last, buffer)]
    boxes = []
    for node in mark.nodes or (EAGER,):
        left, right = widened(axis.cell(node), _MARK, axis.span)
        boxes += [(left, low, right, high) for _, low, _, high in (_box(axis, scale, node, *piece) for piece in pieces)]
    sure = mark.sure and damage.located
    color, edge = (VERMILLION, BLACK) if sure else ("white" if damage.located else "none", VERMILLION)
    pen.boxes(boxes, color, edge=edge, dashed=not sure, gid=f"mark:{damage.finding}", order=2.0)


def _box(axis: Axis, scale: Steps, node: int, start: int, stop: int) -> Box:
    """The box of a node's bytes, no smaller than visible; boxes that cannot be told apart are equal."""
    left, right = axis.cell(node)
    low, high = scale.span(start, stop)
    if high - low < _LEAST:
        middle = min(max((low + high) / 2, scale.places[0] + _LEAST / 2), scale.places[-1] - _LEAST / 2)
        low, high = middle - _LEAST / 2, middle + _LEAST / 2
    return left, round(low, 3), right, round(high, 3)


def _fold(pen: Pen, fold: Fold, writes: list[NodeWrite], axis: Axis, top: float) -> None:
    """One line for a run of buffers: the nodes that write any of them."""
    y = top + _FOLD / 2
    text = f"… {fold.count:,} more buffers, {size(fold.nbytes)}"
    gid = f"fold:{fold.first}:{fold.stop}"
    pen.text(_LABELS[0], y, text, size=7.5, color=GREY, room=_LABELS[1] - _LABELS[0], gid=gid)
    for sure in reversed(Sure):
        boxes = {(*axis.cell(write.node),) for write in writes if write.sure is sure}
        if boxes:
            bars = [(left, y - 0.035, right, y + 0.035) for left, right in sorted(boxes)]
            pen.boxes(bars, COLORS[sure], gid=f"folded:{sure}:{fold.first}", order=1.2)


def _label(pen: Pen, buffer: MapBuffer, damages: Sequence[MapDamage], top: float) -> None:
    room = _LABELS[1] - _LABELS[0]
    pen.text(_LABELS[0], top + 0.15, buffer.name, size=8.5, mono=True, bold=bool(damages), room=room)
    facts = [form(buffer.dtype, buffer.shape), size(buffer.nbytes), f"{buffer.start:#x}"]
    if damages:
        more = f" and {len(damages) - 1:,} more" if len(damages) > 1 else ""
        facts = [f"#{damages[0].finding} {damages[0].code} {map_places.reach(damages[0], buffer)}{more}", *facts]
    pen.text(_LABELS[0], top + 0.34, ", ".join(facts), size=7, color=GREY, room=room)


def _listed(map: WriteMap) -> list[tuple[WriteNode, str]]:
    """Nodes listed below the picture: culprits, and the other nodes where there are few."""
    said: dict[int, str] = {}
    for mark in map.marks:
        for node in mark.nodes:
            said[node] = f"{said[node]} " if node in said else ""
            said[node] += f"#{map.memory.damages[mark.damage].finding}"
    few = range(len(map.nodes)) if len(map.nodes) <= _LISTED else sorted(said)[:_LISTED]
    return [(map.nodes[node], said.get(node, "")) for node in few]


def _list(pen: Pen, listed: list[tuple[WriteNode, str]], top: float) -> None:
    if listed:
        pen.text(MARGIN, top + 0.12, "nodes", size=7.5, color=GREY)
    for place, (node, said) in enumerate(listed):
        y = top + 0.32 + _LINE * place
        pen.text(MARGIN, y, node.place, size=7.5, mono=True, bold=bool(said), room=0.6)
        pen.text(MARGIN + 0.65, y, node.name, size=7.5, mono=True, bold=bool(said), room=5.2)
        pen.text(MARGIN + 6.0, y, node.where, size=7.5, mono=True, color=GREY, room=3.4)
        pen.text(MARGIN + 9.5, y, said, size=7.5, bold=True, color=VERMILLION, room=2.8)
