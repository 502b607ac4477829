from __future__ import annotations

import gc
import random
import threading
import weakref
from functools import partial

import pytest

from shadowgraph.common.finalizer_safe_lock import defer
from shadowgraph.model import buffers as buffers_module
from shadowgraph.model.buffers import Buffer, Ledger, Role
from shadowgraph.model.ranges import ByteRange


@pytest.fixture
def ledger() -> Ledger:
    return Ledger()


def add(ledger: Ledger, start: int, nbytes: int, **facts: object) -> Buffer:
    return ledger.add(Buffer(ledger.next_serial(), start, nbytes, Role.STATIC, **facts))  # type: ignore[arg-type]


class Storage:
    """Stands in for a storage: something that a finalizer hangs on."""


# -- a buffer --------------------------------------------------------------------------------------------------------


def test_the_facts_of_a_buffer() -> None:
    one = Buffer(1, 1000, 24, Role.POOL, shape=(3, 2), dtype="int32", itemsize=4)
    assert (one.stop, one.range, one.alive, one.guarded) == (1024, ByteRange(1000, 1024), True, False)
    assert Buffer(2, 1000, 24, Role.POOL, tail_guard=1).guarded
    assert not Buffer(3, 1000, 24, Role.POOL, head_guard=1).guarded


def test_a_tenancy_is_equal_to_itself_only() -> None:
    assert Buffer(1, 1000, 24, Role.POOL) != Buffer(1, 1000, 24, Role.POOL)


# -- look-ups --------------------------------------------------------------------------------------------------------


def test_serials_ascend_and_version_tells_of_every_change(ledger: Ledger) -> None:
    first, second = add(ledger, 1000, 8), add(ledger, 2000, 8)
    assert first.serial < second.serial < ledger.next_serial()
    versions = [ledger.version]
    for change in (lambda: add(ledger, 3000, 8), lambda: ledger.free(first), lambda: ledger.free(second)):
        change()
        versions.append(ledger.version)
    assert len(set(versions)) == 4, "and never comes back to an earlier one"


@pytest.mark.parametrize(("address", "found"), [(999, None), (1000, 0), (1007, 0), (1008, 1), (1015, 1), (1016, None)])
def test_at_finds_the_buffer_of_an_address(ledger: Ledger, address: int, found: int | None) -> None:
    known = [add(ledger, 1000, 8), add(ledger, 1008, 8)]
    assert ledger.at(address) is (None if found is None else known[found])


@pytest.mark.parametrize(
    ("start", "stop", "found"),
    [
        (1000, 1008, 0),
        (1002, 1004, 0),
        (1004, 1012, 0),  # across two: the first by address
        (1008, 1012, 1),
        (1008, 1008, 1),  # an empty view belongs to what lies at its address
        (990, 1000, None),
        (1016, 1016, None),
    ],
)
def test_owner_of_a_view(ledger: Ledger, start: int, stop: int, found: int | None) -> None:
    known = [add(ledger, 1000, 8), add(ledger, 1008, 8)]
    assert ledger.owner(start, stop) is (None if found is None else known[found])


def test_owner_prefers_the_tightest_buffer_that_holds_the_whole_view(ledger: Ledger) -> None:
    part, whole = add(ledger, 1040, 40), add(ledger, 1000, 400)
    assert ledger.owner(1044, 1048) is part
    assert ledger.owner(1040, 1100) is whole
    assert ledger.owner(1000, 1400) is whole
    lower = add(ledger, 900, 120)
    assert ledger.owner(1000, 1400) is whole, "the lower one holds only the view's first bytes"
    assert ledger.owner(900, 1400) is lower, "none holds it all: the first by address"


def test_overlapping_in_order_of_address(ledger: Ledger) -> None:
    high, low, mid = add(ledger, 3000, 8), add(ledger, 1000, 8), add(ledger, 2000, 8)
    assert ledger.overlapping(1007, 3001) == [low, mid, high]
    assert ledger.overlapping(1008, 3000) == [mid]
    assert ledger.overlapping(1008, 1008) == []


def test_neighbours_by_address(ledger: Ledger) -> None:
    high, low, mid = add(ledger, 3000, 8), add(ledger, 1000, 8), add(ledger, 2000, 8)
    assert ledger.neighbours(mid) == (low, high)
    assert ledger.neighbours(low) == (None, mid)
    assert ledger.neighbours(high) == (mid, None)
    adjacent = add(ledger, 2008, 16)
    assert ledger.neighbours(mid) == (low, adjacent)
    assert ledger.neighbours(adjacent) == (mid, high)
    ledger.free(low)
    assert ledger.neighbours(mid) == (None, adjacent)


def test_neighbours_of_a_freed_buffer_are_those_that_live(ledger: Ledger) -> None:
    low, mid, high = (add(ledger, start, 8) for start in (1000, 2000, 3000))
    ledger.free(mid)
    assert ledger.neighbours(mid) == (low, high)


def test_live_buffers_in_order_of_allocation(ledger: Ledger) -> None:
    high, low = add(ledger, 3000, 8), add(ledger, 1000, 8)
    assert list(ledger) == [high, low]
    assert len(ledger) == 2


# -- frees -----------------------------------------------------------------------------------------------------------


def test_a_freed_buffer_leaves_the_addresses_and_stays_in_the_history(ledger: Ledger) -> None:
    old = add(ledger, 1000, 8)
    ledger.free(old)
    new = add(ledger, 1000, 8)
    assert (ledger.at(1000), ledger.owner(1000, 1008), ledger.overlapping(1000, 1008)) == (new, new, [new])
    assert (list(ledger), len(ledger), ledger.freed) == ([new], 1, (old,))
    assert (ledger.get(old.serial), ledger.get(new.serial), ledger.get(99)) == (old, new, None)
    assert old.freed_at is not None
    assert old.serial < old.freed_at < new.serial, "its free is placed among the allocations"


def test_freeing_twice_changes_nothing(ledger: Ledger) -> None:
    one = add(ledger, 1000, 8)
    ledger.free(one)
    freed_at, version = one.freed_at, ledger.version
    ledger.free(one)
    assert (one.freed_at, ledger.version, ledger.freed) == (freed_at, version, (one,))


def test_the_history_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buffers_module, "HISTORY", 3)
    ledger = Ledger()
    known = [add(ledger, 1000 * i, 8) for i in range(1, 6)]
    for buffer in known:
        ledger.free(buffer)
    assert ledger.freed == tuple(known[2:])
    assert ledger.get(known[0].serial) is None


def test_a_free_in_the_middle_of_a_query_waits_for_its_end(ledger: Ledger) -> None:
    """The garbage collector may run a finalizer while the ledger iterates over what it found."""
    first, second = add(ledger, 1000, 8), add(ledger, 2000, 8)
    with ledger._lock.section:
        ledger.free(first)
        assert not first.alive
        assert first.serial in ledger._by_serial
    assert list(ledger) == [second]


@pytest.mark.parametrize("cyclic", [False, True])
def test_frees_from_finalizers_while_threads_ask(ledger: Ledger, cyclic: bool) -> None:
    """Storages die in every thread, by reference count and in the collector, while others query and allocate."""
    errors: list[BaseException] = []
    survivors: list[tuple[Storage, Buffer]] = []

    def work(seed: int) -> None:
        draw = random.Random(seed)
        try:
            for step in range(300):
                storage = Storage()
                buffer = add(ledger, (seed * 1000 + step) * 64, 64)
                weakref.finalize(storage, defer, partial(ledger.free, buffer)).atexit = False
                if cyclic:
                    storage.itself = storage  # type: ignore[attr-defined]
                if draw.random() < 0.1:
                    survivors.append((storage, buffer))
                del storage
                if step % 50 == 0:
                    gc.collect(1)
                ledger.neighbours(buffer)
                ledger.at(buffer.start)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(1, 4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    gc.collect()
    assert errors == []
    assert {b.serial for b in ledger} == {buffer.serial for _, buffer in survivors}
    assert len(ledger.freed) == 900 - len(survivors)
