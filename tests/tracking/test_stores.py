from __future__ import annotations

import numpy as np
import pytest

from shadowgraph.model.ranges import ByteRange
from shadowgraph.tracking.stores import SHARED, Budget, StoreLog

BASE = 1 << 40


def store(log: StoreLog, offsets: list[int], itemsize: int = 4, program: tuple[int, int, int] = (0, 0, 0)) -> None:
    """Note a store whose values are its lane numbers."""
    addresses = np.array(offsets, dtype=np.uint64) + np.uint64(BASE)
    log.add(program, addresses, np.arange(len(offsets), dtype=f"i{itemsize}"), itemsize)


def ranges(log: StoreLog) -> list[tuple[int, int]]:
    return [(part.start - BASE, part.stop - BASE) for part in log.ranges]


def where(start: int, stop: int) -> ByteRange:
    return ByteRange(BASE + start, BASE + stop)


@pytest.mark.parametrize(
    ("offsets", "itemsize", "expected"),
    [
        ([0, 4, 8, 12], 4, [(0, 16)]),
        ([12, 0, 8, 4], 4, [(0, 16)]),
        ([0, 8, 12], 4, [(0, 4), (8, 16)]),
        ([0, 0, 0], 4, [(0, 4)]),
        ([0, 2], 4, [(0, 6)]),  # unaligned pointers overlap
        ([0, 5], 4, [(0, 4), (5, 9)]),
        ([3], 1, [(3, 4)]),
        ([0, 1, 2, 4], 1, [(0, 3), (4, 5)]),
        ([0, 2, 4], 1, [(0, 1), (2, 3), (4, 5)]),
        ([8, 0, 16], 8, [(0, 24)]),
    ],
)
def test_the_bytes_of_a_store(offsets: list[int], itemsize: int, expected: list[tuple[int, int]]) -> None:
    log = StoreLog()
    store(log, offsets, itemsize)
    assert ranges(log) == expected


def test_stores_of_several_sizes_are_joined() -> None:
    log = StoreLog()
    store(log, [0, 1, 2, 3], itemsize=1)
    store(log, [4, 12], itemsize=4)
    store(log, [6], itemsize=8)
    assert ranges(log) == [(0, 16)]


def test_a_log_without_stores_wrote_nothing() -> None:
    log = StoreLog()
    store(log, [])
    assert log.stores == []
    assert ranges(log) == []
    assert log.within(where(0, 100)) == []


def test_ranges_grow_with_later_stores() -> None:
    log = StoreLog()
    store(log, [0])
    assert ranges(log) == [(0, 4)]
    store(log, [8])
    assert ranges(log) == [(0, 4), (8, 12)]


def test_high_addresses_stay_exact() -> None:
    log = StoreLog()
    top = (1 << 63) + (1 << 40) + 1  # beyond what a float or a signed integer holds
    log.add((0, 0, 0), np.array([top, top + 1], dtype=np.uint64), np.zeros(2, dtype=np.uint8), 1)
    assert list(log.ranges) == [ByteRange(top, top + 2)]
    assert (log.stores[0].start, log.stores[0].stop) == (top, top + 2)


def test_within_keeps_the_lanes_in_a_range_with_their_values_and_programs() -> None:
    log = StoreLog()
    store(log, [0, 4, 8, 12], program=(0, 0, 0))
    store(log, [100, 104], program=(1, 0, 0))
    store(log, [12, 8], program=(2, 1, 0))
    found = log.within(where(8, 16))
    assert [part.program for part in found] == [(0, 0, 0), (2, 1, 0)]
    assert [(part.addresses - np.uint64(BASE)).tolist() for part in found] == [[8, 12], [12, 8]]
    assert [part.values.tolist() for part in found] == [[2, 3], [0, 1]]
    assert {part.itemsize for part in found} == {4}


@pytest.mark.parametrize(
    ("start", "stop", "lanes"),
    [(0, 4, [0]), (3, 5, [0, 4]), (4, 5, [4]), (5, 100, [4]), (7, 8, [4]), (8, 100, []), (-9, 0, [])],
)
def test_a_lane_is_within_where_one_of_its_bytes_is(start: int, stop: int, lanes: list[int]) -> None:
    log = StoreLog()
    store(log, [0, 4])
    store(log, [100])
    assert [int(a) - BASE for part in log.within(where(start, stop)) for a in part.addresses if a < BASE + 100] == lanes


# -- what logs may hold ----------------------------------------------------------------------------------------------


def filled(budget: Budget, lanes: int = 256) -> StoreLog:
    """A log of one store; a lane takes 12 bytes."""
    log = StoreLog(budget)
    store(log, [4 * lane for lane in range(lanes)])
    return log


def test_a_log_over_budget_keeps_ranges_only() -> None:
    budget = Budget(10_000)
    logs = [filled(budget) for _ in range(5)]
    assert [log.compacted for log in logs] == [False, False, True, True, True]
    assert [len(log.stores) for log in logs] == [1, 1, 0, 0, 0]
    assert [ranges(log) for log in logs] == [[(0, 1024)]] * 5
    assert logs[-1].within(where(0, 1024)) == []
    assert 0 < budget.held <= budget.limit


def test_a_log_that_grows_over_budget_forgets_its_first_stores_too() -> None:
    budget = Budget(10_000)
    log = filled(budget)
    store(log, [4096 + 8 * lane for lane in range(2)])
    assert not log.compacted
    store(log, [8 * lane for lane in range(1024)], itemsize=2)
    assert (log.compacted, log.stores, budget.held) == (True, [], 0)
    store(log, [5, 9000])
    strided = [(8 * lane, 8 * lane + 2) for lane in range(129, 1024) if 8 * lane not in (4096, 4104)]
    assert ranges(log) == sorted([(0, 1026), (4096, 4100), (4104, 4108), *strided, (9000, 9004)])


def test_what_is_collected_or_compacted_is_given_back() -> None:
    budget = Budget(10_000)
    first, second = filled(budget), filled(budget)
    held = budget.held
    del first
    assert budget.held == held // 2
    assert not filled(budget).compacted
    second.compact()
    second.compact()
    assert (budget.held, ranges(second)) == (0, [(0, 1024)])


def test_many_small_stores_are_not_free() -> None:
    log = StoreLog(Budget(10_000))
    for lane in range(1000):
        store(log, [4 * lane])
    assert (log.compacted, ranges(log)) == (True, [(0, 4000)])


def test_logs_of_a_process_share_a_budget() -> None:
    log = StoreLog()
    before = SHARED.held
    store(log, list(range(0, 4096, 4)))
    assert SHARED.held - before >= 1024 * 12
    assert SHARED.limit == 64 << 20


def test_atomic_stores_stay_marked() -> None:
    log = StoreLog()
    store(log, [0, 4])
    log.add((1, 0, 0), np.array([BASE + 4], dtype=np.uint64), np.array([7], dtype=np.int32), 4, atomic=True)
    assert [part.atomic for part in log.within(where(4, 8))] == [False, True]
