"""Horizontal axis of nodes or replays: a column for each, merged where there are too many to tell apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from shadowgraph.render.plots.page import MARGIN, WIDTH
from shadowgraph.render.plots.pen import FAINT, GREY, Pen
from shadowgraph.views.scales import Span

EAGER = -1  # the column of eager code before the graph
_LEFT = 3.7
_WIDEST = 1.2  # inches of one column
_BIN = 0.02  # columns closer together are drawn as one
_TICK = 6.5


@dataclass(frozen=True, slots=True)
class Axis:
    """Columns of equal width, from `left` on.

    Attributes
    ----------
    eager
        Position of the extra first column, or None.
    """

    left: float
    unit: float
    count: int
    eager: Span | None = None

    @classmethod
    def of(cls, count: int, *, eager: bool = False, left: float = _LEFT, right: float = WIDTH - MARGIN) -> Axis:
        """Columns that fill the width, each no wider than needed."""
        before = (left, left + 0.4) if eager else None
        start = left + 0.5 if eager else left
        return cls(start, min(_WIDEST, (right - start) / max(1, count)), count, before)

    @property
    def span(self) -> Span:
        """From the first column to the end of the last."""
        first = self.eager[0] if self.eager is not None else self.left
        return first, self.left + self.unit * self.count

    def cell(self, index: int) -> Span:
        """Position of a column; columns that cannot be told apart share one position."""
        if index == EAGER and self.eager is not None:
            return self.eager[0] + 0.05, self.eager[1] - 0.05
        start = self.left + self.unit * index
        if self.unit < _BIN:
            start = self.left + int(self.unit * index / _BIN) * _BIN
            return round(start, 3), round(start + _BIN, 3)
        gap = self.unit * 0.12 if self.unit > 0.05 else 0.0
        return start + gap, start + self.unit - gap

    def middle(self, index: int) -> float:
        """The middle of a column."""
        return sum(self.cell(index)) / 2


def draw_axis(pen: Pen, axis: Axis, labels: Sequence[str], y: float, top: float, bottom: float) -> None:
    """Labels of columns, as many as fit, and faint lines below them."""
    free = 0.0
    lines = []
    if axis.eager is not None:
        middle = sum(axis.eager) / 2
        pen.text(middle, y, "before", size=_TICK, color=GREY, align="center")
        edge = (axis.eager[1] + axis.left) / 2
        pen.lines([((edge, top - 0.05), (edge, bottom))], GREY, width=0.8, dashed=True, order=0.7)
        free = middle + pen.measure("before", size=_TICK) / 2 + 0.06
    step = _step(pen, axis, labels)
    for index in range(0, axis.count, step):
        x, half = axis.middle(index), pen.measure(labels[index], size=_TICK) / 2
        if x - half >= free:
            pen.text(x, y, labels[index], size=_TICK, color=GREY, align="center")
            lines.append(((x, top - 0.04), (x, top)))
            free = x + half + 0.08
    if lines:
        pen.lines(lines, FAINT, width=0.6)


def _step(pen: Pen, axis: Axis, labels: Sequence[str]) -> int:
    """Step between labelled columns: 1, 2, 5, 10, ..."""
    widest = max((pen.measure(label, size=_TICK) for label in (*labels[:1], *labels[-1:])), default=0.1)
    step, factors = 1, (2, 2.5, 2)
    turn = 0
    while axis.unit * step < widest + 0.12 and step < axis.count:
        step = int(step * factors[turn % 3])
        turn += 1
    return step
