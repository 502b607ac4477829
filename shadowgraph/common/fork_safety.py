"""Fork-safe locks: taken before `os.fork`, released in the parent, reinitialised in the child.

`hold`, `release` and `renew` are called by the fork hooks of a wrapped process, in the forking thread.
"""

from __future__ import annotations

import time
import weakref
from typing import Any

_PATIENCE = 0.5  # seconds in total: a fork must not wait for ever on a thread that waits for the forking thread
_locks: weakref.WeakSet[Any] = weakref.WeakSet()


def fork_safe(lock: Any) -> Any:
    """Register a lock of `threading` for forks, by weak reference, and return it."""
    _locks.add(lock)
    return lock


def hold() -> list[Any]:
    """Take the registered locks before a fork, so that the child finds the protected data consistent.

    Locks that another thread keeps for too long are left out: the child reinitialises them all the same.
    """
    deadline = time.monotonic() + _PATIENCE
    return [lock for lock in list(_locks) if lock.acquire(timeout=max(0.0, deadline - time.monotonic()))]


def release(held: list[Any]) -> None:
    """Release the locks in the parent, after the fork."""
    for lock in reversed(held):
        lock.release()


def renew() -> None:
    """Reinitialise the locks in the child, whose only thread this is, so that no lock is held."""
    for lock in list(_locks):
        lock._at_fork_reinit()
