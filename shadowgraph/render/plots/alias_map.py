"""Drawing of an alias map: groups of owners over the same bytes, each group at a scale of its own.

A strip on top of each group shows the number of owners of each byte; below, every view has a bar over its bytes. Gids:
``depth:2:3`` for the bytes of group 3 with two owners, ``owner:3:1`` for its line 1, ``damage:1`` for finding 1.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from shadowgraph.common.words import plural, size
from shadowgraph.render.plots.mark_labels import draw_ids
from shadowgraph.render.plots.page import BARS, LABELS, LEAST_DAMAGE, NOTES
from shadowgraph.render.plots.panel_page import Entry, Panel, PanelPage, blank_page, fitting, with_folds
from shadowgraph.render.plots.pen import BLACK, BLUE, FAINT, GREY, PALE, PURPLE, SKY, TINT, VERMILLION, Pen
from shadowgraph.render.plots.saving import save_map
from shadowgraph.views.alias_map import AliasLine, AliasMap, AliasPanel
from shadowgraph.views.map_rows import require_limit
from shadowgraph.views.memory_map import MapDamage
from shadowgraph.views.scales import Span, Steps, joined, widened

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_DEPTHS = {1: PALE, 2: SKY, 3: BLUE, 4: "#00304F"}  # darker with depth; the last also stands for more owners
_GROUP, _LINE, _FOLD, _REST = 0.52, 0.18, 0.21, 0.08
_STRIP = 0.17
_LINES = 12  # lines of one group
_SLIVER = 0.01
_PAGE = 1_500  # lines on one page


def alias_map(map: AliasMap, *, limit: int = 40, title: str | None = None) -> Figure:
    """Draw an alias map.

    Parameters
    ----------
    map
        The map to draw; without groups the figure says so.
    limit
        Groups that are drawn, 1 to 200: groups with findings first, then groups in which other owners than the widest
        share bytes, then groups with the most owners; runs of the rest are folded.
    title
        First line, instead of "Alias map".
    """
    require_limit(limit)
    title, panels = title or "Alias map", map.panels
    if not panels:
        return blank_page(title, "no two owners share bytes, as far as they have names")
    shown = chosen(panels, limit)
    rows = with_folds(
        len(panels),
        shown,
        lambda place: _group(panels[place], place),
        lambda first, stop: _fold(panels[first:stop], f"fold:{first}:{stop}"),
    )
    return PanelPage(title, _counts(map, len(shown)), _legend(map, shown), rows).draw_panels()


def save_alias_map(map: AliasMap, path: str | os.PathLike[str], *, limit: int = 40, title: str | None = None) -> Path:
    """Draw an alias map into a file, as `save_map` does."""
    return save_map(alias_map, map, path, limit=limit, title=title)


def chosen(panels: Sequence[AliasPanel], limit: int) -> list[int]:
    """The groups that are drawn, in order."""
    order: Sequence[int] = range(len(panels))
    if len(panels) > limit:
        rank = [(-len(p.damages), -(p.contested > 0), -p.owners, -p.nbytes, place) for place, p in enumerate(panels)]
        order = sorted(order, key=rank.__getitem__)[:limit]
    return fitting(order, lambda place: min(len(panels[place].lines), _LINES) + 2, _PAGE)


def _group(panel: AliasPanel, index: int) -> Panel:
    lines = min(len(panel.lines) - 1, _LINES) + (len(panel.lines) - 1 > _LINES)
    height = _GROUP + (0.14 if panel.damages else 0.0) + lines * _LINE + _REST
    return Panel(height, lambda pen, top: _panel(pen, panel, index, top))


def _counts(map: AliasMap, shown: int) -> str:
    damages = {damage.finding for panel in map.panels for damage in panel.damages}
    parts = [
        f"{plural(sum(p.owners for p in map.panels), 'owner')} in {plural(len(map.panels), 'group')} that share bytes"
    ]
    if shown < len(map.panels):
        parts.append(f"{plural(shown, 'group')} drawn")
    contested = sum(panel.contested > 0 for panel in map.panels)
    if contested:
        parts.append(f"{plural(contested, 'group')} with bytes that others than the widest owner share")
    parts.append(f"{plural(len(damages), 'finding')} on them" if damages else "no findings on them")
    return "; ".join(parts)


def _legend(map: AliasMap, shown: Sequence[int]) -> list[Entry]:
    drawn = [map.panels[place] for place in shown]
    deep = {min(depth, 4) for panel in drawn for _, _, depth in panel.depth}
    said = {1: "bytes with one owner", 2: "two", 3: "three", 4: "four or more"}
    entries = [Entry(VERMILLION, "broken bytes (widened to be seen)")] if any(p.damages for p in drawn) else []
    entries += [Entry(_DEPTHS[depth], text, edge=GREY) for depth, text in said.items() if depth in deep]
    return [*entries, Entry(PURPLE, "a view of them", edge=GREY)]


def _panel(pen: Pen, panel: AliasPanel, index: int, top: float) -> None:
    if panel.damages:
        ground = (LABELS[0] - 0.1, top, NOTES[1] + 0.1, top + _GROUP + 0.14)
        pen.boxes([ground], TINT, gid=f"group:{index}", order=0.1)
        top += 0.14
    chief, scale = panel.lines[0], Steps((panel.address, panel.address + max(1, panel.nbytes)), BARS)
    _label(pen, panel, chief, top)
    y = top + 0.17
    for depth, color in _DEPTHS.items():
        held = (piece for piece in panel.depth if min(piece[2], 4) == depth)
        spans = joined((_span(scale, panel, start, stop) for start, stop, _ in held), _SLIVER / 4)
        if spans:
            pen.bars(spans, y, _STRIP, color, gid=f"depth:{depth}:{index}", order=1.0)
    pen.boxes([(BARS[0], y, BARS[1], y + _STRIP)], "none", edge=BLACK, order=1.3)
    _damages(pen, panel, scale, y)
    y = top + _GROUP
    for place, line in enumerate(panel.lines[1 : _LINES + 1], 1):
        _line(pen, panel, line, scale, y, f"owner:{index}:{place}")
        y += _LINE
    more = sum(len(line.names) for line in panel.lines[_LINES + 1 :])
    if more:
        pen.text(LABELS[0] + 0.12, y + _LINE / 2, f"… {plural(more, 'more owner')}", size=7, color=GREY)


def _span(scale: Steps, panel: AliasPanel, start: int, stop: int) -> Span:
    return widened(scale.span(panel.address + start, panel.address + stop), _SLIVER, BARS)


def _label(pen: Pen, panel: AliasPanel, chief: AliasLine, top: float) -> None:
    room = LABELS[1] - LABELS[0]
    more = f" +{len(chief.names) - 1}" if len(chief.names) > 1 else ""
    pen.text(LABELS[0], top + 0.17, f"{chief.names[0]}{more}", size=8.5, mono=True, bold=True, room=room)
    facts = f"{chief.form}, {size(panel.nbytes)}, {plural(panel.owners, 'owner')}"
    pen.text(LABELS[0], top + 0.34, facts, size=7, color=GREY, room=room)
    notes, room = NOTES[0], NOTES[1] - NOTES[0]
    pen.text(notes, top + 0.17, f"{panel.address:#x}", size=7, mono=True, color=GREY)
    deepest = max(depth for _, _, depth in panel.depth)
    said = f"up to {plural(deepest, 'owner')} of a byte"
    if len(panel.buffers) > 1:
        said += f", {plural(len(panel.buffers), 'buffer')}"
    pen.text(notes, top + 0.34, said, size=7, color=GREY, room=room)


def _damages(pen: Pen, panel: AliasPanel, scale: Steps, y: float) -> None:
    places = []
    for damage in panel.damages:
        spans = _broken(damage, scale)
        gid = f"damage:{damage.finding}"
        if damage.located:
            pen.bars(spans, y - 0.03, _STRIP + 0.06, VERMILLION, edge=BLACK, gid=gid, order=2.0)
        else:
            box = (BARS[0], y - 0.03, BARS[1], y + _STRIP + 0.03)
            pen.boxes([box], "none", edge=VERMILLION, dashed=True, gid=gid, order=2.0)
        places.append((sum(spans[0]) / 2, damage.finding))
    said = {damage.finding: damage.code for damage in panel.damages}
    draw_ids(pen, sorted(places), y - 0.12, (BARS[0], NOTES[0] - 0.05), said)


def _broken(damage: MapDamage, scale: Steps) -> list[Span]:
    """Bars of damaged bytes; bytes outside of the owners' range get a bar just outside of the strip."""
    room = (BARS[0] - LEAST_DAMAGE * 1.5, BARS[1] + LEAST_DAMAGE * 1.5)
    spans = []
    for first, last in damage.pieces:
        left, right = scale.span(first, last + 1)
        if first >= scale.addresses[-1]:
            left, right = BARS[1], room[1]
        elif last < scale.addresses[0]:
            left, right = room[0], BARS[0]
        spans.append(widened((left, right), LEAST_DAMAGE, room))
    return spans


def _line(pen: Pen, panel: AliasPanel, line: AliasLine, scale: Steps, top: float, gid: str) -> None:
    y = top + _LINE / 2
    more = f" +{len(line.names) - 1}" if len(line.names) > 1 else ""
    room = LABELS[1] - LABELS[0] - 0.12
    pen.text(LABELS[0] + 0.12, y, f"↳ {line.names[0]}{more}", size=7, mono=True, room=room)
    pen.lines([((BARS[0], y), (BARS[1], y))], FAINT, width=0.4)
    spans = joined((_span(scale, panel, start, stop) for start, stop in line.pieces), _SLIVER / 4)
    pen.bars(spans, y - 0.045, 0.09, PURPLE, edge=GREY if len(spans) < 64 else "none", gid=gid, order=1.3)
    text = "beside it" if line.relation is None else line.relation or "the same view"
    pen.text(NOTES[0], y, text if line.exact else f"{text}, with gaps", size=7, mono=True, room=NOTES[1] - NOTES[0])


def _fold(panels: Sequence[AliasPanel], gid: str) -> Panel:
    """One line for groups that are not drawn."""
    owners = sum(panel.owners for panel in panels)
    damaged = sum(bool(panel.damages) for panel in panels)
    text = f"… {plural(len(panels), 'more group')} of {plural(owners, 'owner')}"
    text += f", {damaged:,} of them with findings" if damaged else ""

    def draw(pen: Pen, top: float) -> None:
        y = top + _FOLD / 2
        pen.text(LABELS[0], y, text, size=7.5, color=BLACK if damaged else GREY, gid=gid)
        pen.lines([((BARS[0], y), (BARS[1], y))], VERMILLION if damaged else FAINT, width=1.2, dashed=True)
        pen.text(NOTES[0], y, f"from {panels[0].address:#x}", size=6.5, mono=True, color=GREY)

    return Panel(_FOLD, draw)
