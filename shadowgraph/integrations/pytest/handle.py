"""The object that the fixture `shadowgraph` returns to a test."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shadowgraph.common.errors import UsageError
from shadowgraph.debugger import Debugger
from shadowgraph.integrations.pytest.windows import Window
from shadowgraph.model.findings import Finding, Severity

if TYPE_CHECKING:
    from shadowgraph.integrations.pytest.watcher import Watcher


class WatchedTest:
    """The debugger from the point of view of one test.

    All methods of `Debugger` (``guard()``, ``name()``, ``protect()``, ``prepare()``, ``report()``...), with only the
    findings and notes seen in this test. Valid until the test's tear-down has ended.
    """

    def __init__(self, watcher: Watcher, window: Window) -> None:
        self._watcher, self._window = watcher, window

    @property
    def debugger(self) -> Debugger:
        """The debugger, which may be shared with other tests.

        Raises
        ------
        UsageError
            When no debugger watches: the test has started its own, or the plugin's could not start.
        """
        debugger = self._watcher.debugger
        if debugger is None:
            raise UsageError("no debugger watches this test now; has it started one of its own?")
        return debugger

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Findings of this test so far; never waits."""
        self.debugger.findings  # noqa: B018  # fetches findings that have arrived
        return self._of(Severity.ERROR)

    @property
    def notes(self) -> tuple[Finding, ...]:
        """Notes of this test, which are worth knowing and are not errors."""
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
