"""A dump for each failing test, made while the memory is as it was found."""

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

_LONGEST = 100  # characters of a test's id in a file's name


class Dumps:
    """Writes one dump a test.

    Parameters
    ----------
    folder
        Where to; None: nowhere.
    """

    watcher: Watcher

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder

    def noticed(self, window: Window, sighting: Sighting) -> None:
        """A test has a finding. Its buffers may be gone when the test has ended."""
        if window.declared.fails(sighting.finding.code):
            self._write(window, "finding")

    def failed(self, window: Window, report: pytest.TestReport) -> None:
        """A test's phase is over; one that fails by itself is worth a dump too."""
        if report.failed:
            self._write(window, "failure")

    def _write(self, window: Window, reason: str) -> None:
        debugger = self.watcher.debugger
        if self._folder is not None and window.dump is None and debugger is not None:
            window.dump = dump_to(self._folder, debugger, _stem(window.nodeid), reason, redact=False)


def _stem(nodeid: str) -> str:
    """A file's name that no two tests share."""
    readable = re.sub(r"[^\w.-]+", "-", nodeid).strip("-")[-_LONGEST:]
    return f"{readable}-{hashlib.sha256(nodeid.encode()).hexdigest()[:8]}"
