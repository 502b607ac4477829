"""After replays that passed unseen: they are entered, and what they left is looked at before anything is seen again."""

from __future__ import annotations

from shadowgraph.checks.base import Checkpoint, Context
from shadowgraph.localize.flight_recorder import FlightRecorder
from shadowgraph.model.findings import NAP
from shadowgraph.model.phases import Phase
from shadowgraph.monitor.boundaries import Boundaries
from shadowgraph.monitor.check_budget import CheckBudget
from shadowgraph.monitor.sampling import passing
from shadowgraph.monitor.sampling.naps import Naps
from shadowgraph.monitor.sampling.passing import Passed


class LookingBack:
    """Knows which replay passed last. The caller holds the debugger's lock."""

    def __init__(
        self, context: Context, journal: FlightRecorder, budget: CheckBudget, naps: Naps, bounds: Boundaries
    ) -> None:
        self._context, self._journal, self._budget, self._naps, self._bounds = context, journal, budget, naps, bounds
        self._last: Passed | None = None  # until somebody looks

    def passed(self, serial: int, paused: bool) -> None:
        """Replays are over that passed, the last one of the graph with that serial."""
        count = self._enter()
        if not paused:
            self._naps.replays_passed(serial, count)
            self.look()

    def enter(self) -> None:
        """Enter the replays that passed until now, before it is time for a glance."""
        self._naps.looked(self._enter())

    def forget(self) -> None:
        """What they left is not to be judged."""
        self.enter()
        self._last = None

    def look(self) -> None:
        """Check what they have left: by whom, and in which of them, nobody saw."""
        self.enter()
        last, self._last = self._last, None
        if last is not None:
            # Where others look first, host code came after it, which passed unseen as well.
            phase, replay = (Phase.PREPARE, last.replay + 1) if passing.on else (Phase.REPLAY, last.replay)
            self._bounds.close(NAP, phase, last.graph, replay)

    def checkpoint(self) -> Checkpoint | None:
        """For a look at a part before `look`; None where none has passed since."""
        last = passing.latest() or self._last
        if last is None:
            return None
        writes, order = self._context.writes, next(self._context.clock)
        return Checkpoint(NAP, Phase.PREPARE, last.graph, last.replay + 1, writes, order)

    def _enter(self) -> int:
        found = passing.taken()
        if found:
            self._last = found[-1]
            self._budget.replays_passed(len(found))
            for each in found:
                self._journal.passed(each, next(self._context.clock))
        return len(found)
