"""Scales from addresses to positions on a page, in inches. Every scale is monotonic and piecewise linear."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from shadowgraph.views.memory_map import MapBuffer, MapDamage

Span = tuple[float, float]

_CLOSE = 4096  # bytes that can be told apart on one line, approximately
_FOLD = 0.09  # width of a folded gap
_SLIVER = 0.03  # least width of an island


@dataclass(frozen=True, slots=True)
class Steps:
    """A piecewise linear scale through (address, position) points in ascending order; clamped at both ends."""

    addresses: tuple[int, ...]
    places: tuple[float, ...]

    def x(self, address: int) -> float:
        """Position of an address."""
        position = bisect_right(self.addresses, address) - 1
        if position < 0:
            return self.places[0]
        if position >= len(self.addresses) - 1:
            return self.places[-1]
        low, high = self.addresses[position], self.addresses[position + 1]
        left, right = self.places[position], self.places[position + 1]
        return left + (right - left) * ((address - low) / (high - low))

    def span(self, start: int, stop: int) -> Span:
        """Positions of ``[start, stop)``."""
        return self.x(start), self.x(stop)


@dataclass(frozen=True, slots=True)
class Columns:
    """Columns of a row, left to right: before the buffer, the buffer, after it."""

    head: Span
    payload: Span
    tail: Span


def row_scale(buffer: MapBuffer, damages: Sequence[MapDamage], columns: Columns) -> Steps:
    """Scale of a row: the buffer and each side of it fill their columns.

    A side covers its guard, or twice the distance of damage beyond the guard.
    """
    stop = buffer.start + max(1, buffer.nbytes)
    before = max([0, *(buffer.start - damage.first for damage in damages)])
    after = max([0, *(damage.last + 1 - stop for damage in damages)])
    low = buffer.start - _side(buffer.head_guard, before)
    high = stop + _side(buffer.gap + buffer.tail_guard, after)
    places = (columns.head[0], columns.payload[0], columns.payload[1], columns.tail[1])
    return Steps((low, buffer.start, stop, high), places)


def _side(guard: int, reached: int) -> int:
    """Bytes to show on one side of a buffer."""
    return max(1, guard if reached <= guard else 2 * reached)


def widened(span: Span, least: float, within: Span) -> Span:
    """A span no narrower than `least`, with the same centre, moved inside `within`."""
    left, right = span
    if right - left < least:
        middle = (left + right) / 2
        left, right = middle - least / 2, middle + least / 2
    shift = max(0.0, within[0] - left) - max(0.0, right - within[1])
    return max(within[0], left + shift), min(within[1], right + shift)


def joined(spans: Iterable[Span], least: float) -> list[Span]:
    """Spans in order; spans less than `least` apart are joined."""
    found: list[Span] = []
    for left, right in sorted(spans):
        if found and left - found[-1][1] < least:
            found[-1] = (found[-1][0], max(right, found[-1][1]))
        else:
            found.append((left, right))
    return found


def joined_bars(scale: Steps, spans: Iterable[tuple[int, int]], narrowest: float, least: float) -> list[Span]:
    """Positions of ``[start, stop)`` spans in order, each widened to `narrowest` inside the scale, spans less than
    `least` apart joined: the width bounds the number of bars.
    """
    ends = np.array(list(spans), dtype=np.float64).reshape(-1, 2)  # addresses have fewer than 53 bits
    if not len(ends):
        return []
    low, high = scale.places[0], scale.places[-1]
    left, right = np.interp(ends, scale.addresses, scale.places).T
    lacking = np.maximum(narrowest - (right - left), 0) / 2
    left, right = left - lacking, right + lacking
    shift = np.maximum(low - left, 0) - np.maximum(right - high, 0)
    left, right = np.maximum(low, left + shift), np.minimum(high, right + shift)
    order = np.argsort(left, kind="stable")
    left, reached = left[order], np.maximum.accumulate(right[order])
    begins = np.flatnonzero(np.concatenate(([True], left[1:] - reached[:-1] >= least)))
    stops = np.append(begins[1:], len(left)) - 1
    return list(zip(left[begins].tolist(), reached[stops].tolist(), strict=True))


def side_of(address: int, buffer: MapBuffer, columns: Columns) -> Span:
    """The column of a row that holds an address."""
    if address < buffer.start:
        return columns.head
    return columns.tail if address >= buffer.stop else columns.payload


def split(first: int, last: int, buffer: MapBuffer) -> list[tuple[int, int]]:
    """An inclusive range as ``[start, stop)`` pieces, cut at the buffer's edges."""
    cuts = [cut for cut in (buffer.start, buffer.stop) if first < cut <= last]
    edges = [first, *cuts, last + 1]
    return list(pairwise(edges))


def zoom_window(buffer: MapBuffer, damage: MapDamage) -> tuple[int, int]:
    """Addresses ``[start, stop)`` to show around damage: some bytes on both sides, and the crossed edge unless it lies
    so far off that the damage would shrink to nothing.

    Of damage that reaches from deep inside the buffer to beyond one edge, only the part beyond is shown.
    """
    first, last = _focus(buffer, damage)
    around = max(8, (last + 1 - first) // 4)
    start, stop = first - around, last + 1 + around
    near = 4 * max(last + 1 - first, 32)
    for edge, outside in ((buffer.start, first < buffer.start), (buffer.stop, last >= buffer.stop)):
        distance = max(first - edge, edge - last - 1, 0)
        if outside and distance <= near:
            start, stop = min(start, edge - around), max(stop, edge + around)
    return start, stop


def _focus(buffer: MapBuffer, damage: MapDamage) -> tuple[int, int]:
    first, last = damage.first, damage.last
    before, after = first < buffer.start, last >= buffer.stop
    if last - first < _CLOSE or before == after:
        return first, last
    return (first, min(last, buffer.start - 1)) if before else (max(first, buffer.stop), last)


def spread(centres: Sequence[float], widths: Sequence[float], within: Span, gap: float = 0.08) -> list[float]:
    """Left ends for labels in ascending order: near their centres, inside `within`, without overlap as long as they fit
    side by side.
    """
    lefts: list[float] = []
    free = within[0]
    for centre, width in zip(centres, widths, strict=True):
        lefts.append(max(free, centre - width / 2))
        free = lefts[-1] + width + gap
    limit = within[1]
    for index in reversed(range(len(lefts))):
        lefts[index] = min(lefts[index], limit - widths[index])
        limit = lefts[index] - gap
    return lefts


@dataclass(frozen=True, slots=True)
class AddressAxis:
    """All memory on one axis: bytes in proportion, wide gaps folded to a constant width.

    Attributes
    ----------
    scale
        Address to position.
    folds
        Positions of the folded gaps.
    folded_nbytes
        Total size of the folded gaps.
    islands
        ``[start, stop)`` between folds.
    """

    scale: Steps
    folds: tuple[Span, ...]
    folded_nbytes: int
    islands: tuple[tuple[int, int], ...]


def address_axis(spans: Iterable[tuple[int, int]], left: float, right: float) -> AddressAxis:
    """An axis from `left` to `right` for ``[start, stop)`` spans in any order, at least one.

    A gap is folded when it is longer than a quarter of the used bytes spread over all spans, so that the remaining gaps
    take a fifth of the axis at most.
    """
    ordered = sorted(spans)
    islands = _islands(ordered, 0)
    used = sum(stop - start for start, stop in islands)
    islands = _islands(ordered, used // (4 * len(islands)))
    folds = len(islands) - 1
    room = right - left
    fold = min(_FOLD, room / 4 / max(1, folds))
    sliver = min(_SLIVER, room / 4 / len(islands))
    each = (room - fold * folds - sliver * len(islands)) / sum(stop - start for start, stop in islands)
    addresses: list[int] = []
    places: list[float] = []
    place = left
    for start, stop in islands:
        addresses += [start, stop]
        places += [place, place + sliver + each * (stop - start)]
        place = places[-1] + fold
    gaps = tuple(zip(places[1::2], places[2::2], strict=False))
    unused = sum(two - one for one, two in zip(addresses[1::2], addresses[2::2], strict=False))
    return AddressAxis(Steps(tuple(addresses), tuple(places)), gaps, unused, tuple(islands))


def _islands(ordered: list[tuple[int, int]], reach: int) -> list[tuple[int, int]]:
    """Spans, joined where the gap is at most `reach` bytes."""
    joined = [ordered[0]]
    for start, stop in ordered[1:]:
        low, high = joined[-1]
        if start - high <= reach:
            joined[-1] = (low, max(high, stop))
        else:
            joined.append((start, stop))
    return joined
