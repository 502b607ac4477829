"""Locks inside which no finalizer does its work, and the queue where that work waits.

A storage's finalizer may run anywhere: in the middle of a change to the ledger in the same thread, in a thread that
holds another lock, inside the garbage collector. Work done right there would find structures half changed, or wait
for ever. So finalizers queue it, and it is done where this thread is in no section and the collector does not run: at
once if that is so, else before the next section begins.
"""

from __future__ import annotations

import gc
import threading
import weakref
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, TypeVar

from shadowgraph.common.fork_safety import fork_safe
from shadowgraph.common.internal_errors import internal_errors
from shadowgraph.common.outbox import outbox

Work = Callable[[], None]
_T = TypeVar("_T")


class _Local(threading.local):
    settling = False


_local = _Local()
_sections: list[weakref.ref[Any]] = []  # locks: a thread that owns one is in a section
_adding = fork_safe(threading.Lock())
_queue: deque[Work] = deque()
_STOP = "stop"  # the phase in which the garbage collector has come to its end
_collecting: dict[str, int] = {}  # under that phase, the thread that runs the garbage collector
_installed = 0
_abandoned = False


def defer(work: Work) -> None:
    """Do `work` now if nothing stands against it, else as soon as that is so. For finalizers; never raises."""
    if _abandoned:
        return
    _queue.append(work)
    run_deferred()


def install() -> None:
    """Listen to the garbage collector, for as long as a debugger watches; counted, undone by `uninstall`. Without one,
    finalizers work where they are: nothing then looks at memory in the middle of what they change."""
    global _installed
    with _adding:
        _installed += 1
        if _note_collector not in gc.callbacks:
            gc.callbacks += _listening


def uninstall() -> None:
    """Undo one `install`."""
    global _installed
    with _adding:
        _installed = max(0, _installed - 1)
        if not _installed:
            for callback in _listening:
                if callback in gc.callbacks:
                    gc.callbacks.remove(callback)
            _collecting.clear()
    run_deferred()


def forked(abandon: bool) -> None:
    """In a forked child: no other thread collects garbage. With `abandon`, finalizers do nothing any more: they would
    touch a device that belongs to the parent."""
    global _abandoned
    _collecting.clear()
    outbox.forked()
    if abandon:
        _abandoned = True
        _queue.clear()


def run_deferred() -> None:
    """Do the work that waits, unless this thread is in a section or in the garbage collector."""
    if not _queue or _is_busy():
        return
    try:
        _local.settling = True
        while _queue:
            try:
                work = _queue.popleft()
            except IndexError:  # another thread was faster
                break
            try:
                work()
            except Exception as error:
                internal_errors.note("finalizer", error)
    finally:
        _local.settling = False


def _is_busy() -> bool:
    """Whether this thread is where neither finalizers nor the program's own code may run."""
    return _finalizes() or _in_section()


def _finalizes() -> bool:
    """Whether this thread does finalizers' work, or collects garbage."""
    return _local.settling or _collecting.get(_STOP) == threading.get_ident()


def _in_section() -> bool:
    """Whether this thread holds a lock. The locks know: a count could be left wrong by what a signal handler raises."""
    for section in list(_sections):
        lock = section()
        if lock is not None and lock._is_owned():
            return True
    return False


outbox.busy, outbox.finalizes = _is_busy, _finalizes


class FinalizerSafeLock:
    """A reentrant lock. While a thread holds one, work of its finalizers waits for the next section or `run_deferred`.

    It is no context itself: what a signal handler raises between the instructions of an ``__enter__`` in Python would
    leave the lock held for ever. Those of the lock inside are one instruction each.
    """

    def __init__(self) -> None:
        self._lock = lock = fork_safe(threading.RLock())
        with _adding:
            _sections[:] = [*(section for section in _sections if section() is not None), weakref.ref(lock)]

    @property
    def section(self) -> AbstractContextManager[object]:
        """The lock, for a ``with``. What the collector left waiting is done first: who takes the lock must not find the
        dead alive."""
        if _queue:
            run_deferred()
        return self.within

    @property
    def within(self) -> AbstractContextManager[object]:
        """The lock, for a thread that holds another one already, or that settles by itself."""
        lock: AbstractContextManager[object] = self._lock
        return lock

    def run(self, work: Callable[[], _T], patience: float) -> _T:
        """Call `work` with the lock, or without it where another thread keeps it for more than `patience` seconds: for
        what is asked for just when a thread hangs."""
        lock = self._lock
        if lock._is_owned():
            return work()
        try:
            lock.acquire(timeout=patience)
            return work()
        finally:  # the lock knows: a signal handler may raise before its answer is noted
            if lock._is_owned():
                lock.release()


def _note_collector(phase: str, info: Mapping[str, int]) -> None:
    if phase != _STOP:
        _collecting[_STOP] = threading.get_ident()


# A method of `dict`, called with the phase and a default, notes that a collection has ended: a signal handler may raise
# between the instructions of a Python function, and its thread would be taken for the collector until the next end.
_listening = (_collecting.pop, _note_collector)
