"""When host launches are observed: always at first, and in periods once nothing has happened for long.

Whether a guard or a declared buffer changed is never sampled: check nodes look at every replay on the device. To
observe eager operators takes a dispatch mode, in Python, which costs each of them microseconds: more than anything else
that is done to a server. So in the steady state they pass unobserved, and with them the rules that follow from every
write or copy (`FindingKind.needs_observation`). Kernels that are launched, batches and plans are noted all the same, in
a row each. So are operators where the observer in C++ is on: patterns of them that SG103 suspects are a reason to
observe (`shadowgraph.checks.stale_rows.write_patterns`).

| state | host launches | left for |
|---|---|---|
| `OBSERVED` | observed | `STEADY`, after `QUIET` replays without news, or a `WINDOW` within a period |
| `STEADY` | pass unobserved, with the replays; one replay in `LOOKS_APART` is looked at more closely | `OBSERVED` |
| `IDLE` | pass unobserved; no graph was captured for long | `OBSERVED`, with the first capture |

| from `STEADY` to `OBSERVED` because of | for |
|---|---|
| an error, a capture, a declaration, a request (`observe_all`, `observe_here`) | `QUIET` replays without another one |
| the first change, by a replay, of a buffer that the host plans from (`InGraphMutation.stirs`) | the same |
| writes that look like forgotten padding (`WritePatterns.stirs`) | the same |
| a step larger than all before it (`observe_step`) | that step and the next, a `WINDOW` at most |
| a graph that was not observed often enough yet | a `WINDOW`, up to `PATIENCE` times until it replays again |
| the end of a period: as long as windows take `SHARE` of the time, 1 to `LONGEST` times `PERIOD` replays | a `WINDOW` |

Called by `Monitor` between replays, in the replaying thread, mostly under the debugger's lock.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from enum import Enum

from shadowgraph.checks.kinds import kinds
from shadowgraph.checks.stale_rows import CODE as STALE_ROWS
from shadowgraph.graphs.dispatch import eager, host_reads
from shadowgraph.graphs.dispatch.leaving import call_main_back
from shadowgraph.tracking import passing

QUIET = 512  # replays after the last news before the steady state
WINDOW = 16  # observed replays between two periods; every rule that looks back gets its chance in them
PERIOD = 4080  # replays of a period in the steady state, at least
LONGEST = 16  # times as many, at most
SHARE = 0.01  # of the time, for windows
LOOKS_APART = (64, 192)  # replays from one closer look to the next, the fewest and the most
FAMILIAR = 64  # replays of a graph that are observed before it passes; never more than `QUIET`
PATIENCE = 3  # windows more in which such a graph is waited for


class State(Enum):
    """Which host launches are observed; see the module's tables."""

    OBSERVED = "observed"
    STEADY = "steady"
    IDLE = "idle"


class Observation:
    """The state, and the count of replays that changes it. Not thread-safe: a miscount does no harm.

    Parameters
    ----------
    wanted
        Whether there is a steady state; if not, all is observed while there are graphs.
    news
        A number that changes with each event that is a reason to observe.
    busy
        Whether something is looked for that needs every launch.
    changed
        Called with True as host launches pass unobserved from here on, and with False when all are observed again. Sets
        `incomplete`.
    exact
        Whether each replay needs a closer look.
    every
        Replays from one closer look to the next, at least.
    due
        Whether evidence of a check node has arrived.
    judges
        Whether patterns of unobserved writes are judged (SG103).

    Attributes
    ----------
    state
        Of the process.
    incomplete
        Whether host launches of some thread pass unobserved: after a period, those of a thread that has not got its
        mode back yet.
    periods
        Periods in the steady state so far.
    observed_since
        When all was observed again, as `time.time`.
    looks_closer
        Whether the replay that comes, or runs, is looked at more closely: it is checked whatever its number.
    """

    def __init__(
        self,
        wanted: bool,
        news: Callable[[], int],
        busy: Callable[[], bool],
        changed: Callable[[bool], None],
        exact: Callable[[], bool] = lambda: False,
        every: Callable[[], int] = lambda: 1,
        due: Callable[[], bool] = bool,
        judges: Callable[[], bool] = bool,
    ) -> None:
        self.wanted, self.state, self.incomplete = wanted, State.OBSERVED, False
        self._news, self._busy, self._changed, self._exact, self._every = news, busy, changed, exact, every
        self._due, self._judges = due, judges
        self._left, self._known, self.periods = QUIET, 0, 0
        self._period = 0  # replays of the latest period
        self._since = self._lasted = 0.0  # when that period or the window behind it began; how long the period was
        self._watched: dict[int, int] = {}  # observed replays, by the graphs' serials
        self._familiar: set[int] = set()  # serials of those that were observed often enough
        self._awaited: int | None = None  # serial of the graph that ended a period, until it replays again
        self._patience = 0  # windows more that this may take
        self._step: list[int] | None = None  # of a step that is observed for its size: the serial of its first graph
        self._chance = random.Random(0)
        self.looks_closer = False
        self.observed_since = 0.0
        self._over = False

    @property
    def unobserved(self) -> bool:
        """Whether host launches pass unobserved now."""
        return self.state is not State.OBSERVED

    @property
    def idle(self) -> bool:
        """Whether they do because there is no graph (`shadowgraph.monitor.idleness`)."""
        return self.state is State.IDLE

    @property
    def steady(self) -> bool:
        """Whether they do while graphs replay."""
        return self.state is State.STEADY

    def begin(self) -> None:
        """A debugger starts; the one before it may have stopped in the steady state."""
        self._over = False
        self.observe_all()

    def end(self) -> None:
        """The debugger stops."""
        self._over = True
        self._pass(0)
        passing.taken()  # no debugger's any more

    # -- after replays -----------------------------------------------------------------------------------------

    def replay_ended(self, serial: int) -> None:
        """An observed replay has ended. Modes of the calling thread change here, between two replays."""
        if not self.wanted and self.unobserved:
            self.observe_all()
        elif not self.wanted:
            if self.incomplete:
                self.resume()
            elif eager.rests:  # a debugger before this one has stopped in the steady state
                eager.follow(False)
            return
        self._count(serial)
        if self.unobserved:
            apart = max(self._chance.randint(*LOOKS_APART), self._every())
            self._pass(0 if self._exact() else min(apart - 1, self._left))

    def replays_passed(self, serial: int, count: int) -> None:
        """Replays have passed unobserved, the last one of the graph with that serial; the next one is looked at."""
        self.looked(count - 1)
        self._count(serial)
        self._pass(0)
        self.looks_closer = self.unobserved

    def looked(self, count: int) -> None:
        """Replays that passed were entered before the next closer look was due. Where all is observed by now they are
        of the period before."""
        if self.unobserved:
            self._left -= count

    def _count(self, serial: int) -> None:
        self._left -= 1
        known = self._news()
        if not self.incomplete:
            self._was_observed(serial)
        if known != self._known:
            self._known = known
            self.observe_all()
        elif self.unobserved and serial not in self._familiar:
            self._awaited, self._patience, self._left, self._lasted = serial, PATIENCE, WINDOW, 0.0
            self._enter(State.OBSERVED)
        elif self._left <= 0:
            self._turn()
        if self.unobserved:
            eager.follow(True)
        elif self.incomplete:
            self.resume()

    def _was_observed(self, serial: int) -> None:
        """An observed replay has ended. The step that is observed for its size, and the one behind it, end as the first
        graph of it has replayed again: the rest of a window tells no more of that size."""
        self._note_observed(serial, 1)
        if serial == self._awaited:
            self._awaited = None
        step = self._step  # another thread may end it
        if step is None:
            return
        if not step:
            step.append(serial)
        elif serial in step:
            self._left, self._step = 0, None

    def dropped(self, serial: int) -> None:
        """A graph is gone."""
        self._watched.pop(serial, None)
        self._familiar.discard(serial)
        if serial == self._awaited:
            self._awaited = None

    def _note_observed(self, serial: int, count: int) -> None:
        watched = self._watched[serial] = self._watched.get(serial, 0) + count
        if watched >= min(FAMILIAR, QUIET):
            self._familiar.add(serial)

    # -- transitions -------------------------------------------------------------------------------------------

    def begin_idle(self) -> None:
        """There is no graph: host launches pass unobserved from here on, until `observe_all`."""
        self._enter(State.IDLE)

    def observe_all(self) -> None:
        """Something happened: observe for long, and in this thread at once."""
        self._left, self._lasted, self._step = QUIET, 0.0, None  # no window that tells what one takes
        self._enter(State.OBSERVED)
        if self.incomplete:
            self.resume()

    def observe_here(self) -> None:
        """This thread's next operators must be observed."""
        if self.incomplete:
            self.observe_all()

    def observe_step(self) -> None:
        """The step that is about to be prepared is observed in full, in this thread at once."""
        if self.steady:
            self._left, self._step = WINDOW, []
            self._enter(State.OBSERVED)
            self.looks_closer = True
            if self.incomplete:
                self.resume()

    def resume(self) -> None:
        """Give this thread its mode back, and report when every thread has its own."""
        if not self.unobserved:
            eager.follow(False)
            if not eager.anyone_rests():
                self._changed(False)

    def _turn(self) -> None:
        """The replays that were left in this state are over."""
        if self.unobserved:
            now = time.monotonic()
            self._since, self._lasted = now, now - self._since
            self._left = WINDOW
            self._enter(State.OBSERVED)
        elif self._busy():
            self._left = WINDOW
        elif self._awaited is not None and self._patience:
            self._left, self._patience = WINDOW, self._patience - 1
        else:
            if self._awaited is not None:  # it comes too seldom to be waited for many times
                self._note_observed(self._awaited, WINDOW)
                self._awaited = None
            self._left, self.periods = self._next_period(), self.periods + 1
            self._enter(State.STEADY)

    def _next_period(self) -> int:
        """Replays of the period that begins: so many that the window before it took its share of the time, at the pace
        of the latest period."""
        now = time.monotonic()
        window, self._since = now - self._since, now
        paced = window / SHARE * self._period / self._lasted if self._lasted else 0
        self._lasted, self._period = 0.0, max(PERIOD, min(int(paced), LONGEST * PERIOD))
        return self._period

    def _enter(self, state: State) -> None:
        before, self.state = self.state, state
        if state is not State.OBSERVED:
            self._step = None
            self._changed(True)
            return
        if before is State.IDLE:
            call_main_back()
        self._pass(0)
        host_reads.rest(False)

    def _pass(self, count: int) -> None:
        """Let that many replays pass, then look closer at the next."""
        self.looks_closer = False
        if count and self.unobserved and not self._over:
            passing.let(count, self._familiar, self._due)
        else:
            passing.let(0)

    def sentence(self) -> str | None:
        """What was not observed, for the report; None where all was."""
        if not self.periods:
            return None
        every = WINDOW + self._period
        resting = [kind.code for kind in kinds() if kind.needs_observation]
        of_these = f"{', '.join(resting)} and reads by the host are known of these only"
        if self._judges():
            resting.remove(STALE_ROWS)
            of_these = (
                f"{', '.join(resting)} and reads by the host are known of these only, and {STALE_ROWS} of these and "
                f"where a step that keeps stale rows comes again, behind a full one, within {QUIET} replays"
            )
        return (
            f"eager operators were observed around {WINDOW} replays in {every:,} after {QUIET} without news: "
            f"undeclared {of_these}; guards were checked at each replay, as were declared buffers "
            "(--watch-eager always)"
        )
