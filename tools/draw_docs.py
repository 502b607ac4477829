"""Draw the diagrams of ``docs/how.md``: python tools/draw_docs.py"""

from __future__ import annotations

import sys
from collections.abc import Callable
from html import escape
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
IMAGES = ROOT / "docs" / "images"
INK, FAINT, PAPER = "#1b1f24", "#8a929b", "#ffffff"
BLUE, GREEN, ORANGE, GREY, RED = "#cfe3f7", "#d5ecd4", "#f9dfb8", "#e6e8eb", "#c0392b"
_GUARD = (
    '<pattern id="guard" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
    f'<rect width="6" height="6" fill="{PAPER}"/><line x1="0" y1="0" x2="0" y2="6" stroke="{RED}" stroke-width="2.4"/>'
    "</pattern>"
)
_HEAD = (
    '<marker id="head" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" orient="auto">'
    f'<path d="M0,0 L10,5 L0,10 z" fill="{INK}"/></marker>'
)


class Sheet:
    """A picture in the making; lengths in pixels, y downward. White ground, so that it reads on a dark page too."""

    def __init__(self, width: int, height: int, about: str) -> None:
        self.width, self.height, self.about = width, height, about
        self.parts: list[str] = []

    def box(self, x: float, y: float, width: float, height: float, fill: str, said: str = "") -> None:
        edge = FAINT if fill == PAPER else INK
        self.parts.append(
            f'<rect x="{x}" y="{y}" width="{width}" height="{height}" fill="{fill}" stroke="{edge}" stroke-width="1"/>'
        )
        if said:
            self.text(x + width / 2, y + height / 2 + 4.5, said, anchor="middle")

    def text(self, x: float, y: float, said: str, anchor: str = "start", color: str = INK, bold: bool = False) -> None:
        weight = ' font-weight="bold"' if bold else ""
        self.parts.append(f'<text x="{x}" y="{y}" text-anchor="{anchor}" fill="{color}"{weight}>{escape(said)}</text>')

    def arrow(self, x1: float, y1: float, x2: float, y2: float, color: str = INK) -> None:
        self.parts.append(
            f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" stroke="{color}" stroke-width="1.4"'
            ' marker-end="url(#head)"/>'
        )

    def line(self, x1: float, y1: float, x2: float, y2: float, color: str = FAINT, dashed: bool = False) -> None:
        dash = ' stroke-dasharray="4 3"' if dashed else ""
        self.parts.append(f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" stroke="{color}" stroke-width="1.4"{dash}/>')

    def svg(self) -> str:
        size = f'width="{self.width}" height="{self.height}" viewBox="0 0 {self.width} {self.height}"'
        head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="13" role="img">'
        ground = f'<rect width="{self.width}" height="{self.height}" fill="{PAPER}" rx="6"/>'
        title = f"<title>{escape(self.about)}</title>"
        return "\n".join((head, title, f"<defs>{_GUARD}{_HEAD}</defs>", ground, *self.parts, "</svg>", ""))


def phases() -> Sheet:
    """Phases in the order of a stream, with what is done at each boundary."""
    sheet = Sheet(860, 200, "Phases of a program and what is checked at each boundary between them")
    spans = (
        ("setup", 110, GREY), ("capture", 90, ORANGE), ("setup", 60, GREY), ("prepare 1", 120, BLUE),
        ("replay 1", 110, GREEN), ("prepare 2", 120, BLUE), ("replay 2", 110, GREEN), ("...", 60, PAPER),
    )  # fmt: skip
    x, edges = 40.0, []
    for said, width, fill in spans:
        sheet.box(x, 60, width, 44, fill, said)
        x += width
        edges.append(x)
    sheet.text(40, 36, "one stream of the program, in its order", color=FAINT)
    for place, edge in enumerate(edges[:-1]):
        if place != 1:  # the end of a capture checks nothing
            sheet.line(edge, 48, edge, 126, RED, dashed=place == 2)
    sheet.text(
        820, 36, "red: guards are compared with their canary; dashed: where prepare() marks it", anchor="end", color=RED
    )
    begins, ends = edges[3], edges[4]
    sheet.arrow(begins, 164, begins, 130)
    sheet.text(begins - 8, 156, "replay begins: values are", anchor="end")
    sheet.text(begins - 8, 174, "copied into the snapshot, rules judged", anchor="end")
    sheet.arrow(ends, 164, ends, 130)
    sheet.text(ends + 8, 156, "replay ends: values are")
    sheet.text(ends + 8, 174, "compared with the snapshot")
    return sheet


def layouts() -> Sheet:
    """Where guards stand: around a static buffer, and in both layouts of a capture."""
    sheet = Sheet(860, 340, "Where guards stand around static buffers and in the two layouts of a capture")
    guard = "url(#guard)"

    def row(y: float, x: float, pieces: tuple[tuple[str, float, str], ...]) -> float:
        for said, width, fill in pieces:
            sheet.box(x, y, width, 36, fill, said)
            x += width
        return x

    sheet.text(40, 30, "Static buffers, from guard() or guard_eager: spans of a slab", bold=True)
    span = (("", 40, guard), ("kv_indices", 150, BLUE), ("", 95, guard))
    row(40, row(40, 40, span), (("", 40, guard), ("kv_indptr", 110, BLUE), ("", 95, guard)))
    sheet.text(
        40, 94, "near guard, buffer of exact size, near and far guard behind it; far grows with the buffer", color=FAINT
    )
    sheet.text(
        40, 132, "isolate: each tensor of the capture in a segment of its own; what it frees is not reused", bold=True
    )
    for place, said in enumerate(("tensor A", "tensor B", "tensor C")):
        row(142, 40 + 262 * place, (("", 30, guard), (said, 120, ORANGE), ("", 80, guard)))
    sheet.text(40, 196, "every guard is exact: one byte past the end is seen", color=FAINT)
    sheet.text(
        40,
        234,
        "faithful: the program's own pool, its own reuse; guards only in bytes that it gave to nobody",
        bold=True,
    )
    row(
        244, 40,
        (("A, later D", 130, ORANGE), ("", 28, guard), ("tensor B", 128, ORANGE), ("tensor C", 140, ORANGE),
         ("", 40, guard), ("tensor E", 110, ORANGE), ("", 204, guard)),
    )  # fmt: skip
    sheet.box(666, 251, 130, 22, PAPER, "rest of segment")
    sheet.text(
        40,
        298,
        "Behind A and D: after the larger of the two tenants, so that for the smaller one it is inexact.",
        color=FAINT,
    )
    sheet.text(
        40, 316, "Behind B: none, since B fills its block. The last line of the report counts such bytes.", color=FAINT
    )
    return sheet


def locate() -> Sheet:
    """From damage to a name: the next replay runs node by node with a look after each."""
    sheet = Sheet(860, 270, "How a culprit is named: the next replay runs node by node")
    sheet.text(40, 32, "replay n: its nodes run as the program captured them", bold=True)
    for place in range(5):
        sheet.box(40 + 62 * place, 44, 48, 32, GREEN, str(place))
    sheet.arrow(356, 60, 400, 60)
    sheet.box(404, 44, 190, 32, PAPER, "a guard is broken")
    sheet.text(606, 58, "finding #1, revision 1:")
    sheet.text(606, 76, "candidates")
    sheet.text(40, 122, "replay n + 1: one after the other, a look at the damaged bytes behind each", bold=True)
    for place in range(5):
        x = 40 + 152 * place
        hit = place == 2
        sheet.box(x, 136, 48, 32, ORANGE if hit else GREEN, str(place))
        sheet.arrow(x + 48, 152, x + 68, 152)
        sheet.box(x + 70, 140, 52, 24, PAPER, "look")
        if place < 4:
            sheet.arrow(x + 122, 152, x + 150, 152)
        if hit:
            sheet.text(x + 96, 186, "changed", anchor="middle", color=RED)
            sheet.arrow(x + 96, 192, x + 96, 216)
            sheet.text(x + 96, 234, "finding #1, revision 2: node 2, confirmed", anchor="middle")
            sheet.text(x + 96, 252, "its kernel, line, and the argument that led there", anchor="middle", color=FAINT)
    return sheet


SHEETS: dict[str, Callable[[], Sheet]] = {"phases": phases, "layouts": layouts, "locate": locate}


def main() -> int:
    IMAGES.mkdir(exist_ok=True)
    for name, made in SHEETS.items():
        (IMAGES / f"{name}.svg").write_text(made().svg(), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
