"""HTML building blocks of the status pages: no scripts, and no external resources."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence

from shadowgraph.common.console import tame

_STYLE = """
:root { color-scheme: light dark; --line: #8884; --bad: #d1242f; --good: #1a7f37; --warn: #9a6700; }
@media (prefers-color-scheme: dark) { :root { --bad: #ff7b72; --good: #56d364; --warn: #e3b341; } }
body { font: 14px/1.45 system-ui, sans-serif; margin: 1.2rem auto; max-width: 78rem; padding: 0 1rem; }
h1 { font-size: 1.15rem; margin: 0 0 .2rem; overflow-wrap: anywhere; }
h2 { font-size: 1rem; margin: 1.6rem 0 .4rem; }
p { margin: .2rem 0; } nav a { margin-right: 1rem; }
.tiles { display: flex; flex-wrap: wrap; gap: .6rem; margin: 1rem 0; }
.tile { border: 1px solid var(--line); border-radius: 6px; padding: .5rem .8rem; min-width: 8rem; }
.tile b { display: block; font-size: 1.3rem; font-variant-numeric: tabular-nums; }
table { border-collapse: collapse; width: 100%; } .wide { overflow-x: auto; }
th, td { border-bottom: 1px solid var(--line); padding: .25rem .6rem .25rem 0; text-align: left; vertical-align: top; }
th { font-weight: 600; } td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; }
td.text { overflow-wrap: anywhere; min-width: 16rem; }
.bad { color: var(--bad); } .good { color: var(--good); } .warn { color: var(--warn); } .dim { opacity: .7; }
code { font-family: ui-monospace, monospace; font-size: .92em; }
"""

Cell = str | int | float


def text(words: object) -> str:
    """Text escaped for HTML, without markup and without bidirectional control characters."""
    return html.escape(tame(str(words)))


def page(title: str, body: Iterable[str], refresh: int | None = None) -> bytes:
    """A complete page; with `refresh`, the browser reloads it at that interval in seconds."""
    again = f'<meta http-equiv="refresh" content="{refresh}">' if refresh else ""
    head = f'<meta charset="utf-8">{again}<title>{text(title)}</title><style>{_STYLE}</style>'
    inside = "\n".join(body)
    whole = f'<!doctype html>\n<html lang="en"><head>{head}</head>\n<body>\n{inside}\n</body></html>\n'
    return whole.encode("utf-8", "backslashreplace")


def tile(id: str, label: str, value: str, tone: str = "") -> str:
    """One number; `tone` is good, bad, warn or empty."""
    return f'<div class="tile" id="{id}"><b class="{tone}">{text(value)}</b>{text(label)}</div>'


def table(id: str, headings: Sequence[str], rows: Iterable[Sequence[Cell]], left_out: int = 0) -> str:
    """A table; numbers are right-aligned, the last column takes the remaining width."""
    shown = [list(row) for row in rows]
    numbers = {at for row in shown[:1] for at, cell in enumerate(row) if isinstance(cell, (int, float))}
    head = "".join(f"<th{_kind(at in numbers, False)}>{text(name)}</th>" for at, name in enumerate(headings))
    last = len(headings) - 1
    body = "".join(
        "<tr>"
        + "".join(f"<td{_kind(at in numbers, at == last)}>{_cell(cell)}</td>" for at, cell in enumerate(row))
        + "</tr>"
        for row in shown
    )
    more = f'<p class="dim">... and {left_out:,} more</p>' if left_out > 0 else ""
    return f'<div class="wide"><table id="{id}"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>{more}'


def _kind(number: bool, last: bool) -> str:
    return ' class="number"' if number else ' class="text"' if last else ""


def _cell(cell: Cell) -> str:
    return f"{cell:,}" if isinstance(cell, (int, float)) else text(cell)
