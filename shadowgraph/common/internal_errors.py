"""Our own faults: counted, logged once each, never passed on to the program being watched."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable
from functools import partial
from types import TracebackType

from shadowgraph.common.errors import ShadowgraphError
from shadowgraph.common.fork_safety import fork_safe
from shadowgraph.common.outbox import outbox

logger = logging.getLogger("shadowgraph")


def log(level: int, text: str, *args: object, **extra: object) -> None:
    """Log a line as soon as this thread holds no lock of ours. The handlers are the program's: one of them may wait for
    a thread that waits for us, or format a tensor, which is a read that is watched.

    `extra` are attributes of the record: what quotes the program, for a formatter that redacts.
    """
    outbox.say(partial(logger.log, level, text, *args, extra=extra))


class InternalErrorLog:
    """Counts faults by where and what; thread-safe.

    Attributes
    ----------
    heard
        Called with the first fault of each kind, as soon as the thread holds no lock of ours.
    theirs
        Says of an exception that came up in our code whether it is the program's own, which goes on to the program.
    """

    def __init__(self) -> None:
        self._lock = fork_safe(threading.Lock())
        self.heard: Callable[[str], None] | None = None
        self.theirs: Callable[[BaseException], bool] | None = None
        self._counts: Counter[str] = Counter()

    def note(self, where: str, error: BaseException, now: bool = True) -> None:
        """Count one fault; the first of its kind is logged with its traceback.

        Parameters
        ----------
        now
            Log in this event. False under a lock that is not ours, such as that of torch's allocator.
        """
        key, first = self._count(where, error)
        if not first:
            return
        if self.heard is not None:
            outbox.write(partial(self.heard, key), now)
        shown = None if isinstance(error, ShadowgraphError) else error
        said = "shadowgraph fault in %s (the program goes on)"
        outbox.say(partial(logger.warning, said, key, exc_info=shown, extra={"fault": key}), now)

    def count(self, where: str, error: BaseException) -> None:
        """Count one fault and log nothing, where logging itself is at fault."""
        self._count(where, error)

    def _count(self, where: str, error: BaseException) -> tuple[str, bool]:
        """What a fault is counted as, and whether it is the first of its kind."""
        if self.theirs is not None and self.theirs(error):
            return "", False
        key = f"{where}: {type(error).__name__}: {_said(error)}".split("\n", 1)[0]
        with self._lock:
            self._counts[key] += 1
            return key, self._counts[key] == 1

    @property
    def counts(self) -> dict[str, int]:
        """A copy of the counts by fault."""
        with self._lock:
            return dict(self._counts)

    @property
    def total(self) -> int:
        return sum(self.counts.values())

    def clear(self) -> None:
        with self._lock:
            self._counts.clear()


def _said(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # the program's own class, and its own fault
        return "(cannot be printed)"


internal_errors = InternalErrorLog()
outbox.failed = partial(internal_errors.count, "log or record")


class error_barrier:
    """Context that keeps an exception of ours from the program; deliberate errors (`ShadowgraphError`) pass."""

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
    """`error_barrier`, and deliberate errors do not pass either: for code that the program's own library calls."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if not isinstance(error, Exception):
            return False
        internal_errors.note(self._where, error)
        return True
