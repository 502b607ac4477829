"""Enters replays that passed unobserved into the journal and the counts. Their graphs' own check nodes checked them."""

from __future__ import annotations

from shadowgraph.checks.base import Context
from shadowgraph.localize.flight_recorder import FlightRecorder
from shadowgraph.monitor.check_budget import CheckBudget
from shadowgraph.monitor.sampling import passing
from shadowgraph.monitor.sampling.observation import Observation


class PassedReplays:
    """The caller holds the debugger's lock."""

    def __init__(
        self, context: Context, journal: FlightRecorder, budget: CheckBudget, observation: Observation
    ) -> None:
        self._context, self._journal, self._budget, self._observation = context, journal, budget, observation

    def enter(self) -> None:
        """Enter the replays that passed until now, before the next one that is observed."""
        self._observation.looked(self.take())

    def take(self) -> int:
        """The same for a caller that reports them to `Observation`; returns how many."""
        found = passing.taken()
        if found:
            self._budget.replays_passed(len(found))
            for each in found:
                self._journal.passed(each, next(self._context.clock))
        return len(found)
