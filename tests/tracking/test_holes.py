"""Guards in what a pool gave to nobody."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from shadowgraph.model.ranges import ByteRange, RangeSet
from shadowgraph.tracking.free_gaps import FAR, Placement, place_guards

SEGMENT = ByteRange(0x10000, 0x10000 + 8192)


def placed(blocks: dict[int, int], *live: ByteRange, near: int = 256, segment: ByteRange = SEGMENT) -> list[Placement]:
    at = segment.start
    made = place_guards([segment], {at + start: at + stop for start, stop in blocks.items()}, live, near)
    return [made[at + start] for start in blocks]


def test_what_rounding_adds_is_a_guard() -> None:
    first, second = placed({0: 400, 512: 8192})
    assert first == Placement(head=0, tail=112 - 16)
    assert second == Placement(head=16, tail=0), "a fourth of the hole, to whole 16 bytes; and nothing behind it"


def test_the_rest_of_a_segment_is_a_guard_up_to_a_bound() -> None:
    wide = ByteRange(0, 1 << 20)
    assert placed({512: 1000}, segment=wide) == [Placement(head=256, tail=FAR)]


def test_blocks_without_room_between_them_have_no_guard_and_say_how_far_the_next_one_is() -> None:
    assert placed({0: 512, 512: 1024, 1024: 1100}) == [Placement(0, 0, 588), Placement(0, 0, 76), Placement(0, 7092)]


def test_no_hole_of_another_segment_counts_as_the_next_one() -> None:
    segments = [ByteRange(0, 1024), ByteRange(4096, 8192)]
    made = place_guards(segments, {0: 1024, 4096: 5000}, (), 256)
    assert made == {0: Placement(0, 0, 0), 4096: Placement(0, 3192)}


def test_of_blocks_with_one_end_the_widest_has_the_guard() -> None:
    made = placed({0: 1000, 512: 1000})
    assert made == [Placement(0, 7192), Placement(0, 0, 0)]


def test_live_blocks_that_no_capture_made_are_nobody_elses_guard() -> None:
    live = ByteRange(SEGMENT.start + 512, SEGMENT.start + 4096)
    assert placed({0: 400}, live) == [Placement(0, 112)]


BLOCKS = st.dictionaries(st.integers(0, 15).map(lambda n: n * 512), st.integers(1, 3000), max_size=8)


@given(BLOCKS, st.sampled_from([16, 64, 256]))
def test_guards_lie_in_holes_and_never_over_each_other(sizes: dict[int, int], near: int) -> None:
    base = SEGMENT.start
    blocks = {base + start: min(base + start + nbytes, SEGMENT.stop) for start, nbytes in sizes.items()}
    taken = RangeSet.of(ByteRange(start, stop) for start, stop in blocks.items())
    guards = RangeSet()
    ends = set()
    for start, placement in place_guards([SEGMENT], blocks, (), near).items():
        stop = blocks[start]
        for low, high in ((start - placement.head, start), (stop, stop + placement.tail)):
            if low < high:
                where = ByteRange(low, high)
                assert SEGMENT.covers(where)
                assert not taken.overlaps(where)
                assert not guards.overlaps(where)
                guards.add(where)
        if placement.tail:
            ends.add(stop)
        assert placement.head <= near
        assert not (placement.tail and placement.gap)
    for stop in set(blocks.values()):
        free = stop < SEGMENT.stop and not taken.overlaps(ByteRange(stop, stop + 1))
        assert (stop in ends) == free, "every end with a free byte behind it is guarded exactly, by one block"
