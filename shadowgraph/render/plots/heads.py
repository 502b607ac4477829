"""Header of every page: a title, a line of counts, and a legend of the styles in the picture."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from shadowgraph.render.plots.page import MARGIN, WIDTH
from shadowgraph.render.plots.pen import BLACK, Pen

HEAD = 1.05
_BOX = 0.28


@dataclass(frozen=True, slots=True)
class Entry:
    """A style and its meaning; `edge` is the hatch's colour, where there is one."""

    color: str
    text: str
    edge: str = BLACK
    hatch: str | None = None
    dashed: bool = False


def draw_head(pen: Pen, title: str, counts: str, legend: Iterable[Entry] = ()) -> None:
    """Write title, counts and legend into the first `HEAD` inches; last legend entries without room are dropped."""
    room = WIDTH - 2 * MARGIN
    pen.text(MARGIN, 0.3, title, size=13, bold=True, room=room, gid="title")
    pen.text(MARGIN, 0.54, counts, size=9, room=room, gid="counts")
    x, y, height = MARGIN, HEAD - 0.25, 0.14
    for entry in legend:
        need = _BOX + 0.07 + pen.measure(entry.text, size=8)
        if x + need > WIDTH - MARGIN:
            return
        look = {"edge": entry.edge, "hatch": entry.hatch, "dashed": entry.dashed}
        pen.bars([(x, x + _BOX)], y - height / 2, height, entry.color, **look)  # type: ignore[arg-type]
        pen.text(x + _BOX + 0.07, y, entry.text, size=8)
        x += need + 0.25


def blank_page(title: str, said: str) -> Pen:
    """A page that explains why it is empty."""
    pen = Pen(WIDTH, 0.85)
    draw_head(pen, title, said)
    return pen
