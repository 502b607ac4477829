"""Drawing of one row of a memory map: a buffer with guards and damage, the bytes around the damage, other owners."""

from __future__ import annotations

from shadowgraph.common.words import form, plural, size
from shadowgraph.render.plots import page
from shadowgraph.render.plots.page import BARS, COLUMNS, LABELS, LEAST_DAMAGE, NOTES
from shadowgraph.render.plots.pen import BLACK, FAINT, GREY, GUARD_HATCH, PURPLE, TINT, VERMILLION, Pen
from shadowgraph.render.plots.zoom import ZOOM, draw_broken, draw_zoom
from shadowgraph.views import map_places
from shadowgraph.views.map_rows import Fold, OwnerLine, Row
from shadowgraph.views.memory_map import MapBuffer, MapDamage
from shadowgraph.views.scales import Span, Steps, row_scale, side_of, split, spread, widened

_PLAIN, _BAND, _OWNER, _FOLD = 0.38, 0.14, 0.18, 0.21
_BAR = 0.2
_BEAM = "#F3CDB2"


def height_of(row: Row | Fold) -> float:
    """Height of a row in inches."""
    if isinstance(row, Fold):
        return _FOLD
    owners = len(row.owners) + (row.more_owners > 0)
    extra = 0.05 if row.zooms or owners else 0.0
    return _PLAIN + (_BAND if row.damages else 0.0) + ZOOM * len(row.zooms) + _OWNER * owners + extra


def draw_row(pen: Pen, row: Row, buffer: MapBuffer, top: float) -> None:
    """Draw a buffer's row below `top`."""
    if row.damages:
        ground = (LABELS[0] - 0.1, NOTES[1] + 0.1)
        pen.bars([ground], top, height_of(row), TINT, gid=f"row:{row.index}", order=0.1)
        top += _BAND
    scale = row_scale(buffer, row.damages, COLUMNS)
    _label(pen, row, buffer, top)
    bar = top + (_PLAIN - _BAR) / 2
    _buffer(pen, row.index, buffer, scale, bar)
    marks = [_damage(pen, damage, buffer, scale, bar) for damage in row.damages]
    _mark_labels(pen, row, buffer, [sum(mark) / 2 for mark in marks], bar - 0.1)
    top += _PLAIN
    for position, damage in enumerate(row.zooms):
        if not position and damage.located:
            _beam(pen, marks[row.damages.index(damage)], bar + _BAR, top + 0.03)
        draw_zoom(pen, damage, buffer, top)
        top += ZOOM
    for number, owner in enumerate(row.owners):
        _owner(pen, owner, scale, top, gid=f"alias:{row.index}:{number}")
        top += _OWNER
    if row.more_owners:
        more = f"… {plural(row.more_owners, 'more view')}"
        pen.text(LABELS[0] + 0.12, top + _OWNER / 2, more, size=7, color=GREY)


def draw_fold(pen: Pen, fold: Fold, start: int, top: float) -> None:
    """Draw one line for a run of buffers that begins at address `start`."""
    y = top + _FOLD / 2
    text = f"… {fold.count:,} more buffers, {size(fold.nbytes)}"
    gid = f"fold:{fold.first}:{fold.stop}"
    if fold.damaged:
        text += f", {fold.damaged:,} of them damaged"
        pen.bars([(LABELS[0] - 0.1, NOTES[1] + 0.1)], top, _FOLD, TINT, order=0.1)
    pen.text(LABELS[0], y, text, size=7.5, color=BLACK if fold.damaged else GREY, bold=bool(fold.damaged), gid=gid)
    pen.lines([((BARS[0], y), (BARS[1], y))], VERMILLION if fold.damaged else FAINT, width=1.2, dashed=True)
    pen.text(NOTES[0], y, f"from {start:#x}", size=6.5, mono=True, color=GREY)


def _label(pen: Pen, row: Row, buffer: MapBuffer, top: float) -> None:
    room = LABELS[1] - LABELS[0]
    pen.text(LABELS[0], top + 0.13, buffer.name, size=8.5, mono=True, bold=bool(row.damages), room=room)
    facts = [form(buffer.dtype, buffer.shape), size(buffer.nbytes), buffer.role]
    if not buffer.alive:
        facts.append("freed since")
    elif buffer.head_guard or buffer.tail_guard:
        facts.append(f"guards {size(buffer.head_guard)} + {size(buffer.tail_guard)}")
    else:
        facts.append("not guarded")
    pen.text(LABELS[0], top + 0.28, ", ".join(facts), size=7, color=GREY, room=room)
    pen.text(NOTES[0], top + 0.13, f"{buffer.start:#x}", size=7, mono=True, color=GREY)
    notes = [buffer.graph] if buffer.graph else []
    same = len(buffer.names) - 1 - len(buffer.aliases)
    if same > 0:
        notes.append(plural(same, "more owner"))
    small = [damage for damage in row.damages if damage not in row.zooms]
    if small:
        more = f" and {len(small) - 1:,} more" if len(small) > 1 else ""
        notes.append(f"#{small[0].finding} {small[0].code} {small[0].culprit}{more}")
    pen.text(NOTES[0], top + 0.28, ", ".join(notes), size=7, color=GREY, room=NOTES[1] - NOTES[0])


def _buffer(pen: Pen, index: int, buffer: MapBuffer, scale: Steps, y: float) -> None:
    sides = {"head": (buffer.start - buffer.head_guard, buffer.start)} if buffer.head_guard else {}
    if buffer.tail_guard:
        sides["tail"] = buffer.tail
    for side, where in sides.items():
        span = widened(scale.span(*where), LEAST_DAMAGE, side_of(where[0], buffer, COLUMNS))
        pen.bars([span], y, _BAR, "white", edge=GREY, hatch=GUARD_HATCH, gid=f"{side}:{index}", order=1.0)
    whole = (COLUMNS.payload[0], COLUMNS.payload[1])
    color = page.role_color(buffer.role) if buffer.alive else "white"
    pen.bars([whole], y, _BAR, color, edge=BLACK, dashed=not buffer.alive, gid=f"buffer:{index}", order=1.2)


def _damage(pen: Pen, damage: MapDamage, buffer: MapBuffer, scale: Steps, y: float) -> Span:
    """Draw damage on the buffer's bar, no narrower than visible; returns its position."""
    gid = f"damage:{damage.finding}"
    if not damage.located:
        pen.bars([COLUMNS.payload], y - 0.035, _BAR + 0.07, "none", edge=VERMILLION, dashed=True, gid=gid, order=3.0)
        return COLUMNS.payload
    spans = [
        widened(scale.span(start, stop), LEAST_DAMAGE, side_of(start, buffer, COLUMNS))
        for first, last in damage.pieces
        for start, stop in split(first, last, buffer)
    ]
    if damage.partial:
        reach = scale.span(damage.first, damage.last + 1)
        pen.lines([((reach[0], y + _BAR / 2), (reach[1], y + _BAR / 2))], VERMILLION, width=1.5, order=1.9)
    draw_broken(pen, damage, spans, y - 0.03, _BAR + 0.06, gid)
    return min(left for left, _ in spans), max(right for _, right in spans)


def _beam(pen: Pen, mark: Span, top: float, bottom: float) -> None:
    """A wedge from a mark to its enlarged line below."""
    pen.shape([(mark[0], top), (mark[1], top), (BARS[1], bottom), (BARS[0], bottom)], _BEAM, order=0.3)


def _mark_labels(pen: Pen, row: Row, buffer: MapBuffer, places: list[float], y: float) -> None:
    """Ids and extents above the bar; one common label where there is no room for each."""
    labels = sorted(
        (place, f"#{damage.finding} {map_places.reach(damage, buffer)}")
        for place, damage in zip(places, row.damages, strict=True)
    )
    widths = [pen.measure(text, size=7.5, bold=True) for _, text in labels]
    if sum(widths) + 0.08 * len(widths) > BARS[1] - BARS[0]:
        labels = [(labels[0][0], plural(len(labels), "finding"))]
        widths = [pen.measure(labels[0][1], size=7.5, bold=True)]
    for left, (_, text) in zip(spread([x for x, _ in labels], widths, BARS), labels, strict=True):
        pen.text(left, y, text, size=7.5, bold=True)


def _owner(pen: Pen, owner: OwnerLine, scale: Steps, top: float, gid: str) -> None:
    y = top + _OWNER / 2
    more = f" +{len(owner.names) - 1}" if len(owner.names) > 1 else ""
    pen.text(LABELS[0] + 0.12, y, f"↳ {owner.names[0]}{more}", size=7, mono=True, room=LABELS[1] - LABELS[0] - 0.12)
    span = widened(scale.span(owner.start, owner.stop), LEAST_DAMAGE, COLUMNS.payload)
    pen.bars([span], y - 0.035, 0.07, PURPLE, edge=GREY, gid=gid, order=1.3)
    text = owner.relation or "the same view"
    pen.text(NOTES[0], y, text, size=7, mono=True, room=NOTES[1] - NOTES[0])
