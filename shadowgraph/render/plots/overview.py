"""Overview strip on top of a memory map: all buffers on one address axis, every damaged place marked."""

from __future__ import annotations

from collections.abc import Iterable

from shadowgraph.common.words import plural, size
from shadowgraph.render.plots.mark_labels import draw_ids
from shadowgraph.render.plots.page import MARGIN, WIDTH, role_color
from shadowgraph.render.plots.pen import BLACK, FAINT, GREY, PALE, VERMILLION, Pen
from shadowgraph.views.memory_map import MapDamage, MemoryMap
from shadowgraph.views.scales import AddressAxis, Span, address_axis, joined_bars

HEIGHT = 0.95
_STRIP = 0.2
_SLIVER = 0.01  # least width of a bar; bars closer together are joined
_ISLANDS = 1_000  # with more of them not each gets a bar of its own


def draw_overview(pen: Pen, memory: MemoryMap, top: float) -> None:
    """Draw the strip below `top`; there must be at least one buffer."""
    spans = [(b.start - b.head_guard, max(b.start + 1, b.tail[1])) for b in memory.buffers]
    spans += [(damage.first, damage.last + 1) for damage in memory.damages]
    axis = address_axis(spans, MARGIN, WIDTH - MARGIN)
    _caption(pen, axis, top + 0.06)
    strip = top + 0.42
    _buffers(pen, memory, axis, spans[: len(memory.buffers)], strip)
    _folds(pen, axis, strip)
    _marks(pen, memory.damages, axis, strip)
    _addresses(pen, axis, strip + _STRIP + 0.12)


def _caption(pen: Pen, axis: AddressAxis, y: float) -> None:
    text = "all buffers by address, bytes in proportion, guards grey"
    if axis.folds:
        text += f"; {plural(len(axis.folds), 'gap')} of {size(axis.folded_nbytes)} folded"
    pen.text(MARGIN, y, text, size=7.5, color=GREY)


def _buffers(pen: Pen, memory: MemoryMap, axis: AddressAxis, guarded: Iterable[tuple[int, int]], y: float) -> None:
    many = len(axis.islands) > _ISLANDS
    ground = _joined(axis, axis.islands) if many else [axis.scale.span(start, stop) for start, stop in axis.islands]
    pen.bars(ground, y, _STRIP, PALE, edge=FAINT, gid="overview:ground", order=0.8)
    pen.bars(_joined(axis, guarded), y, _STRIP, FAINT, gid="overview:guards", order=1.0)
    for role in sorted({buffer.role for buffer in memory.buffers}):
        own = [(buffer.start, max(buffer.stop, buffer.start + 1)) for buffer in memory.buffers if buffer.role == role]
        pen.bars(_joined(axis, own), y, _STRIP, role_color(role), gid=f"overview:{role}", order=1.1)


def _joined(axis: AddressAxis, spans: Iterable[tuple[int, int]]) -> list[Span]:
    """Positions of spans; spans too close to tell apart are joined, so that the width bounds the number of bars."""
    return joined_bars(axis.scale, spans, _SLIVER, _SLIVER / 2)


def _folds(pen: Pen, axis: AddressAxis, y: float) -> None:
    wide = [(left + right) / 2 for left, right in axis.folds if right - left >= 0.05]
    bottom, top = y + _STRIP + 0.02, y - 0.02
    strokes = [((x + shift, bottom), (x + shift + 0.03, top)) for x in wide for shift in (-0.03, 0.0)]
    if strokes:
        pen.lines(strokes, GREY, width=0.8, gid="overview:folds", order=2.0)


def _marks(pen: Pen, damages: Iterable[MapDamage], axis: AddressAxis, y: float) -> None:
    places = sorted((sum(axis.scale.span(d.first, d.last + 1)) / 2, d.finding) for d in damages)
    if not places:
        return
    lines = [((x, y - 0.06), (x, y + _STRIP + 0.03)) for x, _ in places]
    pen.lines(lines, BLACK, width=2.6, order=2.4)
    pen.lines(lines, VERMILLION, width=1.6, gid="overview:damage", order=2.5)
    draw_ids(pen, places, y - 0.14, (MARGIN, WIDTH - MARGIN))


def _addresses(pen: Pen, axis: AddressAxis, y: float) -> None:
    """Start addresses of as many islands as fit, and the end of the last."""
    end = f"{axis.islands[-1][1]:#x}"
    limit = WIDTH - MARGIN - pen.measure(end, size=6.5, mono=True) - 0.15
    pen.text(WIDTH - MARGIN, y, end, size=6.5, mono=True, color=GREY, align="right")
    free = MARGIN
    for start, _ in axis.islands:
        left, text = axis.scale.x(start), f"{start:#x}"
        if left < free:
            continue  # before its width is measured: there may be 100,000 islands
        width = pen.measure(text, size=6.5, mono=True)
        if left + width > limit:
            return  # later ones begin further right and are no narrower
        pen.text(left, y, text, size=6.5, mono=True, color=GREY)
        free = left + width + 0.15
