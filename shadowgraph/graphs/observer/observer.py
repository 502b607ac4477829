"""The observer of operators: whether it is wanted, built, loaded and on, and what it has noted.

`observer` is the process's only one, since torch's kernels are for all threads. A debugger starts and stops it; its
own thread builds and loads the library meanwhile. `latest_sequence` is for replay paths and takes no lock; the rest of
the reading is for where evidence is looked at, in any thread, without a lock.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

import numpy as np

from shadowgraph.common.exception_text import summary
from shadowgraph.common.fork_safety import fork_safe
from shadowgraph.common.internal_errors import error_barrier_all
from shadowgraph.graphs.observer import building
from shadowgraph.graphs.observer.building import BuildError
from shadowgraph.graphs.observer.library import ROW, Library, Rows, loaded
from shadowgraph.graphs.observer.operators import ObservedOperator, operators_in, touching
from shadowgraph.model.ranges import ByteRange

_EVER = 2**63 - 1
_NOT_YET = "the observer in C++ has not been compiled yet"
_FORKED = "the process was forked while it was built"


class OperatorObserver:
    """Notes in C++ the operators that write tensors, in every thread, once its library is there.

    Building takes a compiler some ten seconds of one core, the first time on a machine. No caller waits for it.

    Parameters
    ----------
    builds
        Return the path of a library, each if the one before it fails; called in a thread of its own, which may wait. By
        default of the whole observer, and of one that records no captures.

    Attributes
    ----------
    reason
        Why there is none, in one line, or None.
    dropped
        Rows that were asked for and had been replaced by later ones: a thread keeps 4,096.
    captures_by_mode
        Captures that a dispatch mode noted because there was no library.
    """

    def __init__(self, *builds: Callable[[], Path]) -> None:
        self._builds = builds or (building.library, building.library_without_captures)
        self._lock = fork_safe(threading.Lock())  # for starting, stopping and loading
        self._library: Library | None = None
        self._uses: list[Callable[[Library], None]] = []
        self._word = ctypes.c_uint64(0)
        self._thread: threading.Thread | None = None
        self._wanted = False
        self._began = 0.0
        self._ready: float | None = None  # seconds after the start
        self.reason: str | None = None
        self._no_captures: str | None = None  # why the library records none
        self.dropped = 0
        self.captures_by_mode = 0

    @property
    def active(self) -> bool:
        """Whether operators are being noted."""
        return self._wanted and self._library is not None and self._ready is not None and self.reason is None

    @property
    def library(self) -> Library | None:
        """The library that notes operators, or None; it may record captures, too."""
        return self._library if self.active else None

    @property
    def failures(self) -> int:
        """Operators that could not be noted: too many, or no memory."""
        return self._library.failures.value if self._library is not None else 0

    def start(self) -> None:
        """Note operators as soon as possible: at once where this process has the library, else when it is built."""
        with self._lock:
            if self._wanted:
                return
            self._wanted, self._began, self._ready = True, time.monotonic(), None
            if self._library is not None:
                self._activate(self._library)
            elif self._thread is None and self.reason is None:  # what failed once is not tried again in this process
                self._make()

    def stop(self) -> None:
        """Note no more operators; what was noted stays readable."""
        with self._lock:
            self._wanted = False
            if self._library is not None:
                self._library.stop()

    def when_loaded(self, use: Callable[[Library], None]) -> None:
        """Have the library used for something else too: at once, or once it is loaded, in the thread that loads.

        `use` is called under the lock of starts and stops, and neither starts nor stops.
        """
        with self._lock:
            self._uses.append(use)
            if self._library is not None:
                _used(use, self._library)

    def wait(self, seconds: float) -> bool:
        """Wait until the library is loaded, or is known not to be; returns whether operators are being noted."""
        thread = self._thread
        if thread is not None:
            thread.join(seconds)
        return self.active

    def sentence(self) -> str | None:
        """For the report, also after the stop: on operators that were not noted. None where all were, and before the
        first start."""
        sampled = "operators are noted by the dispatch mode of watched threads alone"
        if not self._began:
            return None
        count = self.captures_by_mode
        captures = f"{count:,} capture{'s' if count > 1 else ''} went through a dispatch mode, which is slower"
        if self.reason is not None or self._ready is None:
            why = f"no observer in C++ ({self.reason})" if self.reason is not None else _NOT_YET
            return f"{sampled}: {why}{f'; {captures}' if count else ''}"
        if self.failures:
            return f"the observer in C++ could not note {self.failures:,} operators"
        why = f"the observer in C++ has no recorder of captures ({self._no_captures})"
        if self._no_captures is None:
            why = "the observer in C++ was not there yet"
        return f"{captures}: {why}" if count else None

    def latest_sequence(self) -> int:
        """The sequence number of the latest operator, to be remembered at the end and at the beginning of a replay."""
        return self._word.value

    def since(self, sequence: int) -> list[ObservedOperator]:
        """The operators after a sequence number."""
        return self.launches_between(sequence, self.latest_sequence())

    def launches_between(
        self, after: int, until: int, writing: Iterable[ByteRange] | None = None
    ) -> list[ObservedOperator]:
        """The operators after one sequence number and up to another, in the order in which they began.

        Parameters
        ----------
        after, until
            Of `latest_sequence`: at the end of the replay before, and at the beginning of this one.
        writing
            Only those that may write bytes of these ranges; None for all.
        """
        library = self._library
        if library is None:
            return []
        rows, dropped = library.read(after, until)
        self.dropped += dropped
        if writing is not None:
            rows = touching(rows, writing)
        return operators_in(rows, library.name_of)

    def rows_between(self, after: int, until: int) -> tuple[Rows, bool]:
        """The same as rows, in order, from where on none was replaced; and whether that is from the beginning."""
        library = self._library
        if library is None or until <= after:
            return np.empty(0, ROW), True
        rows, dropped = library.read(after, until)
        self.dropped += dropped
        lost = library.lost()
        return rows[np.searchsorted(rows["sequence"], lost, "right") :], lost <= after

    def name_of(self, operator: int) -> tuple[str, str]:
        """The name of a row's operator, and its overload."""
        return self._library.name_of(operator) if self._library is not None else ("", "")

    def _make(self) -> None:
        """Have the library built and loaded by a thread."""
        self._thread = threading.Thread(target=self._load, name="shadowgraph-observer", daemon=True)
        try:
            self._thread.start()
        except RuntimeError as error:  # the interpreter ends, or the process has no more threads
            self._thread, self.reason = None, str(error)

    def _load(self) -> None:
        library, reason = None, None
        try:
            library = self._built()
        except BuildError as error:
            reason = str(error)
        except Exception as error:  # no caller is left; the report tells
            reason = summary(error)
        with self._lock:
            self.reason = reason
            if library is not None:
                self._library, self._word = library, library.sequence
                if self._wanted:
                    self._activate(library)
                for use in self._uses:
                    _used(use, library)
            self._thread = None  # last: `wait` is for all of it

    def _built(self) -> Library:
        whole, *others = self._builds
        try:
            return loaded(whole())
        except BuildError as error:
            for build in others:
                with contextlib.suppress(BuildError):
                    library = loaded(build())
                    self._no_captures = str(error)
                    return library
            raise

    def _activate(self, library: Library) -> None:
        try:
            library.start()
            self._ready = time.monotonic() - self._began
        except BuildError as error:
            self.reason = str(error)

    def _forked(self) -> None:
        """In a forked child, which has no copy of the thread that builds. What was noted still is."""
        if self._thread is not None:
            self._thread, self.reason = None, _FORKED


def _used(use: Callable[[Library], None], library: Library) -> None:
    with error_barrier_all("use of the observer's library"):
        use(library)


observer = OperatorObserver()
os.register_at_fork(after_in_child=partial(OperatorObserver._forked, observer))
