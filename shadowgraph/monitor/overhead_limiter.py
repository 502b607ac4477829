"""Overhead limiter: thins replay checks, then stops them, by checking time and number of internal errors.

Checks return once they take little time again. `Monitor` measures in the thread of each event; there is no lock, so
sums over several threads may be off.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_WINDOW = 5_000_000_000  # ns; window over which the share of wall time is computed
_THINNER = 4  # factor by which checks get rarer at each step
_THINNEST = 64
_AS_MANY = "a finding's phase and replay may be off by as many"


class _Local(threading.local):
    inside = False


class OverheadLimiter:
    """Measures the cost of checking and decides which replays are checked.

    Parameters
    ----------
    overhead_percent
        Largest percentage of a window's wall time that may be spent between `enter` and `leave`; None for no limit.
    fault_limit
        Number of internal errors above which checks thin out; above twice as many they stop. None for no limit.
    every
        Check at most every n-th replay of a graph.
    clock
        Returns nanoseconds.

    Attributes
    ----------
    stride
        Every n-th replay of a graph is checked now.
    stopped
        Why checking has ended, or None.
    limited
        Whether there is a limit to evaluate.
    measured
        Whether the time of checking is measured.
    """

    def __init__(
        self,
        overhead_percent: float | None = None,
        fault_limit: int | None = None,
        clock: Callable[[], int] = time.perf_counter_ns,
        every: int = 1,
    ) -> None:
        self._percent, self._fault_limit, self._clock = overhead_percent, fault_limit, clock
        self.stride = self._every = every
        self._thinned = self._thinnest = 1
        self.stopped: str | None = None
        self._reason = ""
        self._local = _Local()
        self._spent = self._spent_before = 0
        self._window_began = clock()
        self.limited = overhead_percent is not None or fault_limit is not None
        self.measured = overhead_percent is not None

    @property
    def spent(self) -> int:
        """Nanoseconds of checking so far, over all threads."""
        return self._spent

    def enter(self) -> int | None:
        """Start to measure in this thread; None inside a block that is already measured."""
        if self._percent is None or self._local.inside:
            return None
        self._local.inside = True
        return self._clock()

    def leave(self, began: int | None) -> None:
        """End the measurement that `enter` began."""
        if began is not None:
            self._spent += self._clock() - began
            self._local.inside = False

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Exclude the time inside, which the device takes and the program waits for as well."""
        began = self._clock()
        try:
            yield
        finally:
            if self._percent is not None and self._local.inside:
                self._spent -= self._clock() - began

    def due(self, replay: int) -> bool:
        """Whether a graph's replay (from 1) is to be checked."""
        return self.stride == 1 or replay % self.stride == 1

    def judge(self, faults: int) -> bool:
        """Evaluate the limits, given the internal errors so far; True when checking is at a new low."""
        if self.stopped is not None:
            return False
        if self._fault_limit is not None and faults > self._fault_limit:
            return self._judge_faults(faults)
        now = self._clock()
        if self._percent is None or now - self._window_began < _WINDOW:
            return False
        share = 100 * (self._spent - self._spent_before) / (now - self._window_began)
        self._window_began, self._spent_before = now, self._spent
        if share <= self._percent:
            if self._thinned > 1 and _THINNER * share <= self._percent:  # so that checks do not thin out again at once
                self._thin(self._thinned // _THINNER)
            return False
        self._reason = f"checking took {share:.0f} % of the time, more than {self._percent:g} %"
        if self._thinned >= _THINNEST:
            self.stopped = self._reason
            return True
        before = self._thinnest
        self._thin(self._thinned * _THINNER)
        return self._thinnest > before

    def _thin(self, factor: int) -> None:
        self._thinned, self._thinnest = factor, max(factor, self._thinnest)
        self.stride = self._every * factor

    def _judge_faults(self, faults: int) -> bool:
        assert self._fault_limit is not None
        reason = f"{faults:,} faults of shadowgraph's own, more than {self._fault_limit:,}"
        if faults > 2 * self._fault_limit:
            self.stopped = self._reason = reason
            return True
        if self._thinned >= _THINNER:
            return False
        self._reason = reason
        self._thin(_THINNER)
        return True

    def sentence(self) -> str | None:
        """A report line on the checks that were given up; None when none were."""
        if self.stopped is not None:
            return f"checks stopped: {self.stopped}"
        if self._thinned > 1:
            return f"checks thinned out to one replay in {self.stride}: {self._reason}; {_AS_MANY}"
        asked = f"checks on one replay in {self._every} of each graph, as asked" if self._every > 1 else ""
        if self._thinnest > 1:
            past = f"checks were thinned out to one replay in {self._every * self._thinnest} for a time: {self._reason}"
            asked = f"{asked}; {past}" if asked else past
        return f"{asked}; {_AS_MANY}" if asked else None
