"""A preparation that seems lost, and the comparison of what was prepared with what the replay finds.

Used by `LostPreparations`, under the debugger's lock. Pure but for the records that it changes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from shadowgraph.checks.base import Checkpoint
from shadowgraph.checks.lost_preparation.facts import Known
from shadowgraph.checks.lost_preparation.preparations import Copy, Prepared
from shadowgraph.checks.row_epochs import stretches, unequal
from shadowgraph.model.buffers import Buffer
from shadowgraph.model.graphs import Graph
from shadowgraph.model.ranges import ByteRange, RangeSet

LARGEST = 1 << 16  # bytes of one preparation that are compared


@dataclass(slots=True, eq=False)
class Loss:
    """Bytes that a graph was to find as one write prepared them, and finds as another write left them.

    Attributes
    ----------
    lost, by
        The two writes.
    graph, replay, checkpoint
        The replay that was to read the bytes.
    parts
        The bytes, as far as no graph has written them since.
    doubtful
        Whether it is not sure that the graph reads them before it writes them, or that no graph has written them.
    found
        What the replay finds there; `data` is None until it arrives.
    known, other
        How it is known which graphs the writes were for, and for which one the culprit wrote; None until it is known.
    """

    lost: Prepared
    by: Prepared
    graph: Graph
    replay: int
    checkpoint: Checkpoint
    parts: RangeSet
    doubtful: bool
    found: list[Copy] = field(default_factory=list)
    known: Known | None = None
    other: Graph | None = None
    other_replay: int | None = None

    @property
    def waits(self) -> bool:
        """Whether bytes that are to be compared have not arrived."""
        return any(copy.data is None for copy in (*self.found, *self.lost.copies))


@dataclass(frozen=True, slots=True)
class Difference:
    """Bytes in one buffer that differ, in whole elements: absolute ranges, and the first bytes of both."""

    buffer: Buffer
    ranges: tuple[ByteRange, ...]
    window: int | None = None
    expected: bytes = b""
    found: bytes = b""


def comparable(lost: Prepared, parts: RangeSet) -> list[ByteRange]:
    """The bytes of some parts of which copies exist, or are on the way."""
    return [both for copy in lost.copies for both in parts.intersection(copy.where)]


def limited(ranges: Iterable[ByteRange]) -> list[ByteRange]:
    """The first ranges, up to `LARGEST` bytes of all."""
    left, found = LARGEST, []
    for where in ranges:
        if left <= 0:
            break
        found.append(ByteRange(where.start, min(where.stop, where.start + left)))
        left -= where.nbytes
    return found


def difference(loss: Loss, buffer: Buffer, shown: int) -> Difference | None:
    """The bytes of a buffer in which a replay differs from what was prepared; None where there are none.

    Parameters
    ----------
    shown
        Most bytes shown of each.
    """
    ranges: list[ByteRange] = []
    window, expected, found = None, b"", b""
    for now in loss.found:
        for copy in loss.lost.copies:
            both = now.where.intersect(copy.where)
            both = both.intersect(buffer.range) if both is not None else None
            if both is None or now.data is None or copy.data is None:
                continue
            before, after = _cut(copy, copy.data, both), _cut(now, now.data, both)
            differing = _differing(before, after, both.start, _item(buffer, both))
            if differing and window is None:
                at = differing[0].start - both.start
                window, expected, found = both.start + at, before[at : at + shown], after[at : at + shown]
            ranges += differing
    return Difference(buffer, tuple(ranges), window, expected, found) if ranges else None


def _cut(copy: Copy, data: bytes, where: ByteRange) -> bytes:
    return data[where.start - copy.where.start : where.stop - copy.where.start]


def _item(buffer: Buffer, where: ByteRange) -> int:
    """Size of the elements in which bytes are compared."""
    item = buffer.itemsize
    aligned = not ((where.start - buffer.start) % item or where.nbytes % item)
    return item if aligned else 1


def _differing(before: bytes, after: bytes, start: int, item: int) -> list[ByteRange]:
    places = np.flatnonzero(unequal(before, after, item)).tolist()
    return [ByteRange(start + first * item, start + (last + 1) * item) for first, last in stretches(places)]
