"""Locks of ours across `os.fork`: whole while the fork happens, fresh in the child."""

from __future__ import annotations

import time
import weakref
from typing import Any

_PATIENCE = 0.5  # seconds in all: a fork must not wait for ever for a thread that waits for the forking one
_locks: weakref.WeakSet[Any] = weakref.WeakSet()


def fork_safe(lock: Any) -> Any:
    """A lock of `threading`, remembered for as long as somebody holds it; returned as it is."""
    _locks.add(lock)
    return lock


def hold() -> list[Any]:
    """Take the locks before a fork, so that the child finds what they protect in a whole state.

    Those that another thread keeps for too long are left out: the child renews them all the same.
    """
    deadline = time.monotonic() + _PATIENCE
    return [lock for lock in list(_locks) if lock.acquire(timeout=max(0.0, deadline - time.monotonic()))]


def release(held: list[Any]) -> None:
    """In the parent, after the fork."""
    for lock in reversed(held):
        lock.release()


def renew() -> None:
    """In the child: no thread but this one lives, so that no lock is held."""
    for lock in list(_locks):
        lock._at_fork_reinit()
