"""Memory compared with its canary: every byte of it counts, wherever it lies and however large it is."""

from __future__ import annotations

import pytest

from shadowgraph.model.canary import canary
from shadowgraph.model.ranges import ByteRange
from shadowgraph.tracking.arena import HostArena
from shadowgraph.tracking.intact import Intact

PIECE = 64 << 10  # bytes that are compared at a time


@pytest.fixture
def arena() -> HostArena:
    return HostArena(1 << 30)


def armed(arena: HostArena, *sizes: int, shift: int = 0) -> list[ByteRange]:
    ranges = []
    for nbytes in sizes:
        start = arena.take(-(-(nbytes + shift) // 512) * 512) + shift
        arena.view(start, start + nbytes).data[:] = canary(start - arena.base, nbytes)
        ranges.append(ByteRange(start, start + nbytes))
    return ranges


@pytest.mark.parametrize("shift", [0, 1, 500])
@pytest.mark.parametrize("nbytes", [1, 512, 4096, PIECE - 1, PIECE, PIECE + 1, 1 << 20])
def test_any_byte_that_changes_is_seen(arena: HostArena, nbytes: int, shift: int) -> None:
    armed(arena, 512, 3 * 512)  # so that the range does not begin where the canary does
    (where,) = armed(arena, nbytes, shift=shift)
    intact = Intact((where,), arena.base)
    assert intact()
    for place in {0, nbytes // 2, nbytes - 1, min(PIECE, nbytes - 1)}:
        arena.bytes[where.start - arena.base + place] ^= 1
        assert not intact()
        arena.bytes[where.start - arena.base + place] ^= 1
    assert intact()


def test_each_of_several_ranges_counts_and_what_lies_between_does_not(arena: HostArena) -> None:
    first, between, last = armed(arena, 512, 512, 1024)
    intact = Intact((first, last), arena.base)
    arena.bytes[between.start - arena.base] ^= 1
    assert intact()
    for where in (first, last):
        arena.bytes[where.stop - 1 - arena.base] ^= 1
        assert not intact()
        arena.bytes[where.stop - 1 - arena.base] ^= 1


def test_no_bytes_are_intact(arena: HostArena) -> None:
    assert Intact((), arena.base)()
    assert Intact((ByteRange(arena.base, arena.base),), arena.base)()
