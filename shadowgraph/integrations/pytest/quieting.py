"""Log filter that moves internal errors from a test's log, which the test may inspect, to the summary."""

from __future__ import annotations

import logging

_MOST = 20


class FaultsAside(logging.Filter):
    """Passes findings and keeps all records below their level.

    Attributes
    ----------
    kept
        The first messages, with tracebacks.
    """

    def __init__(self) -> None:
        super().__init__()
        self.kept: list[str] = []
        self._form = logging.Formatter("%(message)s")

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno >= logging.ERROR:
            return True
        if len(self.kept) < _MOST:
            self.kept.append(self._form.format(record))
        return False
