"""Per-thread queue of file writes and log calls that run once the thread has released the debugger's locks.

A finding comes up in the middle of a check, under the debugger's lock, often the allocator's too. Its follow-up work
may take long or wait for another thread: a logging handler of the program takes its own locks and may format a tensor,
which the debugger watches; a file may lie on a slow disk. So the code under the lock posts that work here, and the same
thread runs it when it holds no debugger lock: at once where it holds none, else at the end of its current event, before
control returns to the program, which may be killed next.

Writes run no code of the program and all run before any log call: a handler that never returns loses no record. Work
that a handler itself posts is written at once, and logged after the handler has returned.

Any thread. No lock: each thread touches its own box only, except the shared box of finalizers, and taking from a deque
is atomic.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")
Work = Callable[[], object]


class _Box:
    """The work that one thread has posted, in order."""

    __slots__ = ("said", "written")

    def __init__(self) -> None:
        self.written: deque[Work] = deque()
        self.said: deque[Work] = deque()

    def __bool__(self) -> bool:
        return bool(self.written or self.said)


class _Local(threading.local):
    """The calling thread's box, and whether the thread is running code of the program out of it."""

    def __init__(self) -> None:
        self.box: _Box | None = None
        self.saying = False


class Outbox:
    """Work that waits for its thread to release the debugger's locks.

    Attributes
    ----------
    full
        The boxes that hold work, by id. Tested after every event.
    busy
        Whether no code of the program may run in the calling thread: it holds a lock of the debugger, runs the garbage
        collector, or runs finalizer work. Set by ``finalizer_safe_lock``.
    finalizes
        Whether it is one of the last two: work posted by a finalizer is delivered by the thread with the next event.
    failed
        Called with an exception of posted work, which is not propagated.
    """

    def __init__(self) -> None:
        self.full: dict[int, _Box] = {}
        self.busy: Callable[[], bool] = bool
        self.finalizes: Callable[[], bool] = bool
        self.failed: Callable[[BaseException], None] = lambda error: None
        self._local, self._shared = _Local(), _Box()

    def write(self, work: Work, now: bool = True) -> None:
        """Run `work`, which writes a file or notifies a part of shadowgraph, once no lock is held; now if none is.

        Without `now`, under a foreign lock, a later event of any thread runs it.
        """
        box = self._box(now)
        box.written.append(work)
        self._posted(box, now)

    def say(self, work: Work, now: bool = True) -> None:
        """Run `work`, which runs code of the program, such as a logging handler, after all posted writes. `now` as for
        `write`."""
        box = self._box(now)
        box.said.append(work)
        self._posted(box, now)

    def deliver(self) -> None:
        """Run the posted work of this thread and of finalizers, unless this thread must not run it now."""
        if not self.full or self.busy():
            return
        mine = self._local.box
        for box in (mine, self._shared) if mine is not None else (self._shared,):
            self._empty(box)

    def write_all(self) -> None:
        """Run the posted writes of all threads: at the end of a process, whose threads may have ended, or hang."""
        for box in list(self.full.values()):
            self._do_all(box.written)

    def forked(self) -> None:
        """Drop posted work in a forked child: it is the parent's."""
        self.full.clear()
        self._local, self._shared = _Local(), _Box()

    def _box(self, now: bool) -> _Box:
        if not now or self.finalizes():
            return self._shared
        box = self._local.box
        if box is None:
            box = self._local.box = _Box()
        return box

    def _posted(self, box: _Box, now: bool) -> None:
        self.full[id(box)] = box
        if now:
            self.deliver()

    def _empty(self, box: _Box) -> None:
        self._do_all(box.written)
        self._say_all(box)
        if not box:
            self.full.pop(id(box), None)
            if box:  # a finalizer of another thread has posted meanwhile
                self.full[id(box)] = box

    def _say_all(self, box: _Box) -> None:
        local = self._local
        if local.saying:  # called from a handler: it may hold a lock that the next one needs, or recurse for ever
            return
        local.saying = True
        try:
            while box.said:
                self._do(box.said)
                self._do_all(box.written)
        finally:
            local.saying = False

    def _do_all(self, waiting: deque[Work]) -> None:
        while waiting:
            self._do(waiting)

    def _do(self, waiting: deque[Work]) -> None:
        try:
            work = waiting.popleft()
        except IndexError:  # another thread was faster
            return
        try:
            work()
        except Exception as error:
            self.failed(error)


outbox = Outbox()


def delivers(method: Callable[P, T]) -> Callable[P, T]:
    """Make a method an event: its posted work runs before it returns to the program, or raises."""

    @wraps(method)
    def told(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return method(*args, **kwargs)
        finally:
            if outbox.full:
                outbox.deliver()

    return told
