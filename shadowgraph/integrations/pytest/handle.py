"""What the fixture `shadowgraph` gives to a test."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shadowgraph.common.errors import UsageError
from shadowgraph.debugger import Debugger
from shadowgraph.integrations.pytest.windows import Window
from shadowgraph.model.findings import Finding, Severity

if TYPE_CHECKING:
    from shadowgraph.integrations.pytest.watcher import Watcher


class WatchedTest:
    """The debugger as seen from one test.

    Everything of `Debugger` (``guard()``, ``name()``, ``protect()``, ``prepare()``, ``report()``...), with the findings
    and notes that were seen in this test alone. Valid until the test's tear-down has ended.
    """

    def __init__(self, watcher: Watcher, window: Window) -> None:
        self._watcher, self._window = watcher, window

    @property
    def debugger(self) -> Debugger:
        """The debugger, which other tests may share.

        Raises
        ------
        UsageError
            When nobody watches now: the test has started a debugger of its own, or ours could not start.
        """
        debugger = self._watcher.debugger
        if debugger is None:
            raise UsageError("no debugger watches this test now; has it started one of its own?")
        return debugger

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What has been found in this test so far; never waits."""
        self.debugger.findings  # noqa: B018  # takes in what has arrived
        return self._of(Severity.ERROR)

    @property
    def notes(self) -> tuple[Finding, ...]:
        """What is worth knowing and no fault, of this test."""
        return self._of(Severity.NOTE)

    def check(self) -> tuple[Finding, ...]:
        """Check now, and return all findings of this test so far."""
        self.debugger.check()
        return self.findings

    def _of(self, severity: Severity) -> tuple[Finding, ...]:
        return tuple(s.finding for s in self._window.sightings if s.finding.severity is severity)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self.debugger, name)
