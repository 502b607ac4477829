"""Guard placement in memory of another allocator: in the free bytes that no tenant of the pool was ever given. Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from shadowgraph.model.ranges import ByteRange, RangeSet

FAR = 64 << 10  # most guard bytes behind a block
_HEAD_SHARE = 4  # of a hole between two blocks, the share before the second one


@dataclass(frozen=True, slots=True)
class Placement:
    """Guard bytes directly before and after a block; `gap`: bytes of other blocks up to the next guard, if any."""

    head: int
    tail: int
    gap: int = 0


def place_guards(
    segments: Iterable[ByteRange], blocks: Mapping[int, int], live: Iterable[ByteRange], near: int
) -> dict[int, Placement]:
    """Guards for blocks that may overlap each other, as the blocks of a pool do over the time of a capture.

    Of several blocks with the same end the widest gets the guard after it.

    Parameters
    ----------
    segments
        Memory that the pool holds.
    blocks
        Last address (exclusive) of the largest tenant at each start.
    live
        Further allocated ranges.
    near
        Most guard bytes before a block.
    """
    given = RangeSet.of([*(ByteRange(start, stop) for start, stop in blocks.items()), *live])
    ends: dict[int, int] = {}
    for start, stop in blocks.items():
        ends[stop] = min(start, ends.get(stop, start))
    heads: dict[int, int] = {}
    tails: dict[int, int] = {}
    starts: list[int] = []  # of every hole, and of its segment
    within: list[int] = []
    for segment in sorted(segments, key=lambda span: span.start):
        for hole in RangeSet.of([segment]) - given:
            left, head = ends.get(hole.start), 0
            if hole.stop in blocks:
                share = hole.nbytes if left is None else hole.nbytes // _HEAD_SHARE // 16 * 16
                heads[hole.stop] = head = min(share, near)
            if left is not None:
                tails[left] = min(hole.nbytes - head, FAR)
            starts.append(hole.start)
            within.append(segment.start)

    def gap(start: int, stop: int) -> int:
        at = bisect_left(starts, stop)
        return starts[at] - stop if at < len(starts) and within[at] <= start else 0

    return {
        start: Placement(heads.get(start, 0), tails.get(start, 0), 0 if start in tails else gap(start, stop))
        for start, stop in blocks.items()
    }
