"""A reentrant lock under which no finalizer work runs, and the queue of deferred finalizer work.

A storage's finalizer may run anywhere: in the middle of a ledger update in the same thread, in a thread that holds
another lock, inside the garbage collector. Work done there would find structures half changed, or deadlock. So
finalizers call `defer`: the work runs at once where this thread holds no such lock and does not run the collector, else
before the thread next takes one. `weak_callback` keeps components from owning each other in a circle, which only the
collector would free. Any thread.
"""

from __future__ import annotations

import gc
import threading
import weakref
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, ParamSpec, TypeVar

from shadowgraph.common.fork_safety import fork_safe
from shadowgraph.common.internal_errors import internal_errors
from shadowgraph.common.outbox import outbox

Work = Callable[[], None]
_P = ParamSpec("_P")
_T = TypeVar("_T")


class _Local(threading.local):
    settling = False


_local = _Local()
_sections: list[weakref.ref[Any]] = []  # locks: a thread that owns one is in a critical section
_adding = fork_safe(threading.Lock())
_queue: deque[Work] = deque()
_STOP = "stop"  # the phase at the end of a collection
_collecting: dict[str, int] = {}  # by that phase: the thread that runs the garbage collector
_installed = 0
_abandoned = False


def defer(work: Work) -> None:
    """Run `work` now if this thread allows it, else as soon as it does. Called from finalizers; never raises."""
    if _abandoned:
        return
    _queue.append(work)
    run_deferred()


def install() -> None:
    """Register the garbage collector callbacks while a debugger runs; counted, undone by `uninstall`. Without a
    debugger, finalizers work in place: no reader can see their changes half made."""
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
    """Reset the state in a forked child, where no other thread collects garbage. With `abandon`, finalizers do nothing
    from now on: they would touch a device that belongs to the parent."""
    global _abandoned
    _collecting.clear()
    outbox.forked()
    if abandon:
        _abandoned = True
        _queue.clear()


def run_deferred() -> None:
    """Run deferred work, unless this thread holds such a lock or runs the garbage collector."""
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
    """Whether neither finalizer work nor the program's own code may run in this thread now."""
    return _finalizes() or _in_section()


def _finalizes() -> bool:
    """Whether this thread runs finalizer work, or collects garbage."""
    return _local.settling or collects_garbage()


def collects_garbage() -> bool:
    """Whether this thread runs the garbage collector, as far as is known: only while `install` is in force."""
    return _collecting.get(_STOP) == threading.get_ident()


def _in_section() -> bool:
    """Whether this thread holds such a lock. Asks the locks: a signal handler's exception could leave a count wrong."""
    for section in list(_sections):
        lock = section()
        if lock is not None and lock._is_owned():
            return True
    return False


outbox.busy, outbox.finalizes = _is_busy, _finalizes


class FinalizerSafeLock:
    """A reentrant lock. While a thread holds one, its finalizer work waits for the next section or `run_deferred`.

    Not a context manager itself: an exception that a signal handler raises between the instructions of a Python
    ``__enter__`` would leave the lock held for ever. Those of the inner lock are one instruction each.
    """

    def __init__(self) -> None:
        self._lock = lock = fork_safe(threading.RLock())
        with _adding:
            _sections[:] = [*(section for section in _sections if section() is not None), weakref.ref(lock)]

    @property
    def section(self) -> AbstractContextManager[object]:
        """The lock, for a ``with`` statement. Runs deferred work first: the holder must not see freed buffers as
        live."""
        if _queue:
            run_deferred()
        return self.within

    @property
    def within(self) -> AbstractContextManager[object]:
        """The lock without `run_deferred`, for a thread that holds another one or calls `run_deferred` itself."""
        lock: AbstractContextManager[object] = self._lock
        return lock

    def run(self, work: Callable[[], _T], patience: float) -> _T:
        """Call `work` with the lock, or without it if another thread holds it for more than `patience` seconds: for
        dumps and reports of a program that hangs."""
        lock = self._lock
        if lock._is_owned():
            return work()
        try:
            lock.acquire(timeout=patience)
            return work()
        finally:  # ask the lock: a signal handler may raise before the result of `acquire` is stored
            if lock._is_owned():
                lock.release()


def _note_collector(phase: str, info: Mapping[str, int]) -> None:
    if phase != _STOP:
        _collecting[_STOP] = threading.get_ident()


# `dict.pop`, called with the phase and a default, notes the end of a collection: a signal handler may raise
# between the instructions of a Python function, and its thread would count as the collector's until the next end.
_listening = (_collecting.pop, _note_collector)


def weak_callback(method: Callable[_P, _T]) -> Callable[_P, _T]:
    """Wrap a bound method of an owner, for a component that does not outlive the owner. Takes no lock.

    A component that held its owner strongly would make a reference cycle, and the owner's device memory would be freed
    by a garbage collection, at any time, even in the middle of another thread's capture.

    Raises
    ------
    ReferenceError
        From the call, when the owner is gone.
    """
    found = weakref.WeakMethod(method)
    name = getattr(method, "__qualname__", "a method")

    def call(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        alive = found()
        if alive is None:
            raise ReferenceError(f"{name} was called after its owner had gone")
        return alive(*args, **kwargs)

    return call
