"""Our own faults: counted, logged once each, never passed on to the program being watched."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable
from types import TracebackType

from shadowgraph.errors import ShadowgraphError
from shadowgraph.forking import forkable

logger = logging.getLogger("shadowgraph")


class FaultLog:
    """Counts faults by where and what; thread-safe.

    Attributes
    ----------
    heard
        Called with the first fault of each kind, at once.
    theirs
        Says of an exception that came up in our code whether it is the program's own, which goes on to the program.
    """

    def __init__(self) -> None:
        self._lock = forkable(threading.Lock())
        self.heard: Callable[[str], None] | None = None
        self.theirs: Callable[[BaseException], bool] | None = None
        self._counts: Counter[str] = Counter()

    def note(self, where: str, error: BaseException) -> None:
        """Count one fault; the first of its kind is logged with its traceback."""
        if self.theirs is not None and self.theirs(error):
            return
        key = f"{where}: {type(error).__name__}: {_said(error)}".split("\n", 1)[0]
        with self._lock:
            self._counts[key] += 1
            first = self._counts[key] == 1
        if first:
            logger.warning(
                "shadowgraph fault in %s (the program goes on)",
                key,
                exc_info=None if isinstance(error, ShadowgraphError) else error,
                extra={"fault": key},  # what quotes the program, for a formatter that redacts
            )
            if self.heard is not None:
                self.heard(key)

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


faults = FaultLog()


class shielded:
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
        faults.note(self._where, error)
        return True


class contained(shielded):
    """`shielded`, and deliberate errors do not pass either: for code that the program's own library calls."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if not isinstance(error, Exception):
            return False
        faults.note(self._where, error)
        return True
