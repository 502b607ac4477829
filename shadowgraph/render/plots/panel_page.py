"""Page of a picture: a title, a line of counts and a legend, then panels below each other; the skeleton of every map.

Called by the drawing functions of the kinds of maps, in any thread.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shadowgraph.render.plots.page import LABELS, MARGIN, NOTES, WIDTH
from shadowgraph.render.plots.pen import BLACK, FAINT, Pen
from shadowgraph.views.map_rows import runs

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HEAD = 1.05
_BLANK = 0.85
_BOX = 0.28


@dataclass(frozen=True, slots=True)
class Entry:
    """A style and its meaning; `edge` is the hatch's colour, where there is one."""

    color: str
    text: str
    edge: str = BLACK
    hatch: str | None = None
    dashed: bool = False
    height: float = 0.14


@dataclass(frozen=True, slots=True)
class Panel:
    """A part of a page: its height in inches, and the function that draws it below a given place."""

    height: float
    draw: Callable[[Pen, float], None]


class PanelPage:
    """A page with its head drawn, and room for its panels.

    Parameters
    ----------
    above, below
        Inches between head and panels, and below the panels.

    Attributes
    ----------
    pen
        Draws on the page.
    top, bottom
        Where the first panel begins and the last one ends.
    """

    def __init__(
        self,
        title: str,
        counts: str,
        legend: Iterable[Entry],
        panels: Sequence[Panel],
        *,
        above: float = 0.0,
        below: float = 0.0,
    ) -> None:
        self._panels = panels
        self.top = HEAD + above
        self.bottom = self.top + sum(panel.height for panel in panels)
        self.pen = Pen(WIDTH, self.bottom + below + MARGIN)
        _draw_head(self.pen, title, counts, legend)

    def draw_panels(self, rule: float | None = NOTES[1]) -> Figure:
        """The figure, with the panels, each below a faint line that ends at `rule`."""
        top = self.top
        for panel in self._panels:
            if rule is not None:
                self.pen.lines([((LABELS[0], top), (rule, top))], FAINT, width=0.4)
            panel.draw(self.pen, top)
            top += panel.height
        return self.pen.figure


def blank_page(title: str, said: str) -> Figure:
    """A page that explains why it is empty."""
    pen = Pen(WIDTH, _BLANK)
    _draw_head(pen, title, said, ())
    return pen.figure


def with_folds(
    count: int, shown: Collection[int], panel: Callable[[int], Panel], fold: Callable[[int, int], Panel]
) -> list[Panel]:
    """The `shown` ones of `count` panels in order, and a fold for each run ``[first, stop)`` of the others."""
    made = {place: panel(place) for place in shown}
    made |= {first: fold(first, stop) for first, stop in runs(count, set(shown))}
    return [made[place] for place in sorted(made)]


def fitting(order: Iterable[int], size_of: Callable[[int], float], room: float) -> list[int]:
    """The first places in `order` that fit into a page, at least one, sorted."""
    found: list[int] = []
    for place in order:
        room -= size_of(place)
        if found and room < 0:
            break
        found.append(place)
    return sorted(found)


def _draw_head(pen: Pen, title: str, counts: str, legend: Iterable[Entry]) -> None:
    """Write title, counts and legend into the first `HEAD` inches; last legend entries without room are dropped."""
    room = WIDTH - 2 * MARGIN
    pen.text(MARGIN, 0.3, title, size=13, bold=True, room=room, gid="title")
    pen.text(MARGIN, 0.54, counts, size=9, room=room, gid="counts")
    x, y = MARGIN, HEAD - 0.25
    for entry in legend:
        need = _BOX + 0.07 + pen.measure(entry.text, size=8)
        if x + need > WIDTH - MARGIN:
            return
        look = {"edge": entry.edge, "hatch": entry.hatch, "dashed": entry.dashed}
        pen.bars([(x, x + _BOX)], y - entry.height / 2, entry.height, entry.color, **look)  # type: ignore[arg-type]
        pen.text(x + _BOX + 0.07, y, entry.text, size=8)
        x += need + 0.25
