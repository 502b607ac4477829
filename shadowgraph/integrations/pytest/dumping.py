"""Writes a dump for each failing test, while its memory is still as at the finding."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from shadowgraph.dumps.process_dumps import dump_to
from shadowgraph.integrations.pytest.windows import Sighting, Window

if TYPE_CHECKING:
    from shadowgraph.integrations.pytest.watcher import Watcher

_LONGEST = 100  # characters of a test's id in a file name


class Dumps:
    """Writes at most one dump per test.

    Parameters
    ----------
    folder
        Target folder; None for no dumps.
    """

    watcher: Watcher

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder

    def noticed(self, window: Window, sighting: Sighting) -> None:
        """A test has a finding. Its buffers may be freed when the test has ended."""
        if window.declared.fails(sighting.finding.code):
            self._write(window, "finding")

    def failed(self, window: Window, report: pytest.TestReport) -> None:
        """A phase of a test is over; a test that fails by itself is dumped too."""
        if report.failed:
            self._write(window, "failure")

    def _write(self, window: Window, reason: str) -> None:
        debugger = self.watcher.debugger
        if self._folder is not None and window.dump is None and debugger is not None:
            window.dump = dump_to(self._folder, debugger, _stem(window.nodeid), reason, redact=False)


def _stem(nodeid: str) -> str:
    """A file name that is unique to the test."""
    readable = re.sub(r"[^\w.-]+", "-", nodeid).strip("-")[-_LONGEST:]
    return f"{readable}-{hashlib.sha256(nodeid.encode()).hexdigest()[:8]}"
