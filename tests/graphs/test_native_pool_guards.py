"""Where guards of the program's own pools stand and when they are armed again, with the device's part played."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest
import torch

from shadowgraph.graphs.cuda.allocator_history import is_complete
from shadowgraph.graphs.cuda.in_place_pools import INCOMPLETE, InPlacePools
from shadowgraph.graphs.cuda.pool_buffers import tenants_of
from shadowgraph.model.graphs import Graph
from shadowgraph.model.guards import Guard, guards_of
from shadowgraph.model.ranges import ByteRange
from shadowgraph.tracking import cuda_allocator
from shadowgraph.tracking.cuda_allocator import CudaAllocator
from shadowgraph.tracking.free_gaps import FAR

BASE, SEGMENT, NEAR = 0x7F0000000000, 2 << 20, 256
POOL = (1, 0)


class Filler:
    """What is armed, and how often that has to wait for the current stream."""

    def __init__(self) -> None:
        self.fills: list[tuple[int, int]] = []
        self.waits = 0

    def fill(self, where: ByteRange) -> None:
        self.fills.append((where.start - BASE, where.stop - BASE))

    def fill_many(self, ranges: Any) -> None:
        for where in ranges:
            self.fill(where)

    def fill_after(self) -> None:
        self.waits += 1

    def malloc(self, nbytes: int) -> int:
        raise AssertionError("these guards need no memory")

    def note_stream(self) -> None:
        pass

    def wait(self) -> bool:
        return True

    def passed(self) -> bool:
        return True

    def may_be_unmapped(self, address: int) -> bool:
        return False


class Bench:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.live: dict[int, int] = {}
        monkeypatch.setattr(cuda_allocator, "SlabArena", lambda malloc: None)
        monkeypatch.setattr(torch.cuda, "memory_snapshot", self._snapshot)
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
        self.filler = Filler()
        self.allocator = CudaAllocator(self.filler, 0)
        self.pools = InPlacePools(self.allocator, NEAR)
        self.looked: list[tuple[int, int]] = []
        self.allocator.before_retire = lambda buffer: self.looked.extend(
            (guard.whole.start - BASE, guard.whole.stop - BASE) for guard in guards_of(buffer, NEAR)
        )
        self.clock = itertools.count(100)

    def _snapshot(self, handle: Any) -> list[dict[str, Any]]:
        blocks = [
            {"state": "active_allocated", "requested_size": n, "address": BASE + at} for at, n in self.live.items()
        ]
        return [{"address": BASE, "total_size": SEGMENT, "blocks": blocks}] if handle == POOL else []

    def captured(self, serial: int, tenants: dict[int, int]) -> Graph:
        graph = Graph(serial, f"graph#{serial}")
        self.pools.captured(POOL, graph, {BASE + at: n for at, n in tenants.items()}, {})
        self.allocator.enter_waiting()
        return graph

    def tail(self, at: int = 0) -> Guard:
        return guards_of(self.allocator.tenants[BASE + at], NEAR)[-1]

    def confirm(self, guard: Guard, first: int, last: int, order: int) -> bool:
        start = guard.whole.start
        return self.allocator.confirm(guard, (start + first, start + last), order, self.clock)


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    return Bench(monkeypatch)


def test_guards_stand_in_what_nobody_was_given(bench: Bench) -> None:
    bench.captured(1, {0: 400, 512: 512, 1024: 100})
    assert set(bench.allocator.tenants) == {BASE, BASE + 512, BASE + 1024}
    assert sorted(bench.filler.fills) == [(400, 496), (496, 512), (1124, 1124 + FAR)]
    assert not any(guard.rearm for guard in guards_of(bench.allocator.tenants[BASE], NEAR))


def test_what_the_program_wrote_stays_when_it_is_told(bench: Bench) -> None:
    bench.captured(1, {0: 400})
    guard = bench.tail()
    bench.filler.fills.clear()
    assert bench.confirm(guard, 0, 3, order=10)
    assert bench.confirm(guard, 0, 4000, order=11)
    assert bench.filler.fills == [], "the program may read it"
    assert bench.allocator.may_arm(guard, bench.clock)
    wide = replace(guard, near=guard.whole)
    assert bench.allocator.may_arm(wide, bench.clock), "as it is looked at launch by launch"


def test_a_guard_is_not_armed_over_what_the_program_allocated_since(bench: Bench) -> None:
    bench.captured(1, {0: 400})
    guard = bench.tail()
    assert bench.confirm(guard, 0, 3, order=10)
    bench.live[512] = 700
    bench.filler.fills.clear()
    assert not bench.allocator.may_arm(guard, bench.clock)
    assert bench.tail().whole.stop == BASE + 512
    assert all(stop <= 512 for _, stop in bench.filler.fills)
    assert not bench.confirm(guard, 112, 511, order=11), "a check that ran before it made way"


def test_a_guard_that_is_gone_is_not_armed(bench: Bench) -> None:
    graph = bench.captured(1, {0: 400})
    guard = bench.tail()
    bench.pools.dropped(graph)
    assert not bench.allocator.may_arm(guard, bench.clock)


def test_a_guard_that_a_later_capture_moved_is_told_of_and_not_armed(bench: Bench) -> None:
    bench.captured(1, {0: 400})
    before = bench.tail()
    bench.captured(2, {1024: 39_000})
    assert (bench.tail().whole.start, bench.tail().whole.stop) == (BASE + 400, BASE + 1024 - 144)
    assert (400, 400 + FAR) in bench.looked, "looked at a last time before it made way"
    bench.filler.fills.clear()
    assert bench.confirm(before, 0, 3, order=10)
    assert bench.filler.fills == [], "the second graph's memory is there now"


def test_a_capture_that_is_not_entered_yet_counts_too(bench: Bench) -> None:
    bench.captured(1, {0: 400})
    guard = bench.tail()
    bench.pools.captured(POOL, Graph(2, "graph#2"), {BASE + 1024: 39_000}, {})
    bench.filler.fills.clear()
    assert bench.confirm(guard, 0, 3, order=10)
    assert bench.filler.fills == []


def test_what_the_program_allocated_there_is_no_damage(bench: Bench) -> None:
    bench.captured(1, {0: 400})
    guard = bench.tail()
    bench.live[512] = 700
    bench.filler.fills.clear()
    assert not bench.confirm(guard, 112, 200, order=10)
    assert (bench.tail().whole.start, bench.tail().whole.stop) == (BASE + 400, BASE + 512)
    assert all(stop <= 512 for _, stop in bench.filler.fills)


def test_arming_all_anew_spares_what_was_allocated_since(bench: Bench) -> None:
    bench.captured(1, {0: 400})
    bench.pools.captured(POOL, Graph(2, "graph#2"), {BASE + 1024: 39_000}, {})  # not entered yet
    bench.live[64 << 10] = 100
    bench.filler.fills.clear()
    bench.allocator.rearm()
    taken = [(1024, 1024 + 39_000), (64 << 10, (64 << 10) + 100)]
    assert bench.filler.fills
    assert not [fill for fill in bench.filler.fills for a, b in taken if fill[0] < b and a < fill[1]]


def test_with_the_last_graph_the_guards_go(bench: Bench) -> None:
    graphs = [bench.captured(1, {0: 400}), bench.captured(2, {0: 300, 512: 100})]
    bench.pools.dropped(graphs[0])
    assert bench.allocator.tenants
    bench.pools.dropped(graphs[1])
    assert bench.allocator.tenants == {}
    assert len(bench.allocator.ledger) == 0


def test_an_incomplete_record_is_no_ground_for_guards(bench: Bench) -> None:
    made = [BASE, BASE + 512, BASE + SEGMENT]
    within = range(BASE, BASE + SEGMENT)
    assert is_complete({BASE: 400, BASE + 512: 4}, made, within)
    assert not is_complete({BASE: 400}, made, within)
    bench.captured(1, {0: 400})
    bench.pools.refuse(POOL, INCOMPLETE)
    assert bench.allocator.tenants == {}
    assert bench.pools.left_alone[INCOMPLETE] == 1
    assert not bench.pools.may_guard(POOL, expandable=False)


def test_tenants_are_the_largest_of_each_address() -> None:
    events = [
        {"action": "alloc", "addr": BASE, "size": 100},
        {"action": "free_completed", "addr": BASE, "size": 100},
        {"action": "alloc", "addr": BASE, "size": 400},
        {"action": "alloc", "addr": 5, "size": 400},
    ]
    blocks = [{"state": "active_allocated", "address": BASE + 512, "requested_size": 64}]
    snapshot = {"device_traces": [events], "segments": [{"blocks": blocks}]}
    assert tenants_of(snapshot, lambda address: address >= BASE) == {BASE: 400, BASE + 512: 64}


def test_checks_in_flight_see_the_programs_own_bytes_and_tell_nothing(bench: Bench) -> None:
    bench.captured(1, {0: 400})
    guard = bench.tail()
    bench.live = {0: 400, 512: 400}
    assert not bench.confirm(guard, 112, 511, order=10), "the program allocated there: guards make way"
    assert bench.tail().whole.stop < guard.whole.stop
    assert not bench.confirm(guard, 112, 511, order=11), "a check that ran before they did sees the same"
    bench.live = {0: 400}
    moved = bench.tail()
    assert bench.confirm(moved, 0, 3, order=next(bench.clock)), "what comes after is damage"
