"""Detail line under a damaged buffer: the bytes around the damage at one linear scale, and the culprit."""

from __future__ import annotations

from shadowgraph.render.plots import page
from shadowgraph.render.plots.page import BARS, LABELS, LEAST_DAMAGE, NOTES
from shadowgraph.render.plots.pen import BLACK, GREY, GUARD_HATCH, SOME_HATCH, VERMILLION, Pen
from shadowgraph.views import map_places
from shadowgraph.views.memory_map import MapBuffer, MapDamage
from shadowgraph.views.scales import Span, Steps, widened, zoom_window

ZOOM = 0.43
_BAR = 0.17
_TOP = 0.06
_CELLS = 96  # bytes up to which each byte has a cell
_TICK = 6.5


def draw_zoom(pen: Pen, damage: MapDamage, buffer: MapBuffer, top: float) -> None:
    """Draw the bytes around damage below `top`."""
    _texts(pen, damage, buffer, top)
    if not damage.located:
        return
    start, stop = zoom_window(buffer, damage)
    scale = Steps((start, stop), BARS)
    y = top + _TOP
    pen.bars([BARS], y, _BAR, "white", edge=GREY, order=0.9)
    _ground(pen, buffer, scale, y)
    pieces = [(first, last + 1) for first, last in damage.pieces if last >= start and first < stop]
    spans = [widened(scale.span(*piece), LEAST_DAMAGE, BARS) for piece in pieces]
    draw_broken(pen, damage, spans, y, _BAR, f"zoom:{damage.finding}")
    if stop - start <= _CELLS:
        cells = [((scale.x(a), y), (scale.x(a), y + _BAR)) for a in range(start + 1, stop)]
        pen.lines(cells, GREY, width=0.3, order=2.1)
    _ends(pen, buffer, scale, y)
    _ticks(pen, damage, buffer, scale, y + _BAR + 0.11)


def draw_broken(pen: Pen, damage: MapDamage, spans: list[Span], y: float, height: float, gid: str) -> None:
    """Bars of damaged bytes: solid, or hatched where only some of the bytes changed."""
    if damage.exact:
        pen.bars(spans, y, height, VERMILLION, edge=BLACK, gid=gid, order=2.0)
    else:
        pen.bars(spans, y, height, "white", edge=VERMILLION, hatch=SOME_HATCH, gid=gid, order=2.0)


def _texts(pen: Pen, damage: MapDamage, buffer: MapBuffer, top: float) -> None:
    left, room = LABELS[0] + 0.12, LABELS[1] - LABELS[0] - 0.12
    who = f"#{damage.finding} {damage.code}"
    width = pen.text(left, top + 0.13, who, size=8, bold=True)
    pen.text(left + width + 0.08, top + 0.13, damage.culprit, size=8, mono=True, room=room - width - 0.08)
    pen.text(left, top + 0.29, damage.when, size=7, color=GREY, room=room)
    pen.text(NOTES[0], top + 0.13, map_places.where(damage, buffer), size=8, bold=True, room=NOTES[1] - NOTES[0])
    pen.text(NOTES[0], top + 0.29, map_places.changed(damage, buffer), size=7, color=GREY, room=NOTES[1] - NOTES[0])


def _ground(pen: Pen, buffer: MapBuffer, scale: Steps, y: float) -> None:
    """Buffer and guards as far as they reach into the window."""
    guards = ((buffer.start - buffer.head_guard, buffer.start), buffer.tail)
    hatched = [span for guard in guards if (span := _inside(guard, scale)) is not None]
    if hatched:
        pen.bars(hatched, y, _BAR, "white", edge=GREY, hatch=GUARD_HATCH, order=1.0)
    own = _inside((buffer.start, buffer.stop), scale)
    if own is not None:
        color = page.role_color(buffer.role) if buffer.alive else "white"
        pen.bars([own], y, _BAR, color, edge=GREY, dashed=not buffer.alive, order=1.1)


def _ends(pen: Pen, buffer: MapBuffer, scale: Steps, y: float) -> None:
    """A line at each end of the buffer inside the window."""
    start, stop = scale.addresses
    edges = [edge for edge in (buffer.start, buffer.stop) if start < edge < stop]
    if edges:
        lines = [((scale.x(edge), y - 0.03), (scale.x(edge), y + _BAR + 0.03)) for edge in edges]
        pen.lines(lines, BLACK, width=1.6, order=2.2)


def _inside(where: tuple[int, int], scale: Steps) -> Span | None:
    left, right = scale.span(*where)
    return (left, right) if right > left else None


def _ticks(pen: Pen, damage: MapDamage, buffer: MapBuffer, scale: Steps, y: float) -> None:
    """Offsets under the bar, the important ones first, each only where there is room."""

    def middle(address: int) -> float:
        return (scale.x(address) + scale.x(address + 1)) / 2

    wanted = [(scale.x(buffer.stop), f"end {buffer.nbytes:,}"), (scale.x(buffer.start), "start 0")]
    wanted += [(middle(address), f"{address - buffer.start:+,}") for address in (damage.last, damage.first)]
    taken: list[Span] = []
    for x, text in wanted:
        if not BARS[0] < x < BARS[1]:
            continue
        half = pen.measure(text, size=_TICK) / 2
        centre = min(max(x, BARS[0] + half), BARS[1] - half)
        if all(centre + half + 0.06 < left or centre - half - 0.06 > right for left, right in taken):
            pen.text(centre, y, text, size=_TICK, align="center")
            taken.append((centre - half, centre + half))
