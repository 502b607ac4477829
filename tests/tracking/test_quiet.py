"""When the work of finalizers is done: never inside a section, never inside the collector, never lost."""

from __future__ import annotations

import gc
import signal
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from types import FrameType

import pytest

from shadowgraph.common import finalizer_safe_lock
from shadowgraph.common.finalizer_safe_lock import FinalizerSafeLock, defer, run_deferred
from shadowgraph.common.internal_errors import internal_errors


def _raise(*_: object) -> None:
    raise KeyboardInterrupt


class Storage:
    """Stands in for a storage: something that a finalizer hangs on."""


@pytest.fixture(autouse=True)
def _no_collector_of_its_own() -> Iterator[None]:
    gc.disable()
    finalizer_safe_lock.install()
    yield
    finalizer_safe_lock.uninstall()
    gc.enable()


def test_outside_a_section_work_is_done_at_once() -> None:
    done: list[int] = []
    defer(lambda: done.append(1))
    assert done == [1]


def test_inside_a_section_work_waits_for_the_next_one_or_for_somebody_who_settles() -> None:
    done: list[int] = []
    first, second = FinalizerSafeLock(), FinalizerSafeLock()
    for comes_next in (lambda: second.section, run_deferred):
        done.clear()
        with first.section:
            with second.section, first.section:
                defer(lambda: done.append(1))
                defer(lambda: done.append(2))
            run_deferred()
            assert done == []
        assert done == []
        comes_next()
        assert done == [1, 2]


def test_what_a_handler_raises_leaves_no_lock_held() -> None:
    lock, rounds, caught = FinalizerSafeLock(), 300, 0
    before = signal.signal(signal.SIGALRM, _raise)
    try:
        for at in range(rounds):
            try:
                signal.setitimer(signal.ITIMER_REAL, 0.0005 + at * 1e-6)
                end = time.monotonic() + 5
                while time.monotonic() < end:
                    with lock.section:
                        defer(int)
                    run_deferred()
            except KeyboardInterrupt:
                caught += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert caught == rounds
    done: list[int] = []
    defer(lambda: done.append(1))
    assert done == [1], "this thread is in no section"
    thread = threading.Thread(target=lock.section.__enter__)
    thread.start()
    thread.join(10)
    assert not thread.is_alive(), "the lock is free"


def test_a_section_of_another_thread_is_no_hindrance() -> None:
    done: list[int] = []
    with FinalizerSafeLock().section:
        thread = threading.Thread(target=defer, args=(lambda: done.append(1),))
        thread.start()
        thread.join()
        assert done == [1]


@pytest.mark.parametrize("settled_by", ["settle", "lock", "later"])
def test_in_the_collector_work_waits(settled_by: str) -> None:
    """What the collector found dead is done by whoever comes next, before it looks at anything."""
    lock, done = FinalizerSafeLock(), []
    storage = Storage()
    storage.itself = storage  # type: ignore[attr-defined]
    weakref.finalize(storage, defer, lambda: done.append("collected")).atexit = False
    del storage
    gc.collect()
    assert done == []
    if settled_by == "settle":
        run_deferred()
    elif settled_by == "later":
        defer(lambda: done.append("next"))
    else:
        with lock.section:
            assert done == ["collected"]
    assert done[0] == "collected"


def test_the_collector_is_listened_to_only_while_a_debugger_watches() -> None:
    ours = list(gc.callbacks)
    finalizer_safe_lock.install()
    assert gc.callbacks == ours
    finalizer_safe_lock.uninstall()
    assert gc.callbacks == ours
    finalizer_safe_lock.uninstall()
    assert [each for each in ours if each not in gc.callbacks] == [*finalizer_safe_lock._listening]
    done: list[str] = []
    storage = Storage()
    storage.itself = storage  # type: ignore[attr-defined]
    weakref.finalize(storage, defer, lambda: done.append("collected")).atexit = False
    del storage
    gc.collect()
    assert done == ["collected"]
    finalizer_safe_lock.install()


def test_work_that_fails_is_a_fault_and_the_rest_is_done() -> None:
    internal_errors.clear()
    done: list[int] = []
    with FinalizerSafeLock().section:
        defer(lambda: 1 // 0)  # type: ignore[arg-type, return-value]
        defer(lambda: done.append(2))
    run_deferred()
    assert done == [2]
    assert internal_errors.counts == {"finalizer: ZeroDivisionError: integer division or modulo by zero": 1}
    internal_errors.clear()


def test_an_exception_of_a_section_passes_and_ends_it() -> None:
    done: list[int] = []
    lock = FinalizerSafeLock()
    with pytest.raises(KeyError), lock.section:
        defer(lambda: done.append(1))
        raise KeyError
    run_deferred()
    assert done == [1]
    thread = threading.Thread(target=lock.section.__enter__)
    thread.start()
    thread.join(10)
    assert not thread.is_alive(), "the lock is free"


def test_threads_take_turns() -> None:
    lock, inside, most = FinalizerSafeLock(), 0, 0

    def work() -> None:
        nonlocal inside, most
        for _ in range(50):
            with lock.section:
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


def test_what_a_signal_handler_raises_as_the_collector_ends_does_not_leave_its_thread_busy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Python runs the handler between two instructions of a callback of the collector, and drops what it raises."""
    interrupted: list[str] = []

    def interrupt(frame: FrameType, event: str, arg: object) -> None:
        if frame.f_code.co_filename == finalizer_safe_lock.__file__ and frame.f_locals.get("phase") == "stop":
            interrupted.append(event)
            raise InterruptedError

    monkeypatch.setattr(sys, "unraisablehook", lambda dropped: None)
    finalizer_safe_lock.install()
    before = sys.gettrace()
    try:
        sys.settrace(interrupt)
        gc.collect()
        sys.settrace(before)
        assert interrupted, "a Python callback was called"
        assert not finalizer_safe_lock._finalizes()
    finally:
        sys.settrace(before)
        finalizer_safe_lock.uninstall()
