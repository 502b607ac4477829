"""When the work of finalizers is done: never inside a section, never inside the collector, never lost."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from collections.abc import Iterator

import pytest

from shadowgraph.faults import faults
from shadowgraph.tracking.quiet import QuietLock, later, settle


class Storage:
    """Stands in for a storage: something that a finalizer hangs on."""


@pytest.fixture(autouse=True)
def _no_collector_of_its_own() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


def test_outside_a_section_work_is_done_at_once() -> None:
    done: list[int] = []
    later(lambda: done.append(1))
    assert done == [1]


def test_inside_a_section_work_waits_for_the_last_release() -> None:
    done: list[int] = []
    first, second = QuietLock(), QuietLock()
    with first:
        with second, first:
            later(lambda: done.append(1))
            later(lambda: done.append(2))
        settle()
        assert done == []
    assert done == [1, 2]


def test_a_section_of_another_thread_is_no_hindrance() -> None:
    done: list[int] = []
    with QuietLock():
        thread = threading.Thread(target=later, args=(lambda: done.append(1),))
        thread.start()
        thread.join()
        assert done == [1]


@pytest.mark.parametrize("settled_by", ["settle", "lock", "later"])
def test_in_the_collector_work_waits(settled_by: str) -> None:
    """What the collector found dead is done by whoever comes next, before it looks at anything."""
    lock, done = QuietLock(), []
    storage = Storage()
    storage.itself = storage  # type: ignore[attr-defined]
    weakref.finalize(storage, later, lambda: done.append("collected")).atexit = False
    del storage
    gc.collect()
    assert done == []
    if settled_by == "settle":
        settle()
    elif settled_by == "later":
        later(lambda: done.append("next"))
    else:
        with lock:
            assert done == ["collected"]
    assert done[0] == "collected"


def test_work_that_fails_is_a_fault_and_the_rest_is_done() -> None:
    faults.clear()
    done: list[int] = []
    with QuietLock():
        later(lambda: 1 // 0)  # type: ignore[arg-type, return-value]
        later(lambda: done.append(2))
    assert done == [2]
    assert faults.counts == {"finalizer: ZeroDivisionError: integer division or modulo by zero": 1}
    faults.clear()


def test_an_exception_of_a_section_passes_and_ends_it() -> None:
    done: list[int] = []
    lock = QuietLock()
    with pytest.raises(KeyError), lock:
        later(lambda: done.append(1))
        raise KeyError
    assert done == [1]
    thread = threading.Thread(target=lock.__enter__)
    thread.start()
    thread.join(10)
    assert not thread.is_alive(), "the lock is free"


def test_threads_take_turns() -> None:
    lock, inside, most = QuietLock(), 0, 0

    def work() -> None:
        nonlocal inside, most
        for _ in range(50):
            with lock:
                inside += 1
                most = max(most, inside)
                time.sleep(0.0001)  # let the others in, if anything does
                inside -= 1

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (most, inside) == (1, 0)
