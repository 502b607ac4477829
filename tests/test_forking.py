"""Our locks across a fork."""

from __future__ import annotations

import threading
import weakref

import pytest

from shadowgraph.common import fork_safety


def test_held_locks_are_free_again() -> None:
    lock = fork_safety.fork_safe(threading.RLock())
    held = fork_safety.hold()
    assert lock in held
    taken = []
    thread = threading.Thread(target=lambda: taken.append(lock.acquire(blocking=False)))
    thread.start()
    thread.join()
    assert taken == [False]
    fork_safety.release(held)
    assert lock.acquire(blocking=False)
    lock.release()


def test_a_lock_that_another_thread_keeps_is_renewed_in_the_child(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fork_safety, "_locks", weakref.WeakSet())  # the locks of this test run stay as they are
    lock = fork_safety.fork_safe(threading.Lock())
    thread = threading.Thread(target=lock.acquire)
    thread.start()
    thread.join()
    held = fork_safety.hold()
    assert lock not in held
    fork_safety.release(held)
    assert not lock.acquire(blocking=False)
    fork_safety.renew()
    assert lock.acquire(blocking=False)
    lock.release()
