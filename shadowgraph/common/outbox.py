"""What is to be written or said once a thread has released the debugger's locks.

A finding comes up in the middle of a check, under the debugger's lock, often the allocator's too. What is to be done
about it may take long or wait for another thread: a handler of the program's logging takes locks of its own and may
format a tensor, which the debugger watches; a file may lie on a slow disk. So the code under the lock posts that work
here, and the same thread does it when it holds no lock of ours any more: at once where it holds none, else when the
event that it is in ends, and before that event returns to the program, which may be killed next.

Writing is ours and runs no code of the program, so that all of it is done before anything is said: a handler that never
returns costs no record. What a handler itself brings up is written at once, and said when the handler has returned.

Called by everything that finds, counts or logs, in any thread. No lock protects this: each thread touches its own box
only, that of work posted by finalizers aside, and taking from a deque is one step.
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
    """What one thread has posted, in order."""

    __slots__ = ("said", "written")

    def __init__(self) -> None:
        self.written: deque[Work] = deque()
        self.said: deque[Work] = deque()

    def __bool__(self) -> bool:
        return bool(self.written or self.said)


class _Local(threading.local):
    """The box of the calling thread, and whether code of the program's is being run out of one."""

    def __init__(self) -> None:
        self.box: _Box | None = None
        self.saying = False


class Outbox:
    """Work that waits for its thread to release our locks.

    Attributes
    ----------
    full
        The boxes that hold work, by their ids. Whether there is any is asked after every event.
    busy
        Whether the calling thread is where no code of the program may run: it holds a lock of ours, is in the garbage
        collector, or does a finalizer's work. Set by the module that knows.
    finalizes
        Whether it is the last of these: what a finalizer posts is delivered by whichever thread has an event next.
    failed
        Told of an exception of posted work, which goes no further.
    """

    def __init__(self) -> None:
        self.full: dict[int, _Box] = {}
        self.busy: Callable[[], bool] = bool
        self.finalizes: Callable[[], bool] = bool
        self.failed: Callable[[BaseException], None] = lambda error: None
        self._local, self._shared = _Local(), _Box()

    def write(self, work: Work, now: bool = True) -> None:
        """Do `work`, which writes to a file of ours or tells a part of ours, when no lock is held; now if none is.

        Without `now`, under a lock that is not ours, some later event does it, of whatever thread.
        """
        box = self._box(now)
        box.written.append(work)
        self._posted(box, now)

    def say(self, work: Work, now: bool = True) -> None:
        """Do `work`, which runs code of the program's, such as a handler of its logging, after all that is to be
        written. `now` as for `write`."""
        box = self._box(now)
        box.said.append(work)
        self._posted(box, now)

    def deliver(self) -> None:
        """Do what this thread has posted, and what finalizers have, unless it is where that must wait."""
        if not self.full or self.busy():
            return
        mine = self._local.box
        for box in (mine, self._shared) if mine is not None else (self._shared,):
            self._empty(box)

    def write_all(self) -> None:
        """Write what any thread has posted: at the end of a process, whose threads may have ended, or hang."""
        for box in list(self.full.values()):
            self._do_all(box.written)

    def forked(self) -> None:
        """In a forked child: what was posted is the parent's."""
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
            if box:  # another thread's finalizer has posted meanwhile
                self.full[id(box)] = box

    def _say_all(self, box: _Box) -> None:
        local = self._local
        if local.saying:  # a handler has led here: it may hold a lock that the next one wants, or call itself for ever
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
    """An event: what it posts is done before it returns to the program, or raises."""

    @wraps(method)
    def told(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return method(*args, **kwargs)
        finally:
            if outbox.full:
                outbox.deliver()

    return told
