"""Locks inside which no finalizer does its work, and the queue where that work waits.

A storage's finalizer may run anywhere: in the middle of a change to the ledger in the same thread, in a thread that
holds another lock, inside the garbage collector. Work done right there would find structures half changed, or wait
for ever. So finalizers queue it, and it is done where this thread is in no section and the collector does not run.
"""

from __future__ import annotations

import gc
import threading
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager

from shadowgraph.faults import faults
from shadowgraph.forking import forkable

Work = Callable[[], None]


class _Local(threading.local):
    depth = 0


_local = _Local()
_queue: deque[Work] = deque()
_collecting: int | None = None  # the thread that runs the garbage collector
_abandoned = False


def later(work: Work) -> None:
    """Do `work` now if nothing stands against it, else as soon as that is so. For finalizers; never raises."""
    if _abandoned:
        return
    _queue.append(work)
    settle()


def forked(abandon: bool) -> None:
    """In a forked child: no other thread collects garbage. With `abandon`, finalizers do nothing any more: they would
    touch a device that belongs to the parent."""
    global _collecting, _abandoned
    _collecting = None
    if abandon:
        _abandoned = True
        _queue.clear()


def settle() -> None:
    """Do the work that waits, unless this thread is in a section or in the garbage collector."""
    if not _queue or _local.depth or _collecting == threading.get_ident():
        return
    _local.depth += 1
    try:
        while _queue:
            try:
                work = _queue.popleft()
            except IndexError:  # another thread was faster
                break
            try:
                work()
            except Exception as error:
                faults.note("finalizer", error)
    finally:
        _local.depth -= 1


class QuietLock:
    """A reentrant lock. While a thread holds one, its finalizers wait; the last release does their work."""

    def __init__(self) -> None:
        self._lock = forkable(threading.RLock())
        self._acquire, self._release = self._lock.acquire, self._lock.release  # on the replay path
        if _note_collector not in gc.callbacks:
            gc.callbacks.append(_note_collector)

    @property
    def within(self) -> AbstractContextManager[object]:
        """The lock alone, for a thread that holds another one of these, in which finalizers wait already: cheaper."""
        lock: AbstractContextManager[object] = self._lock
        return lock

    def __enter__(self) -> None:
        if _queue:
            settle()  # what the collector left waiting: who takes the lock must not find the dead alive
        _local.depth += 1
        self._acquire()

    def __exit__(self, *exc: object) -> None:
        self._release()
        _local.depth -= 1
        if _queue:
            settle()


def _note_collector(phase: str, info: Mapping[str, int]) -> None:
    global _collecting
    _collecting = threading.get_ident() if phase == "start" else None
