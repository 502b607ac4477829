"""Memory map as text and JSON: one line for a buffer with its guards and damage, runs of other buffers folded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
from rich.text import Text

from shadowgraph.common.words import form, plural, size
from shadowgraph.render.text.shown import Reporter, said
from shadowgraph.views.map_places import by, reach
from shadowgraph.views.map_rows import Fold, Row, rows_of
from shadowgraph.views.memory_map import MapBuffer, MapDamage, MemoryMap

SCHEMA = "shadowgraph.map/1"
_HEAD, _BODY, _TAIL = 4, 24, 8  # columns of a bar
_NAME = 48
_STYLES = {"static": "cyan", "pool": "yellow", "foreign": "green"}


class DumpedMap(msgspec.Struct, frozen=True):
    """The map of one process."""

    pid: int
    dump: str
    map: MemoryMap


class MapReport(Reporter):
    """Memory maps, ready to be shown. Holds data only.

    Parameters
    ----------
    limit
        Buffers with a line of their own; damaged ones keep theirs beyond it.
    """

    schema = SCHEMA

    def __init__(self, maps: Sequence[DumpedMap], limit: int) -> None:
        self.maps, self.limit = tuple(maps), limit

    def document(self) -> dict[str, Any]:
        return {"maps": self.maps}

    def lines(self, width: int | None = None) -> Iterator[Text]:
        """Every line; names are shortened only on a terminal."""
        for place, each in enumerate(self.maps):
            if place:
                yield Text()
            yield said(f"memory of process {each.pid}: {_counts(each.map)}", "bold")
            for row in rows_of(each.map, self.limit):
                yield from _fold(each.map, row) if isinstance(row, Fold) else _row(each.map, row, width)
        if any(each.map.buffers for each in self.maps):
            yield said(f"{'=' * 3} guard   ### buffer, --- freed   ! bytes that a finding is about", "dim")


def _counts(memory: MemoryMap) -> str:
    buffers = memory.buffers
    guarded = sum(buffer.tail_guard > 0 for buffer in buffers)
    total = sum(buffer.nbytes for buffer in buffers)
    found = plural(len(memory.damages), "finding") if memory.damages else "no findings on them"
    return f"{plural(len(buffers), 'buffer')}, {size(total)}, {guarded:,} guarded; {found}"


def _fold(memory: MemoryMap, row: Fold) -> Iterator[Text]:
    damaged = f", {row.damaged:,} with findings" if row.damaged else ""
    yield said(
        f"  {memory.buffers[row.first].start:#014x}  ... {plural(row.count, 'buffer')}, {size(row.nbytes)}{damaged}",
        "dim",
    )


def _row(memory: MemoryMap, row: Row, width: int | None) -> Iterator[Text]:
    buffer = memory.buffers[row.index]
    yield _first_line(buffer, row.damages, width)
    indent = " " * 18
    for damage in row.damages:
        yield said(f"{indent}#{damage.finding} {damage.code}: {reach(damage, buffer)}{by(damage)} {damage.when}", "red")
    for owner in row.owners:
        what = f"{buffer.name}{owner.relation}" if owner.relation[:1] in ("", "[", ".") else owner.relation
        yield said(f"{indent}also {', '.join(owner.names[:4])}: {what}", "dim")
    if row.more_owners:
        yield said(f"{indent}... and {plural(row.more_owners, 'more owner')}", "dim")


def _first_line(buffer: MapBuffer, damages: Sequence[MapDamage], width: int | None) -> Text:
    """Address, bar, name and form of a buffer."""
    line = said(f"  {buffer.start:#014x}  ")
    line.append(_bar(buffer, damages), style="bold red" if damages else _STYLES.get(buffer.role, ""))
    name = buffer.name if width is None or len(buffer.name) <= _NAME else f"...{buffer.name[3 - _NAME :]}"
    line.append_text(said(f"  {name}", "bold"))
    graph = f" of {buffer.graph}" if buffer.graph is not None else ""
    fate = "" if buffer.alive else ", freed"
    line.append_text(said(f"  {form(buffer.dtype, buffer.shape)}  {size(buffer.nbytes)}, {buffer.role}{graph}{fate}"))
    return line


def _bar(buffer: MapBuffer, damages: Sequence[MapDamage]) -> str:
    """``====[####!###]========``: guards and the buffer, each in columns of its own; `!` marks damage."""
    head = ["="] * _HEAD if buffer.head_guard else [" "] * _HEAD
    body = ["#" if buffer.alive else "-"] * _BODY
    tail = ["="] * _TAIL if buffer.tail_guard else [" "] * _TAIL
    for damage in damages:
        if damage.located:
            for first, last in damage.pieces:
                _strike(body, first, last, buffer.start, buffer.stop)
                _strike(head, first, last, buffer.start - max(buffer.head_guard, 1), buffer.start)
                _strike(tail, first, last, buffer.stop, max(buffer.tail[1], buffer.stop + 1))
    return f"{''.join(head)}[{''.join(body)}]{''.join(tail)}"


def _strike(cells: list[str], first: int, last: int, start: int, stop: int) -> None:
    """Mark the cells that hold a range of bytes, where `cells` stand for ``[start, stop)``."""
    first, last = max(first, start), min(last, stop - 1)
    if first <= last:
        left, right = ((at - start) * len(cells) // (stop - start) for at in (first, last))
        for cell in range(left, right + 1):
            cells[cell] = "!"
