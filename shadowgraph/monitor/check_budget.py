"""Which replays are checked, within the limits on what checking may cost, and how many were.

Called by `Monitor` in the replaying thread, without a lock: counters may miscount by a replay that begins in two
threads at the same time.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from shadowgraph.common.internal_errors import internal_errors, log
from shadowgraph.common.settings import Settings
from shadowgraph.graphs.dispatch.eager_guard import EagerGuard
from shadowgraph.monitor.overhead_limiter import OverheadLimiter
from shadowgraph.monitor.subscriptions import Subscriptions


class CheckBudget:
    """Counts replays and decides which are checked.

    Parameters
    ----------
    guarding
        Selects the eager allocations that are guarded; None for none. New guards are given up before checks.
    subscriptions
        Its `replay_begins` and `replay_checked` are published here.
    by_nodes
        Replays that check nodes have checked since the process began.

    Attributes
    ----------
    limit
        What checking may cost, and what was given up for it.
    replays, observed
        Numbers of replays that began, and of those at whose ends Python checked or compared something, too.
    """

    def __init__(
        self,
        settings: Settings,
        guarding: EagerGuard | None,
        subscriptions: Subscriptions,
        by_nodes: Callable[[], int] = int,
    ) -> None:
        self.limit = OverheadLimiter(settings.overhead_percent, settings.fault_limit, every=settings.every)
        self._guarding, self._subscriptions = guarding, subscriptions
        self._by_nodes = by_nodes
        self._last: int | None = None
        self._forget()
        self._faults_before = internal_errors.total

    def _forget(self) -> None:
        self.replays = self.observed = self._by_launches = 0
        self._before, self._last = self._by_nodes(), None

    def stop(self) -> None:
        """The debugger stops: what check nodes check later is not its own, unless it starts again."""
        self._last = self._by_nodes()

    @property
    def checked(self) -> int:
        """Replays whose guards were checked: by launches or, as far as the device has got, by check nodes."""
        return self._by_launches + (self._by_nodes() if self._last is None else self._last) - self._before

    def start_over(self) -> None:
        """A debugger starts, or goes on in a forked child: disregard replays and internal errors so far."""
        self._faults_before = internal_errors.total
        self._forget()

    @property
    def guards_eager(self) -> bool:
        """Whether eager allocations are guarded now."""
        return self._guarding is not None and self._guarding.active

    def capture_began(self) -> None:
        """Static buffers of further graphs may be allocated from here on."""
        if self._guarding is not None:
            self._guarding.capture_began()

    def replays_passed(self, count: int) -> None:
        """Replays passed unobserved. The caller holds the debugger's lock."""
        self.replays += count
        self._subscriptions.replay_begins.post()

    def replay_due(self, replay: int, looks_closer: bool = False) -> bool:
        """Whether a graph's replay, which begins now, is to be checked; one that is looked at more closely always is.

        The limits are evaluated here: when checking takes too long or fails too often, new guards are given up first.
        """
        self.replays += 1
        self._subscriptions.replay_begins.call()
        if self._guarding is not None:
            self._guarding.replay_began()
        limit = self.limit
        if limit.limited and limit.judge(internal_errors.total - self._faults_before):
            if self._guarding is not None:
                self._guarding.stop()
            log(logging.WARNING, "shadowgraph: %s", limit.sentence())
        return limit.stopped is None and (looks_closer or limit.due(replay))

    def replay_ended(self, by_nodes: bool = False) -> None:
        """An observed replay has ended. `by_nodes`: it is counted by its graph's check nodes, or with its step."""
        self.observed += 1
        self._by_launches += not by_nodes
        self._subscriptions.replay_checked.call()
