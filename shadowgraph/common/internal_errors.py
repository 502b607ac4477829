"""Internal errors of shadowgraph: counted, logged once each, never propagated to the watched program.

Any thread. Logging and listeners run through the outbox, after the thread has released the debugger's locks.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import TracebackType

from shadowgraph.common.errors import ShadowgraphError
from shadowgraph.common.exception_text import summary
from shadowgraph.common.fork_safety import fork_safe
from shadowgraph.common.outbox import outbox

logger = logging.getLogger("shadowgraph")
PROGRAMS_RULE = "the program's rule"  # place of an exception that is none of shadowgraph's own


def log(level: int, text: str, *args: object, **extra: object) -> None:
    """Log a line as soon as this thread holds no lock of the debugger. Handlers are the program's: one may wait for a
    thread that waits for the debugger, or format a tensor, which is a watched read.

    `extra` holds attributes of the record that quote the program, for a formatter that redacts.
    """
    outbox.say(partial(logger.log, level, text, *args, extra=extra))


@contextmanager
def unlogged() -> Iterator[None]:
    """No log lines meanwhile: of findings that are planted and shown in another way."""
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(before)


class InternalErrorLog:
    """Counts internal errors by place and message; thread-safe.

    Attributes
    ----------
    heard
        Called with the first error of each kind, as soon as the thread holds no lock of the debugger.
    theirs
        Whether an exception raised inside shadowgraph is the program's own, which is propagated to the program.
    """

    def __init__(self) -> None:
        self._lock = fork_safe(threading.Lock())
        self.heard: Callable[[str], None] | None = None
        self.theirs: Callable[[BaseException], bool] | None = None
        self._counts: Counter[str] = Counter()

    def note(self, where: str, error: BaseException, now: bool = True) -> None:
        """Count one internal error; the first of its kind is logged with its traceback.

        Parameters
        ----------
        now
            Log in this event. False under a foreign lock, such as that of torch's allocator.
        """
        key, first = self._count(where, error)
        if not first:
            return
        if self.heard is not None:
            outbox.write(partial(self.heard, key), now)
        shown = None if isinstance(error, ShadowgraphError) else error
        own = "shadowgraph fault in %s (the program goes on)"
        theirs = "%s; what it should check is not checked (the program goes on)"
        said = theirs if where.startswith(PROGRAMS_RULE) else own
        outbox.say(partial(logger.warning, said, key, exc_info=shown, extra={"fault": key}), now)

    def count(self, where: str, error: BaseException) -> None:
        """Count one internal error without logging, where logging itself failed."""
        self._count(where, error)

    def _count(self, where: str, error: BaseException) -> tuple[str, bool]:
        """The key that an internal error is counted under, and whether it is the first of its kind."""
        if self.theirs is not None and self.theirs(error):
            return "", False
        key = f"{where}: {summary(error)}"
        with self._lock:
            self._counts[key] += 1
            return key, self._counts[key] == 1

    @property
    def counts(self) -> dict[str, int]:
        """A copy of the counts by error."""
        with self._lock:
            return dict(self._counts)

    @property
    def total(self) -> int:
        return sum(self.counts.values())

    def clear(self) -> None:
        with self._lock:
            self._counts.clear()


internal_errors = InternalErrorLog()
outbox.failed = partial(internal_errors.count, "log or record")


class error_barrier:
    """Context that counts an internal error instead of propagating it; deliberate errors (`ShadowgraphError`) pass."""

    __slots__ = ("_where",)

    def __init__(self, where: str) -> None:
        self._where = where

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if not isinstance(error, Exception) or isinstance(error, ShadowgraphError):
            return False
        internal_errors.note(self._where, error)
        return True


class error_barrier_all(error_barrier):
    """`error_barrier` that stops deliberate errors too: for code that the program's libraries call."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if not isinstance(error, Exception):
            return False
        internal_errors.note(self._where, error)
        return True
