"""Where guards of the program's own pools stand and when they are armed again, with the device's part played."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from shadowgraph.graphs.cuda.allocator_history import is_complete
from shadowgraph.graphs.cuda.in_place_pools import ENTERED, INCOMPLETE, InPlacePools
from shadowgraph.graphs.cuda.pool_buffers import tenants_of
from shadowgraph.graphs.dispatch import active_pools
from shadowgraph.model.graphs import Graph
from shadowgraph.model.guards import Guard, guards_of
from shadowgraph.model.ranges import ByteRange
from shadowgraph.tracking import cuda_allocator
from shadowgraph.tracking.cuda_allocator import CudaAllocator
from shadowgraph.tracking.free_gaps import FAR

BASE, SEGMENT, NEAR = 0x7F0000000000, 2 << 20, 256
POOL = (1, 0)


class Writer:
    """Where canaries are written, and how often that has to wait for the current stream."""

    origin = 0

    def __init__(self) -> None:
        self.written: list[tuple[int, int]] = []
        self.waits = 0

    def write_canaries(self, ranges: Sequence[ByteRange], here: bool = False) -> None:
        self.written += [(where.start - BASE, where.stop - BASE) for where in ranges]

    def withdraw_guards(self, starts: Sequence[int]) -> None:
        pass

    def withdraw_shadows(self, buffer: int) -> None:
        pass

    def order_canaries(self) -> None:
        self.waits += 1


class Memory:
    """Memory of a device that nothing has to wait for."""

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
        self.writer = Writer()
        self.allocator = CudaAllocator(Memory(), self.writer, 0)
        self.pools = InPlacePools(self.allocator, NEAR)
        self.looked: list[tuple[int, int]] = []
        self.allocator.guards.last_check = lambda buffer: self.looked.extend(
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
        self.allocator.guards.enter_waiting()
        return graph

    def tail(self, at: int = 0) -> Guard:
        return guards_of(self.allocator.guards.tenants[BASE + at], NEAR)[-1]

    def confirm(self, guard: Guard, first: int, last: int, order: int) -> bool:
        start = guard.whole.start
        return self.allocator.guards.confirm(guard, (start + first, start + last), order, self.clock)

    def rearmed(self, guard: Guard) -> bool:
        """Whether a guard is re-armed when it is due."""
        before, where = len(self.writer.written), (guard.whole.start - BASE, guard.whole.stop - BASE)
        self.allocator.guards.rearm(guard, self.writer, self.clock)
        return where in self.writer.written[before:]


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    return Bench(monkeypatch)


def test_guards_stand_in_what_nobody_was_given(bench: Bench) -> None:
    bench.captured(1, {0: 400, 512: 512, 1024: 100})
    assert set(bench.allocator.guards.tenants) == {BASE, BASE + 512, BASE + 1024}
    assert sorted(bench.writer.written) == [(400, 496), (496, 512), (1124, 1124 + FAR)]
    assert not any(guard.rearm for guard in guards_of(bench.allocator.guards.tenants[BASE], NEAR))


def test_what_the_program_wrote_stays_when_it_is_told(bench: Bench) -> None:
    bench.captured(1, {0: 400})
    guard = bench.tail()
    bench.writer.written.clear()
    assert bench.confirm(guard, 0, 3, order=10)
    assert bench.confirm(guard, 0, 4000, order=11)
    assert bench.writer.written == [], "the program may read it"
    assert bench.rearmed(guard)
    wide = replace(guard, near=guard.whole)
    assert bench.rearmed(wide), "as it is looked at launch by launch"


def test_a_guard_is_not_armed_over_what_the_program_allocated_since(bench: Bench) -> None:
    bench.captured(1, {0: 400})
    guard = bench.tail()
    assert bench.confirm(guard, 0, 3, order=10)
    bench.live[512] = 700
    bench.writer.written.clear()
    assert not bench.rearmed(guard)
    assert bench.tail().whole.stop == BASE + 512
    assert all(stop <= 512 for _, stop in bench.writer.written)
    assert not bench.confirm(guard, 112, 511, order=11), "a check that ran before it made way"


def test_a_guard_that_is_gone_is_not_armed(bench: Bench) -> None:
    graph = bench.captured(1, {0: 400})
    guard = bench.tail()
    bench.pools.dropped(graph)
    assert not bench.rearmed(guard)


def test_a_guard_that_a_later_capture_moved_is_told_of_and_not_armed(bench: Bench) -> None:
    bench.captured(1, {0: 400})
    before = bench.tail()
    bench.captured(2, {1024: 39_000})
    assert (bench.tail().whole.start, bench.tail().whole.stop) == (BASE + 400, BASE + 1024 - 144)
    assert bench.looked == [], "the program may have written the bytes since it was given them"
    bench.writer.written.clear()
    assert bench.confirm(before, 0, 3, order=10)
    assert bench.writer.written == [], "the second graph's memory is there now"


def test_a_guard_that_moves_within_free_bytes_is_looked_at(bench: Bench) -> None:
    bench.captured(1, {0: 400})
    bench.live[512] = 700
    bench.pools.refit()
    assert bench.looked == []
    bench.live.clear()
    bench.pools.refit()
    assert bench.looked == [(400, 512)]
    assert bench.tail().whole.stop == BASE + 400 + FAR


def test_no_guard_stands_where_the_program_allocates_by_itself(bench: Bench) -> None:
    bench.captured(1, {0: 400})
    bench.pools.entered((2, 0))
    assert bench.allocator.guards.tenants
    bench.pools.entered(POOL)
    assert not bench.allocator.guards.tenants
    assert bench.looked == [], "it may have allocated there already"
    bench.captured(2, {0: 400})
    assert bench.pools.left_alone == {ENTERED: 1}
    assert not bench.pools.may_guard(POOL, False)


def test_nor_does_one_while_it_allocates_there(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where that began before the pool had a graph."""
    monkeypatch.setitem(active_pools._routes, (0, *POOL), None)
    bench.captured(1, {0: 400})
    assert not bench.allocator.guards.tenants
    assert bench.pools.left_alone == {ENTERED: 1}


def test_a_capture_that_is_not_entered_yet_counts_too(bench: Bench) -> None:
    bench.captured(1, {0: 400})
    guard = bench.tail()
    bench.pools.captured(POOL, Graph(2, "graph#2"), {BASE + 1024: 39_000}, {})
    bench.writer.written.clear()
    assert bench.confirm(guard, 0, 3, order=10)
    assert bench.writer.written == []


def test_what_the_program_allocated_there_is_no_damage(bench: Bench) -> None:
    bench.captured(1, {0: 400})
    guard = bench.tail()
    bench.live[512] = 700
    bench.writer.written.clear()
    assert not bench.confirm(guard, 112, 200, order=10)
    assert (bench.tail().whole.start, bench.tail().whole.stop) == (BASE + 400, BASE + 512)
    assert all(stop <= 512 for _, stop in bench.writer.written)


def test_arming_all_anew_spares_what_was_allocated_since(bench: Bench) -> None:
    bench.captured(1, {0: 400})
    bench.pools.captured(POOL, Graph(2, "graph#2"), {BASE + 1024: 39_000}, {})  # not entered yet
    bench.live[64 << 10] = 100
    bench.writer.written.clear()
    bench.allocator.guards.rearm_all()
    taken = [(1024, 1024 + 39_000), (64 << 10, (64 << 10) + 100)]
    assert bench.writer.written
    assert not [span for span in bench.writer.written for a, b in taken if span[0] < b and a < span[1]]


def test_with_the_last_graph_the_guards_go(bench: Bench) -> None:
    graphs = [bench.captured(1, {0: 400}), bench.captured(2, {0: 300, 512: 100})]
    bench.pools.dropped(graphs[0])
    assert bench.allocator.guards.tenants
    bench.pools.dropped(graphs[1])
    assert bench.allocator.guards.tenants == {}
    assert len(bench.allocator.ledger) == 0


def test_an_incomplete_record_is_no_ground_for_guards(bench: Bench) -> None:
    made = [BASE, BASE + 512, BASE + SEGMENT]
    within = range(BASE, BASE + SEGMENT)
    assert is_complete({BASE: 400, BASE + 512: 4}, made, within)
    assert not is_complete({BASE: 400}, made, within)
    bench.captured(1, {0: 400})
    bench.pools.refuse(POOL, INCOMPLETE)
    assert bench.allocator.guards.tenants == {}
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
