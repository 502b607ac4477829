"""SG113's rules: which relation holds between use and batch, and whether the growth leads past the end."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from shadowgraph.checks.headroom.forecast import Limits, Point, forecast, grows
from shadowgraph.model.high_water import Driver

LIMITS = Limits(requests=8, longest=100)


def points(lens: Sequence[Sequence[int]], use: Callable[[Sequence[int]], int]) -> list[Point]:
    return [Point(use(each), len(each), max(each), sum(each)) for each in lens]


UNEVEN = [(3, 1), (5, 1), (5, 4), (9, 2), (11, 3), (12, 3, 4), (13, 4, 5), (14, 4, 6)]


@pytest.mark.parametrize(
    ("use", "driver", "limit"),
    [
        (lambda lens: 4 * sum(lens), Driver.TOKENS, 800),
        (lambda lens: 10 * max(lens) + 3, Driver.LONGEST, 100),
        (lambda lens: 4 * sum(lens) + 12 * len(lens), Driver.TOKENS, 800),
    ],
)
def test_the_relation_that_explains_the_use(use: Callable[[Sequence[int]], int], driver: Driver, limit: int) -> None:
    made = points(UNEVEN, use)
    assert grows(made, 300)
    found = forecast(made, 300, LIMITS)
    assert found is not None
    assert (found.driver, found.limit, found.exact, found.steps) == (driver, limit, True, len(UNEVEN))
    before, at = ([found.overflows_at - 1 + more - 4 - 6, 4, 6] for more in (0, 1))
    if driver is Driver.LONGEST:
        before, at = [found.overflows_at - 1], [found.overflows_at]
    assert use(before) <= 300 < use(at)


def test_a_padded_table_takes_the_longest_for_each_request() -> None:
    lens = [(1, 3), (2, 5), (2, 3, 6), (2, 9, 2), (9, 4, 2, 10), (9, 4, 2, 12), (9, 4, 2, 14)]
    found = forecast(points(lens, lambda lens: len(lens) * max(lens)), 400, LIMITS)
    assert found is not None
    assert (found.driver, found.overflows_at, found.limit) == (Driver.AREA, 401, 800)


@pytest.mark.parametrize(
    "limits",
    [Limits(2, 40), Limits(2, 42), Limits(8, 100, tokens=75), Limits(8, 100, tokens=79)],
    ids=["sized for it", "a few tokens less", "the pool is full before", "within the margin"],
)
def test_limits_that_cannot_overflow_it(limits: Limits) -> None:
    lens = [(at, at + 1) for at in range(3, 12)]
    assert forecast(points(lens, lambda lens: 4 * sum(lens)), 320, limits) is None


def test_what_a_step_adds_to_each_request_is_within_the_limit() -> None:
    """Draft tokens come out of the context that is left."""
    lens = [(at, at + 1) for at in range(3, 12)]
    made = points(lens, lambda lens: 4 * (sum(lens) + 5 * len(lens)))
    assert forecast(made, 4 * 2 * 40, Limits(2, 40)) is None
    assert forecast(made, 4 * 2 * 30, Limits(2, 40)) is not None


def test_all_relations_that_fit_must_overflow() -> None:
    """Of equal lengths it is not known whether their sum or the longest counts."""
    lens = [(at, at) for at in range(3, 12)]
    made = points(lens, lambda lens: 2 * max(lens))
    assert forecast(made, 150, LIMITS) is not None
    assert forecast(made, 186, LIMITS) is not None
    assert forecast(made, 190, LIMITS) is None


def test_a_use_that_follows_nothing_is_no_forecast() -> None:
    uses = iter((4, 9, 15, 16, 31, 33, 50, 70))
    assert forecast(points(UNEVEN, lambda lens: next(uses)), 80, LIMITS) is None


def test_pages_follow_the_lengths_nearly() -> None:
    lens = [(16 * at, 16 * at + 1) for at in range(4, 70, 3)]
    made = points(lens, lambda lens: sum(-(-length // 16) for length in lens))
    found = forecast(made, 200, Limits(2, 4096))
    assert found is not None
    assert (found.exact, abs(found.overflows_at - 16 * 199) < 48) == (True, True)
    uneven = [(at, at + 5) for at in range(100, 1100, 37)]
    found = forecast(points(uneven, lambda lens: sum(-(-length // 16) for length in lens)), 200, Limits(2, 4096))
    assert found is not None
    assert (found.exact, abs(found.overflows_at - 16 * 199) < 96) == (False, True)


def test_batch_sizes_without_limits_are_bounded_by_the_graphs() -> None:
    made = [Point(size, size, 9 - size % 3, 40 - size) for size in range(1, 10)]
    assert forecast(made, 16, Limits()) is None
    assert forecast(made, 16, Limits(requests=16)) is None
    assert forecast(made, 16, Limits(requests=32)) is not None


@pytest.mark.parametrize(
    ("uses", "capacity", "tokens"),
    [
        (range(10, 100, 10), 120, 121),
        (range(10, 100, 10), 179, 180),
        (range(10, 100, 10), 180, None),
        (range(10, 90, 10), 100, None),
        ([1, 2, 4, 8, 16, 32, 64, 128, 256], 300, None),
        ([10, 20, 31, 40, 50, 61, 70, 80, 90], 120, 121),
        ([*range(10, 100, 10), 90, 90], 120, None),
    ],
    ids=["soon", "as long as seen", "longer than seen", "too few", "no steady pace", "nearly steady", "has stopped"],
)
def test_a_batch_without_limits_needs_a_steady_pace(uses: Sequence[int], capacity: int, tokens: int | None) -> None:
    found = forecast([Point(use, 2, use // 2, use) for use in uses], capacity, Limits())
    assert (found.overflows_at if found is not None else None) == tokens
    assert forecast([Point(use) for use in uses], capacity, Limits()) is None


def test_lengths_without_limits_need_a_pace_as_well() -> None:
    lens = [(at, at + 1) for at in range(3, 14)]
    made = points(lens, lambda lens: 4 * sum(lens))
    found = forecast(made, 150, Limits())
    assert found is not None
    assert (found.driver, found.overflows_at, found.limit) == (Driver.TOKENS, 38, 0)
    assert forecast(made, 1500, Limits()) is None


def test_growth_over_the_last_steps() -> None:
    assert grows([Point(use) for use in (1, 2, 2, 3, 3, 4)], 8)
    assert not grows([Point(use) for use in (1, 2, 2, 3, 3, 8)], 8)
    assert not grows([Point(use) for use in (1, 2, 2, 3, 2, 4)], 8)
    assert not grows([Point(use) for use in (3, 3, 3, 3, 3, 3)], 8)
    assert not grows([Point(use) for use in (1, 2, 3)], 8)
    assert Limits(4, 0, 9).within(Limits(0, 7, 3)) == Limits(4, 7, 3)
