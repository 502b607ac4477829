"""Memory map as bars of an HTML page: one row a buffer, made of the style sheet's own boxes, so that it needs no
drawing library and follows the page's theme. Rows are those of the text and matplotlib maps.

Made by the status server's threads. Holds plain data.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from shadowgraph.common.words import form, plural, size
from shadowgraph.model.ranges import ByteRange
from shadowgraph.views.map_places import by, where
from shadowgraph.views.map_rows import Fold, Row, rows_of
from shadowgraph.views.memory_map import MapBuffer, MapDamage, MemoryMap

ROWS = 40
_HEAD, _TAIL = 12.0, 30.0  # percent of the width; the buffer has the rest
_LEAST = 0.6  # percent; broken bytes can be seen at any scale


@dataclass(frozen=True, slots=True)
class Bar:
    """A box at ``left`` with ``width``, in percent of the row; `css` is guard, damage, or the buffer's role."""

    css: str
    left: float
    width: float
    tip: str = ""


@dataclass(frozen=True, slots=True)
class BarMark:
    """A finding on a buffer; `href` leads to it, empty where it has no page."""

    label: str
    text: str
    href: str = ""


@dataclass(frozen=True, slots=True)
class BarRow:
    """A buffer, or with `folded` the number and size of buffers without a row of their own."""

    name: str = ""
    about: str = ""
    address: str = ""
    bars: tuple[Bar, ...] = ()
    marks: tuple[BarMark, ...] = ()
    folded: str = ""


@dataclass(frozen=True, slots=True)
class BarMap:
    """The rows of a map, and its counts."""

    counts: str
    rows: tuple[BarRow, ...]
    roles: tuple[str, ...]


def bar_map(memory: MemoryMap, page_of: Callable[[MapDamage], str], limit: int = ROWS) -> BarMap:
    """The bars of a map.

    Parameters
    ----------
    page_of
        The address of a finding's page, empty without one.
    """
    rows = tuple(_row(memory, row, page_of) for row in rows_of(memory, limit)) if memory.buffers else ()
    total = size(sum(buffer.nbytes for buffer in memory.buffers))
    found = plural(len(memory.damages), "finding") if memory.damages else "no findings on them"
    roles = tuple(sorted({buffer.role if buffer.alive else "freed" for buffer in memory.buffers}))
    return BarMap(f"{plural(len(memory.buffers), 'buffer')}, {total}; {found}", rows, roles)


def _row(memory: MemoryMap, row: Row | Fold, page_of: Callable[[MapDamage], str]) -> BarRow:
    if isinstance(row, Fold):
        damaged = f", {row.damaged:,} with findings" if row.damaged else ""
        return BarRow(folded=f"{plural(row.count, 'buffer')}, {size(row.nbytes)}{damaged}")
    buffer = memory.buffers[row.index]
    graph = f" of {buffer.graph}" if buffer.graph is not None else ""
    fate = "" if buffer.alive else ", freed"
    return BarRow(
        name=buffer.name,
        about=f"{form(buffer.dtype, buffer.shape)}, {size(buffer.nbytes)}, {buffer.role}{graph}{fate}",
        address=f"{buffer.start:#x}",
        bars=tuple(_bars(buffer, row.damages)),
        marks=tuple(_mark(damage, buffer, page_of(damage)) for damage in row.damages),
    )


def _mark(damage: MapDamage, buffer: MapBuffer, href: str) -> BarMark:
    return BarMark(
        f"#{damage.finding} {damage.code}" if not href else damage.code,
        f"{where(damage, buffer)}{by(damage)} {damage.when}".rstrip(),
        href,
    )


def _bars(buffer: MapBuffer, damages: tuple[MapDamage, ...]) -> Iterator[Bar]:
    """Guards and the buffer, each in columns of its own; then the broken bytes over them."""
    start, stop, tail = buffer.start, max(buffer.stop, buffer.start + 1), buffer.tail
    columns = (
        (ByteRange(start - max(buffer.head_guard, 1), start), 0.0, _HEAD),
        (ByteRange(start, stop), _HEAD, 100.0 - _TAIL),
        (ByteRange(stop, max(tail[1], stop + 1)), 100.0 - _TAIL, 100.0),
    )
    (_, _, head), (_, _, body), _ = columns
    if buffer.head_guard:
        yield Bar("guard", 0.0, head, f"guard of {plural(buffer.head_guard, 'byte')} before it")
    if buffer.tail_guard:
        yield Bar("guard", body, 100.0 - body, f"guard of {plural(buffer.tail_guard, 'byte')} after it")
    yield Bar(buffer.role if buffer.alive else "freed", head, body - head, plural(buffer.nbytes, "byte"))
    for damage in damages:
        for first, last in damage.pieces if damage.located else ():
            yield from _damage(first, last + 1, columns, damage)


def _damage(
    first: int, stop: int, columns: tuple[tuple[ByteRange, float, float], ...], damage: MapDamage
) -> Iterator[Bar]:
    """The parts of broken bytes in each column."""
    for span, left, right in columns:
        low, high = max(first, span.start), min(stop, span.stop)
        if low < high:
            scale = (right - left) / (span.stop - span.start)
            at = min(left + (low - span.start) * scale, right - _LEAST)
            width = min(max((high - low) * scale, _LEAST), right - at)
            yield Bar("damage", round(at, 3), round(width, 3), f"{damage.code}: {plural(stop - first, 'byte')}")
