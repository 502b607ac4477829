"""Callbacks of code that runs a debugger from outside: wrap, the pytest plugin, adapters.

Findings and exceptions come up under the debugger's lock. Their callbacks write files, so calls are posted (see
`outbox`) and run in the same thread, in the same event, once the lock is released. Callbacks around replays run at
once, in the replaying thread, without the lock. An exception of a callback is counted as an internal error.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Generic, ParamSpec

from shadowgraph.common.errors import ShadowgraphError
from shadowgraph.common.internal_errors import internal_errors
from shadowgraph.common.outbox import outbox
from shadowgraph.model.failures import Failure
from shadowgraph.model.findings import Finding

P = ParamSpec("P")


class Callbacks(Generic[P]):
    """The subscribers of one kind of news, in the order of their subscription. True when there is one.

    No lock: the tuple of callbacks is replaced as a whole.

    Parameters
    ----------
    what
        Name of the callbacks' internal errors.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._called: tuple[Callable[P, object], ...] = ()

    def subscribe(self, callback: Callable[P, object]) -> Callable[[], None]:
        """Call a function from now on; once, however often it subscribes.

        Returns
        -------
        Callable
            Ends the subscription. A second call does nothing.
        """
        if callback not in self._called:
            self._called = (*self._called, callback)
        return partial(self._end, callback)

    def _end(self, callback: Callable[P, object]) -> None:
        self._called = tuple(each for each in self._called if each != callback)

    def __bool__(self) -> bool:
        return bool(self._called)

    def call(self, *facts: P.args, **named: P.kwargs) -> None:
        """Call every subscriber in this thread, now."""
        for callback in self._called:
            self._tell(callback, *facts, **named)

    def post(self, *facts: P.args, **named: P.kwargs) -> None:
        """Call every subscriber in this thread, once it holds no lock of the debugger."""
        for callback in self._called:
            outbox.write(partial(self._tell, callback, *facts, **named))

    def _tell(self, callback: Callable[P, object], *facts: P.args, **named: P.kwargs) -> None:
        try:  # as `error_barrier`, without its cost
            callback(*facts, **named)
        except ShadowgraphError:
            raise
        except Exception as error:
            internal_errors.note(self._what, error)


class Subscriptions:
    """What code outside of the debugger may subscribe to. The monitor owns it; the parts that have the news publish it.

    Attributes
    ----------
    findings
        Every stored finding, new, seen again or revised, before it is logged. Calls of two threads may come in another
        order than the findings were stored; revision and occurrences tell the order.
    failures
        Every exception of the program that was recorded with its context.
    report_lines
        Lines of the report that are known early, for a process that may end without a summary. A line that a
        subscriber was told is left out of the report's limits.
    replay_begins
        A replay begins, checked or not, before its other processing; once for several replays that passed unseen.
    replay_checked
        A checked replay has ended.
    """

    def __init__(self) -> None:
        self.findings: Callbacks[[Finding]] = Callbacks("record of a finding")
        self.failures: Callbacks[[Failure]] = Callbacks("record of an exception")
        self.report_lines: Callbacks[[str]] = Callbacks("report line")
        self.replay_begins: Callbacks[[]] = Callbacks("begin of a replay")
        self.replay_checked: Callbacks[[]] = Callbacks("checked replay")
