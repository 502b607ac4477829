from __future__ import annotations

import random
from collections.abc import Callable
from itertools import pairwise, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shadowgraph.model.ranges import ByteRange, RangeIndex, RangeSet, _Floor

SPAN = 48  # a small space of addresses, so that random ranges touch, nest and repeat
addresses = st.integers(-2, SPAN + 2)
spans = st.tuples(addresses, addresses).map(lambda ends: ByteRange(min(ends), max(ends)))


def r(start: int, stop: int) -> ByteRange:
    return ByteRange(start, stop)


def members(*pieces: ByteRange) -> set[int]:
    return {address for span in pieces for address in range(span.start, span.stop)}


def held(index: RangeIndex[str], start: int, stop: int) -> list[str]:
    return [value for _, value in index.overlapping(start, stop)]


@given(st.lists(spans, max_size=8))
def test_pairs_make_the_set_that_one_after_the_other_makes(pieces: list[ByteRange]) -> None:
    one_by_one = RangeSet()
    for piece in pieces:
        one_by_one.add(piece)
    made = RangeSet.spanning((piece.start, piece.stop) for piece in pieces)
    assert (made, made.nbytes) == (one_by_one, one_by_one.nbytes)


class TestByteRange:
    def test_a_stop_before_the_start_is_refused(self) -> None:
        with pytest.raises(ValueError, match="cannot stop"):
            ByteRange(5, 4)

    def test_size_and_bounds(self) -> None:
        span = r(4, 8)
        assert span.nbytes == 4
        assert [span.contains(address) for address in (3, 4, 7, 8)] == [False, True, True, False]
        assert span.shift(-4) == r(0, 4)
        assert r(4, 4).nbytes == 0
        assert not r(4, 4).contains(4)

    def test_intersection_of_every_pair_in_a_small_space(self) -> None:
        every = [r(start, stop) for start in range(6) for stop in range(start, 6)]
        for a, b in product(every, every):
            common = a.intersect(b)
            assert (members(common) if common else set()) == members(a) & members(b)
            assert a.overlaps(b) == (common is not None) == bool(members(a) & members(b))

    def test_covers(self) -> None:
        assert r(4, 8).covers(r(4, 8))
        assert r(4, 8).covers(r(8, 8))
        assert not r(4, 8).covers(r(3, 5))
        assert not r(4, 8).covers(r(7, 9))
        assert not r(4, 8).covers(r(9, 9))


class TestRangeSet:
    def test_touching_ranges_merge_and_a_gap_of_one_byte_stays(self) -> None:
        assert list(RangeSet.of([r(0, 4), r(8, 12), r(4, 8)])) == [r(0, 12)]
        held = RangeSet.of([r(0, 4), r(5, 8)])
        assert list(held) == [r(0, 4), r(5, 8)]
        assert (len(held), held.nbytes) == (2, 7)

    def test_empty_ranges_change_nothing(self) -> None:
        held = RangeSet.of([r(3, 3)])
        assert not held
        held.add(r(0, 8))
        held.discard(r(4, 4))
        held.add(r(9, 9))
        assert list(held) == [r(0, 8)]
        assert not held.overlaps(r(4, 4))
        assert held.intersection(r(4, 4)) == []

    def test_adding_swallows_what_lies_inside(self) -> None:
        held = RangeSet.of([r(2, 3), r(5, 6), r(9, 10)])
        held.add(r(1, 7))
        held.add(r(2, 3))
        assert (list(held), held.nbytes) == ([r(1, 7), r(9, 10)], 7)

    def test_discarding_from_the_middle_splits(self) -> None:
        held = RangeSet.of([r(0, 10)])
        held.discard(r(4, 6))
        assert list(held) == [r(0, 4), r(6, 10)]
        for _ in range(2):
            held.discard(r(2, 8))
            assert (list(held), held.nbytes) == ([r(0, 2), r(8, 10)], 4)

    def test_intersection_clips_both_ends(self) -> None:
        held = RangeSet.of([r(0, 4), r(6, 8), r(10, 14)])
        assert held.intersection(r(3, 11)) == [r(3, 4), r(6, 8), r(10, 11)]
        assert held.intersection(r(4, 6)) == []
        assert not held.overlaps(r(4, 6))
        assert held.overlaps(r(4, 7))

    def test_a_copy_and_the_results_of_operators_are_independent(self) -> None:
        held = RangeSet.of([r(0, 4)])
        twin, both, rest = held.copy(), held | RangeSet.of([r(4, 6)]), held - RangeSet.of([r(1, 2)])
        for span in held:  # over a snapshot
            held.discard(span)
        gone = twin.copy()
        gone.clear()
        assert (list(gone), gone.nbytes) == ([], 0)
        assert (bool(held), held.nbytes, len(held)) == (False, 0, 0)
        assert list(twin) == [r(0, 4)]
        assert list(both) == [r(0, 6)]
        assert list(rest) == [r(0, 1), r(2, 4)]

    def test_equality_and_repr(self) -> None:
        assert RangeSet.of([r(0, 2), r(2, 4)]) == RangeSet.of([r(0, 4)])
        assert RangeSet.of([r(0, 2)]) != RangeSet.of([r(0, 4)])
        assert RangeSet() != set()
        assert repr(RangeSet.of([r(16, 32)])) == "RangeSet([0x10, 0x20))"

    @given(st.lists(st.tuples(st.sampled_from(["add", "discard"]), spans), max_size=30), spans)
    def test_it_agrees_with_a_set_of_bytes(self, steps: list[tuple[str, ByteRange]], query: ByteRange) -> None:
        held, model = RangeSet(), set[int]()
        for step, span in steps:
            if step == "add":
                held.add(span)
                model |= members(span)
            else:
                held.discard(span)
                model -= members(span)
            assert_same_bytes(held, model)
        asked = model & members(query)
        assert_same_bytes(RangeSet.of(held.intersection(query)), asked)
        assert held.overlaps(query) == bool(asked)
        assert all((address in held) == (address in model) for address in range(-3, SPAN + 4))

    @given(st.lists(spans), st.lists(spans))
    def test_operators_agree_with_sets_of_bytes(self, left: list[ByteRange], right: list[ByteRange]) -> None:
        a, b = RangeSet.of(left), RangeSet.of(right)
        assert_same_bytes(a | b, members(*left, *right))
        assert_same_bytes(a - b, members(*left) - members(*right))
        assert_same_bytes(a, members(*left))


def assert_same_bytes(held: RangeSet, model: set[int]) -> None:
    pieces = list(held)
    assert members(*pieces) == model
    assert held.nbytes == len(model)
    assert all(span.nbytes for span in pieces)
    assert all(a.stop < b.start for a, b in pairwise(pieces)), "touching or out of order"


class TestRangeIndex:
    def test_an_empty_index_finds_nothing(self) -> None:
        index: RangeIndex[str] = RangeIndex()
        assert (index.at(0), index.overlapping(0, 9), index.before(9), index.after(0)) == ([], [], None, None)
        assert (len(index), list(index)) == (0, [])

    def test_touching_is_not_overlapping(self) -> None:
        index = RangeIndex([(r(0, 4), "low"), (r(4, 8), "high")])
        assert index.at(3) == ["low"]
        assert index.at(4) == ["high"]
        assert index.at(8) == []
        assert held(index, 0, 4) == ["low"]
        assert held(index, 3, 5) == ["low", "high"]

    def test_an_empty_query_finds_nothing_and_a_reversed_one_is_refused(self) -> None:
        index = RangeIndex([(r(0, 8), "a")])
        assert index.overlapping(4, 4) == []
        with pytest.raises(ValueError, match="cannot stop"):
            index.overlapping(5, 4)

    def test_empty_ranges_overlap_nothing_but_are_neighbours(self) -> None:
        index = RangeIndex([(r(4, 4), "empty"), (r(0, 2), "low"), (r(6, 8), "high")])
        assert held(index, 0, 9) == ["low", "high"]
        assert index.at(4) == []
        assert index.before(5) == (r(4, 4), "empty")
        assert index.before(4) == index.after(4) == (r(4, 4), "empty")
        assert index.after(5) == (r(6, 8), "high")
        assert len(index) == 3

    def test_nested_ranges_come_in_order_of_start_then_handle(self) -> None:
        index = RangeIndex([(r(4, 6), "inner"), (r(0, 10), "outer"), (r(4, 8), "middle"), (r(0, 2), "aside")])
        assert index.at(5) == ["outer", "inner", "middle"]
        index.add(r(0, 6), "late")
        assert index.at(5) == ["outer", "late", "inner", "middle"]
        assert [value for _, value in index] == ["outer", "aside", "late", "inner", "middle"]

    def test_duplicates_are_held_apart(self) -> None:
        index = RangeIndex([(r(0, 4), "a")])
        second, third = index.add(r(0, 4), "a"), index.add(r(0, 4), "b")
        assert index.at(1) == ["a", "a", "b"]
        index.remove(second)
        assert index.at(1) == ["a", "b"]
        index.remove(third)
        assert index.at(1) == ["a"]

    def test_bulk_handles_count_from_zero_and_remove_once(self) -> None:
        index = RangeIndex([(r(0, 4), "a"), (r(0, 4), "b"), (r(0, 4), "c")])
        index.remove(1)
        for handle in (1, 3, -1):
            with pytest.raises(KeyError):
                index.remove(handle)
        assert index.at(0) == ["a", "c"]

    def test_removal_before_the_first_query(self) -> None:
        index: RangeIndex[str] = RangeIndex()
        handles = [index.add(r(0, 4), name) for name in "abc"]
        index.remove(handles[1])
        assert index.at(0) == ["a", "c"]
        for handle in (handles[0], handles[2]):
            index.remove(handle)
        assert (index.at(0), len(index)) == ([], 0)
        assert index.add(r(0, 4), "d") not in handles
        assert index.at(0) == ["d"]

    def test_neighbours_and_their_ties(self) -> None:
        index = RangeIndex([(r(0, 6), "wide"), (r(4, 6), "narrow"), (r(1, 3), "early"), (r(8, 9), "x")])
        index.add(r(8, 20), "y")
        assert index.before(7) == index.before(6) == (r(4, 6), "narrow")
        assert index.before(5) == (r(1, 3), "early")
        assert index.before(2) is None
        assert index.after(7) == index.after(8) == (r(8, 9), "x")
        assert index.after(9) is None

    def test_neighbours_skip_removed_ranges(self) -> None:
        index = RangeIndex([(r(i, i + 1), i) for i in range(20)])
        assert index.before(20) == (r(19, 20), 19)
        assert index.after(10) == (r(10, 11), 10)
        for handle in (19, 17, 18, 10, 12, 11):
            index.remove(handle)
        assert index.before(20) == (r(16, 17), 16)
        assert index.after(10) == (r(13, 14), 13)

    def test_iteration_is_over_a_snapshot(self) -> None:
        index = RangeIndex([(r(0, 4), "a"), (r(2, 6), "b")])
        for span, _ in index:
            index.add(span.shift(10), "new")
        assert len(index) == 4

    def test_values_may_be_unhashable_and_addresses_wide(self) -> None:
        top = 1 << 64
        index = RangeIndex([(r(top - 2, top), ["high"]), (r(-top, 1 - top), ["low"])])
        assert index.at(top - 1) == [["high"]]
        assert index.at(-top) == [["low"]]
        assert index.before(top) == (r(top - 2, top), ["high"])

    @pytest.mark.parametrize("seed", range(4))
    def test_a_long_random_walk_agrees_with_a_plain_list(self, seed: int) -> None:
        rng = random.Random(seed)
        model = Model([random_span(rng, 300) for _ in range((0, 1, 200, 1000)[seed])])
        for step in range(1500):
            growing = (step // 250) % 2 == 0  # now mostly adds, now mostly removals: levels build up and die
            if rng.random() < (0.7 if growing else 0.25):
                model.add(random_span(rng, 300))
            elif model.live:
                model.remove(rng.choice(list(model.live)))
            if rng.random() < 0.5:
                model.check(rng.randrange(-2, 303), rng.randrange(0, 12))


def random_span(rng: random.Random, space: int) -> ByteRange:
    start = rng.randrange(space)
    return ByteRange(start, start + rng.choice([0, 1, 2, 5, 20, space]))


class Model:
    """A `RangeIndex` beside a plain dict of the same ranges, searched from end to end."""

    def __init__(self, ranges: list[ByteRange]) -> None:
        self.live = {handle: (span, -handle) for handle, span in enumerate(ranges)}
        self.index = RangeIndex(self.live.values())

    def add(self, span: ByteRange) -> None:
        value = len(self.live)  # values repeat
        handle = self.index.add(span, value)
        assert handle not in self.live
        self.live[handle] = (span, value)

    def remove(self, handle: int) -> None:
        del self.live[handle]
        self.index.remove(handle)

    def ordered(self, wanted: Callable[[ByteRange], bool]) -> list[tuple[ByteRange, int]]:
        handles = [handle for handle, (span, _) in self.live.items() if wanted(span)]
        handles.sort(key=lambda handle: (self.live[handle][0].start, handle))
        return [self.live[handle] for handle in handles]

    def check(self, address: int, nbytes: int) -> None:
        query = ByteRange(address, address + nbytes)
        assert self.index.overlapping(query.start, query.stop) == self.ordered(query.overlaps)
        assert self.index.at(address) == [value for _, value in self.ordered(lambda span: span.contains(address))]
        below = [(span.stop, span.start, handle) for handle, (span, _) in self.live.items() if span.stop <= address]
        assert self.index.before(address) == (self.live[max(below)[2]] if below else None)
        above = [(span.start, handle) for handle, (span, _) in self.live.items() if span.start >= address]
        assert self.index.after(address) == (self.live[min(above)[1]] if above else None)


STEPS = st.tuples(st.sampled_from(["add", "remove", "query"]), st.lists(spans, min_size=1, max_size=8))


@given(st.lists(spans, max_size=20), st.lists(STEPS, max_size=30))
def test_an_index_agrees_with_a_plain_dict(loaded: list[ByteRange], steps: list[tuple[str, list[ByteRange]]]) -> None:
    model = Model(loaded)
    for step, pieces in steps:
        for span in pieces:
            if step == "add":
                model.add(span)
            elif step == "query":
                model.check(span.start, span.nbytes)
            elif model.live:
                model.remove(list(model.live)[span.start % len(model.live)])
        assert len(model.index) == len(model.live)
        assert list(model.index) == model.ordered(lambda span: True)


class Probe(int):
    """An address that counts how often a search compares it."""

    looks = 0

    def __add__(self, other: int) -> Probe:
        return Probe(int(self) + other)

    def __neg__(self) -> Probe:
        return Probe(-int(self))


def counted(name: str) -> Callable[[Probe, object], object]:
    def compare(self: Probe, other: object) -> object:
        Probe.looks += 1
        return getattr(int, name)(self, other)

    return compare


for _name in ("__lt__", "__le__", "__gt__", "__ge__", "__eq__"):
    setattr(Probe, _name, counted(_name))


def looks(index: RangeIndex[int], address: int) -> int:
    """How many comparisons one query of each kind makes with the address asked for, taken together."""
    index.overlapping(address, address + 1)
    index.before(address)
    index.after(address)
    Probe.looks = 0
    index.overlapping(Probe(address), Probe(address + 1))
    index.before(Probe(address))
    index.after(Probe(address))
    assert Probe.looks > 0
    return Probe.looks


class TestWork:
    """Work per query, counted in comparisons: about log2(20,000) = 15 for each part of a search."""

    COUNT = 20_000
    LIMIT = 200

    def test_under_a_range_that_covers_all(self) -> None:
        cover = r(0, 4 * self.COUNT)
        index = RangeIndex([(cover, -1), *((r(4 * i, 4 * i + 2), i) for i in range(self.COUNT))])
        for address in (3, 2 * self.COUNT + 3, 4 * self.COUNT - 1):
            assert index.at(address) == [-1]
            assert looks(index, address) < self.LIMIT

    def test_beside_ranges_that_all_stop_early(self) -> None:
        """Each range stops before the one that starts before it, so looking backwards alone would be linear."""
        n = self.COUNT
        index = RangeIndex([(r(i, 3 * n - i), i) for i in range(n)])
        assert index.at(3 * n - 1) == [0]
        assert looks(index, 3 * n - 1) < self.LIMIT

    def test_among_many_removed_ranges(self) -> None:
        index = RangeIndex([(r(4 * i, 4 * i + 2), i) for i in range(self.COUNT)])
        home = 2 * self.COUNT
        handles = [index.add(r(home, home + 4), -1) for _ in range(self.COUNT // 2)]
        assert len(index.at(home + 3)) == len(handles)
        assert index.before(home + 4) is not None
        for handle in handles:
            index.remove(handle)
        assert index.at(home + 3) == []
        assert looks(index, home + 3) < self.LIMIT

    def test_past_a_long_run_of_removed_neighbours(self) -> None:
        floor = _Floor([(i, i, i) for i in range(1000)])
        for i in range(1, 1000):
            floor.remove((i, i, i))
        for _ in range(12):
            assert floor.last(2000) == (0, 0, 0)
        assert floor.links[-1] == 1  # each search shortens the way; now it is one step

    def test_removed_ranges_are_let_go(self) -> None:
        index = RangeIndex([(r(i, i + 2), i) for i in range(1000)])
        for handle in range(1, 1000):
            index.remove(handle)
            assert sum(len(level.handles) for level in index._levels) <= 2 * len(index)
        assert list(index) == [(r(0, 2), 0)]

    def test_after_adds_one_by_one(self) -> None:
        index: RangeIndex[int] = RangeIndex()
        for i in range(self.COUNT):
            index.add(r(4 * i, 4 * i + 2), i)
            if i % 7 == 0:
                index.at(4 * i)
        assert looks(index, 2 * self.COUNT + 3) < 5 * self.LIMIT  # in one of up to log n levels
