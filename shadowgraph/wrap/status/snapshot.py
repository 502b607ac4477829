"""A run folder as it is now, read at most every so often, with what was made of it."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

from shadowgraph.render.text.run_text import RunReport
from shadowgraph.wrap.folder.reader import read_run

_OFTEN = 1.0  # seconds between two readings at least
_SHARE = 10  # and as many times what one took


class Snapshot:
    """Gives out pages of one reading until that is too old.

    Holds one reading and one text a page. Reading and writing pages takes at most a tenth of one thread's time,
    however many ask.

    Parameters
    ----------
    folder
        The run folder. Nobody but us is asked: its processes do not notice.
    clock
        Seconds that only grow.
    """

    def __init__(self, folder: str | os.PathLike[str], clock: Callable[[], float] = time.monotonic) -> None:
        self._folder, self._clock = Path(folder), clock
        self._lock = threading.Lock()
        self._report: RunReport | None = None
        self._failed: Exception | None = None
        self._good_until = float("-inf")
        self._pages: dict[str, bytes] = {}

    def page(self, name: str, make: Callable[[RunReport], bytes]) -> bytes:
        """The page of that name, made of the present reading if it was not yet.

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
            self._report, self._failed, self._pages = None, None, {}  # at no time two
            self._good_until = now + _OFTEN
            try:
                self._report = RunReport(read_run(self._folder))
            except Exception as error:  # told to whoever asks until it is time to try again
                self._failed = error
        if self._report is None:
            assert self._failed is not None
            raise self._failed.with_traceback(None)  # else it grows with everybody who asks
        if name not in self._pages:
            self._pages[name] = make(self._report)
        return self._pages[name]
