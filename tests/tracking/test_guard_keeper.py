"""The owner of guards: what each of its verbs writes, checks and counts, with a device's part played."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path

import pytest

import shadowgraph
from shadowgraph.common.errors import FindingsError
from shadowgraph.common.finalizer_safe_lock import FinalizerSafeLock
from shadowgraph.model.buffers import Buffer, Role
from shadowgraph.model.guards import Guard, guards_of
from shadowgraph.model.ranges import ByteRange
from shadowgraph.tracking.free_gaps import Placement
from shadowgraph.tracking.guard_keeper import GuardKeeper

HEAD, TAIL, START = 64, 128, 4096
NO_CLOCK: Iterator[int] = count(1)


class Device:
    """A writer of canaries and a checker of guards, which note what they are asked for, in order."""

    origin = 0

    def __init__(self) -> None:
        self.log: list[object] = []

    def write_canaries(self, ranges: Sequence[ByteRange], here: bool = False) -> None:
        self.log.append(("write here" if here else "write", [(where.start, where.stop) for where in ranges]))

    def withdraw_guards(self, starts: Sequence[int]) -> None:
        pass

    def withdraw_shadows(self, buffer: int) -> None:
        pass

    def order_canaries(self) -> None:
        self.log.append("order")

    def check(self, tenant: Buffer) -> None:
        self.log.append(("check", tenant.serial, tenant.head_guard, tenant.tail_guard))


class Bench:
    def __init__(self) -> None:
        self.device = Device()
        self.lock = FinalizerSafeLock()
        self.guards = GuardKeeper(self.lock, self.device)
        self.guards.last_check = self.device.check

    def done(self) -> list[object]:
        """What the device was asked for since the last call."""
        log, self.device.log = self.device.log, []
        return log


@pytest.fixture
def bench() -> Bench:
    return Bench()


def buffer(serial: int, nbytes: int = 100, graph: int | None = None, start: int = START) -> Buffer:
    """A buffer with room for guards around it."""
    return Buffer(serial, start, nbytes, Role.POOL, graph=graph, head_guard=HEAD, tail_guard=TAIL)


def head_and_tail(one: Buffer) -> list[object]:
    tail = one.guard_start
    return [("write", [(one.start - one.head_guard, one.start)]), ("write", [(tail, tail + one.tail_guard)])]


def test_armed_guards_stand_with_their_canaries(bench: Bench) -> None:
    one = buffer(1)
    bench.guards.arm(one)
    assert bench.guards.tenants == {START: one}
    assert bench.guards.changes == 1
    assert bench.done() == head_and_tail(one)
    bench.guards.arm(one)
    assert bench.done() == [], "they stand already"
    assert bench.guards.changes == 1


def test_the_tenant_before_is_checked_and_later_canaries_wait_for_that_check(bench: Bench) -> None:
    one, two = buffer(1), buffer(2, nbytes=80)
    bench.guards.arm(one)
    one.freed_at = 9
    bench.done()
    bench.guards.arm(two)
    assert bench.done() == [("check", 1, HEAD, TAIL), "order", *head_and_tail(two)]
    assert bench.guards.tenants == {START: two}


def test_a_living_tensor_of_another_graph_keeps_its_guards(bench: Bench) -> None:
    one = buffer(1, graph=1)
    bench.guards.arm(one)
    bench.done()
    bench.guards.arm(buffer(2, graph=2))
    assert bench.done() == []
    assert bench.guards.tenants == {START: one}


def test_a_gap_is_closed_when_the_graph_that_needed_it_is_gone(bench: Bench) -> None:
    small, large = buffer(1, nbytes=100, graph=1), buffer(2, nbytes=140, graph=2)
    claim = bench.guards.claim(large)
    small.pool = 7
    bench.guards.arm(small)
    assert small.gap == 40
    assert not small.exact
    bench.guards.close_gaps(7)
    assert small.gap == 40, "the graph lives"
    bench.done()
    del claim
    bench.guards.close_gaps(7)
    assert small.exact
    assert bench.done() == [("write", [(small.stop, small.stop + 40)])]


def test_a_batch_writes_once(bench: Bench) -> None:
    one, two = buffer(1), buffer(2, start=2 * START)
    with bench.lock.within, bench.guards.batch():
        bench.guards.arm(one)
        with bench.guards.batch():
            bench.guards.arm(two)
        assert bench.done() == []
    (written,) = bench.done()
    expected = [where for step in (*head_and_tail(one), *head_and_tail(two)) for where in step[1]]  # type: ignore[index]
    assert written == ("write", expected)


def test_moved_guards_are_checked_where_they_stood(bench: Bench) -> None:
    one = buffer(1)
    one.head_guard = one.tail_guard = 0
    bench.guards.move(one, Placement(16, 32))
    assert bench.done() == [("write", [(START - 16, START)]), ("write", [(one.stop, one.stop + 32)])], "the first ones"
    changes = bench.guards.changes
    bench.guards.move(one, Placement(16, 32, gap=0))
    assert (bench.done(), bench.guards.changes) == ([], changes), "they need not move"
    bench.guards.move(one, Placement(0, 48))
    assert bench.done() == [("check", 1, 16, 32), "order", ("write", [(one.stop, one.stop + 48)])]
    bench.guards.move(one, Placement(0, 0, gap=5))
    assert bench.done() == [("check", 1, 0, 48), "order"]
    assert (bench.guards.tenants, one.guarded, one.gap) == ({}, False, 5)
    assert bench.guards.changes == changes + 2


def test_guards_in_bytes_that_the_program_was_given_are_not_checked(bench: Bench) -> None:
    one, two = buffer(1), buffer(2, nbytes=101)
    bench.guards.move(one, Placement(16, 32))
    bench.done()
    bench.guards.move(one, Placement(0, 48), readable=False)
    assert bench.done() == [("write", [(one.stop, one.stop + 48)])]
    bench.guards.arm(two, given=two.nbytes)
    assert bench.done() == head_and_tail(two)
    three = buffer(3, nbytes=101)
    bench.guards.arm(three, given=three.nbytes)
    assert bench.done() == [("check", 2, HEAD, TAIL), "order", *head_and_tail(three)], "behind what was given"


def test_guards_that_move_to_another_buffer_stay_as_they_are(bench: Bench) -> None:
    one, two = buffer(1), buffer(2)
    bench.guards.arm(one)
    two.head_guard = two.tail_guard = 0
    bench.done()
    bench.guards.move_to(two, one)
    assert bench.done() == []
    assert bench.guards.tenants == {START: two}
    assert (two.head_guard, two.tail_guard) == (HEAD, TAIL)


def test_retired_guards_are_checked_a_last_time_where_they_may_be_read(bench: Bench) -> None:
    one, two = buffer(1), buffer(2, start=2 * START)
    bench.guards.arm(one)
    bench.guards.arm(two)
    bench.done()
    assert bench.guards.retire(START) is one
    assert bench.done() == [("check", 1, HEAD, TAIL), "order"]
    assert bench.guards.retire(2 * START, readable=False) is two
    assert bench.guards.retire(2 * START) is None
    assert bench.done() == []
    assert (bench.guards.tenants, bench.guards.changes) == ({}, 4)


def test_a_finding_of_the_last_check_does_not_keep_guards_from_being_retired(bench: Bench) -> None:
    def found(_: Buffer) -> None:
        raise FindingsError("out of bounds")

    one = buffer(1)
    bench.guards.arm(one)
    bench.guards.last_check = found
    assert bench.guards.retire(START) is one
    assert bench.guards.tenants == {}


def test_a_broken_guard_is_rearmed_in_order_with_the_stream_as_long_as_it_stands(bench: Bench) -> None:
    one = buffer(1)
    bench.guards.arm(one)
    bench.done()
    engine, tail = Device(), guards_of(one, 16)[-1]
    bench.guards.rearm(tail, engine, NO_CLOCK)
    assert (bench.done(), engine.log) == ([], [("write here", [(one.stop, one.stop + TAIL)])]), (
        "by the engine that told"
    )
    bench.guards.retire(START)
    engine.log.clear()
    bench.guards.rearm(tail, engine, NO_CLOCK)
    assert engine.log == []


class Owner:
    """An owner of pools in whose memory guards stand."""

    def __init__(self, bench: Bench, free: bool) -> None:
        self.bench, self.free = bench, free

    def confirm(self, guard: Guard, extent: tuple[int, int], order: int, clock: Iterator[int]) -> bool:
        return self.free

    def may_rearm(self, guard: Guard, clock: Iterator[int]) -> bool:
        return self.free

    def refit(self) -> None:
        self.bench.device.log.append("refit")


@pytest.mark.parametrize("free", [True, False])
def test_memory_of_another_allocator_is_written_only_where_its_owner_says_so(bench: Bench, free: bool) -> None:
    one = buffer(1)
    one.lent = True
    bench.guards.arm(one)
    bench.guards.external = Owner(bench, free)
    bench.done()
    tail = guards_of(one, 16)[-1]
    assert bench.guards.confirm(tail, (one.stop, one.stop), 1, NO_CLOCK) is free
    bench.guards.rearm(tail, bench.device, NO_CLOCK)
    assert bool(bench.done()) is free


def test_all_are_rearmed_behind_queued_work_and_where_memory_is_still_free(bench: Bench) -> None:
    one, two = buffer(1), buffer(2, start=2 * START)
    bench.guards.arm(one)
    bench.guards.waiting.append(lambda: bench.guards.arm(two))
    bench.guards.external = Owner(bench, True)
    bench.done()
    bench.guards.rearm_all()
    armed, again = head_and_tail(two), [where for b in (one, two) for step in head_and_tail(b) for where in step[1]]  # type: ignore[index]
    assert bench.done() == [*armed, "order", "refit", ("write", again)]
    assert bench.guards.changes == 2


def sources() -> dict[str, str]:
    package = Path(shadowgraph.__file__).parent
    return {path.relative_to(package).as_posix(): path.read_text("utf-8") for path in package.rglob("*.py")}


def test_one_place_arms_guards() -> None:
    """`grep "def arm("` answers where, and nothing but the keeper has the canary written."""
    texts = sources()
    assert [name for name, text in texts.items() if re.search(r"def arm\(", text)] == ["tracking/guard_keeper.py"]
    writing = {name for name, text in texts.items() if re.search(r"\.write_canaries\(", text)}
    assert writing == {"tracking/guard_keeper.py", "engines/numpy_engine.py"}, "a check on the host rearms at once"
    change = re.compile(r"(?:self|guards|allocator)\.tenants(?:\[[^]]*\] = |\.pop)")
    changing = {name for name, text in texts.items() if change.search(text)}
    assert changing == {"tracking/guard_keeper.py"}, "which guards stand changes there alone"
