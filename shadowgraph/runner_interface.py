"""What code that runs whole programs under a debugger may ask of it: ``wrap`` and the pytest plugin.

In addition to `AdapterInterface`, with the same rules for callbacks and lifetime.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from shadowgraph.model.findings import Finding
from shadowgraph.monitor.monitor import Monitor


class RunCounts(NamedTuple):
    """Replays so far, and what checking costs.

    Attributes
    ----------
    replays, checked, observed
        Numbers of replays that began, of those whose guards were checked, and of those that were observed in full. A
        device counts what its check nodes check, so that `checked` may lag behind.
    every
        Every n-th replay of a graph is checked now; 0 when none is.
    spent
        Nanoseconds of checking, over all threads; None where they are not measured.
    """

    replays: int
    checked: int
    observed: int
    every: int
    spent: int | None


class RunnerInterface:
    """One debugger, as the code sees it that runs a program under it; `Debugger.runner`."""

    def __init__(self, work: Monitor) -> None:
        self._work = work

    def subscribe_report_lines(self, callback: Callable[[str], object]) -> Callable[[], None]:
        """Receive lines on what is not observed, as soon as they are true; the report then leaves them out.

        Parameters
        ----------
        callback
            Called in the thread of an event, without a lock of the debugger.

        Returns
        -------
        Callable
            Ends the subscription.
        """
        return self._work.subscriptions.report_lines.subscribe(callback)

    def subscribe_replay_begins(self, callback: Callable[[], object]) -> Callable[[], None]:
        """Have a function called when a replay begins, checked or not, before its other processing.

        Parameters
        ----------
        callback
            Called in the replaying thread without a lock of the debugger, on the path of every replay; once for several
            replays that passed unobserved. It may pause and resume the debugger.

        Returns
        -------
        Callable
            Ends the subscription.
        """
        return self._work.subscriptions.replay_begins.subscribe(callback)

    def subscribe_checked_replays(self, callback: Callable[[], object]) -> Callable[[], None]:
        """Have a function called after every checked replay.

        Parameters
        ----------
        callback
            Called in the replaying thread without a lock of the debugger.

        Returns
        -------
        Callable
            Ends the subscription.
        """
        return self._work.subscriptions.replay_checked.subscribe(callback)

    def adjust(self, **options: Any) -> None:
        """Change options while the debugger runs: those whose rows in `shadowgraph.common.options` are live.

        Parameters
        ----------
        **options
            Fields of `Settings`, such as ``stale_rows`` and ``partial_reruns``.

        Raises
        ------
        UsageError
            For an option that does not exist or a value that does not fit.
        """
        self._work.adjust(**options)

    def expect_static_buffers(self) -> None:
        """Say that static buffers may be allocated from here on, as at a capture."""
        self._work.budget.capture_began()

    def counts(self) -> RunCounts:
        """The replays so far. Any thread; takes no lock."""
        budget, limit = self._work.budget, self._work.limit
        every = limit.stride if limit.stopped is None and self._work.lost is None else 0
        spent = limit.spent if limit.measured else None
        return RunCounts(budget.replays, budget.checked, budget.observed, every, spent)

    def stored(self) -> tuple[Finding, ...]:
        """The findings and notes stored so far, findings first. Dispatches no evidence and takes no lock."""
        return (*self._work.book.findings, *self._work.book.notes)
