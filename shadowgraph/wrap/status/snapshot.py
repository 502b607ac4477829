"""Cached reading of a run folder, refreshed at a bounded rate, with the pages built from it.

Called in the status server's threads; one lock serialises reading and page building.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

from shadowgraph.render.text.run_text import RunReport
from shadowgraph.wrap.folder.reader import read_run

_OFTEN = 1.0  # seconds between two readings at least
_SHARE = 10  # factor on the duration of the last reading


class Snapshot:
    """Serves pages from one reading until it expires.

    Holds one reading and one text per page. Reading and page building take at most a tenth of one thread's time,
    however many requests arrive.

    Parameters
    ----------
    folder
        The run folder. The processes of the run are not contacted.
    clock
        Returns monotonic seconds.
    """

    def __init__(self, folder: str | os.PathLike[str], clock: Callable[[], float] = time.monotonic) -> None:
        self._folder, self._clock = Path(folder), clock
        self._lock = threading.Lock()
        self._report: RunReport | None = None
        self._failed: Exception | None = None
        self._good_until = float("-inf")
        self._pages: dict[str, bytes] = {}

    def page(self, name: str, make: Callable[[RunReport], bytes]) -> bytes:
        """The page with this name, built from the current reading on first use.

        Raises
        ------
        RunFolderError
            When the folder cannot be read.
        """
        with self._lock:
            began = self._clock()
            try:
                return self._page(name, make, began)
            finally:
                took = self._clock() - began
                self._good_until = max(self._good_until, began + took * (_SHARE + 1))

    def _page(self, name: str, make: Callable[[RunReport], bytes], now: float) -> bytes:
        if now >= self._good_until:
            self._report, self._failed, self._pages = None, None, {}  # never two readings in memory
            self._good_until = now + _OFTEN
            try:
                self._report = RunReport(read_run(self._folder))
            except Exception as error:  # raised for each request until the next reading
                self._failed = error
        if self._report is None:
            assert self._failed is not None
            raise self._failed.with_traceback(None)  # else the traceback grows with each request
        if name not in self._pages:
            self._pages[name] = make(self._report)
        return self._pages[name]
