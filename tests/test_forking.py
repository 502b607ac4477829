"""Our locks across a fork."""

from __future__ import annotations

import os
import threading
import weakref
from contextlib import ExitStack

import pytest

from shadowgraph.common import fork_safety
from shadowgraph.model.graphs import Graph
from shadowgraph.model.guards import GuardPolicy
from shadowgraph.tracking import allocator
from shadowgraph.tracking.stores import Budget


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


def test_locks_that_are_held_for_a_moment_are_free_in_a_child_of_that_moment() -> None:
    """Of what a child of a host program goes on with: its graphs, guards, records of stores and allocator."""
    owners = [
        Graph(1, "graph#1").reading,
        GuardPolicy(16, None, 1 << 20)._lock,
        Budget(1)._lock,
        allocator._allocator_lock,
    ]
    held, done = threading.Event(), threading.Event()

    def keep() -> None:
        with ExitStack() as stack:
            for lock in owners:
                stack.enter_context(lock)
            held.set()
            assert done.wait(30)

    thread = threading.Thread(target=keep)
    thread.start()
    assert held.wait(30)
    taken = fork_safety.hold()
    child = os.fork()
    if not child:
        fork_safety.renew()
        os._exit(0 if all(lock.acquire(blocking=False) for lock in owners) else 1)
    fork_safety.release(taken)
    done.set()
    thread.join(30)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


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
