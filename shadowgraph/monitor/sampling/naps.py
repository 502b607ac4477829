"""Where nothing happens for long, little is looked at around most replays.

To see eager operators takes a dispatch mode, in Python, which costs each of them microseconds: more than anything else
that is done to a server. In a nap they pass unseen. What stays unknown is who wrote what, so that rules which follow
from that rest as well, and begin anew afterwards; reads by the host, judged by those rules, are not told either.

Most replays of a nap pass whole, with the Triton launches that prepare them. In between, at distances that change so
that none of several graphs which take turns is missed for good, one gets a glance: a check of what passed before it,
its preparation seen, a check at its beginning and at its end. What broke is found at the next glance, and who did it
when it happens again, since a finding ends the nap.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from shadowgraph.graphs.dispatch import eager, host_reads
from shadowgraph.graphs.dispatch.leaving import call_main_back
from shadowgraph.monitor.sampling import passing

STEADY = 512  # replays after the last news before the first nap
AWAKE = 16  # replays between two naps; every rule that looks back gets its chance in them
ASLEEP = 4080  # replays of a nap
APART = (64, 192)  # replays of a nap from one glance to the next, the fewest and the most
ENOUGH = 64  # replays of a graph that are watched before it passes in a nap; never more than `STEADY`
PATIENCE = 3  # times `AWAKE` more replays in which such a graph is waited for


class Naps:
    """Counts replays. Not thread-safe: a miscount does no harm.

    Parameters
    ----------
    wanted
        Whether naps are taken at all; if not, nothing is to be called.
    news
        A number that changes when something happens: then all is watched for `STEADY` replays.
    busy
        Whether something is being looked for for which eager operators must be seen.
    exact
        Whether somebody wants to hear of each replay, even in a nap; `every` how many-th is checked at most.
    due
        Whether evidence of a check node has arrived.
    turned
        Called as a nap begins, with True, and when all is seen again: there were writes that nobody saw. Sets `blind`.

    Attributes
    ----------
    asleep
        Whether eager operators pass unseen now.
    idle
        Whether they do because there is no graph (`shadowgraph.monitor.idleness`).
    blind
        Whether some do: after a nap, those of a thread that has not got its mode back yet.
    taken
        Naps so far.
    seen_since
        When all was seen again after the last nap, as `time.time`.
    glances
        Whether the replay that comes, or runs, gets a glance: it is checked, whatever its number.
    """

    def __init__(
        self,
        wanted: bool,
        news: Callable[[], int],
        busy: Callable[[], bool],
        turned: Callable[[bool], None],
        exact: Callable[[], bool] = lambda: False,
        every: Callable[[], int] = lambda: 1,
        due: Callable[[], bool] = bool,
    ) -> None:
        self.wanted, self.asleep, self.blind, self.idle = wanted, False, False, False
        self._news, self._busy, self._turned, self._exact, self._every = news, busy, turned, exact, every
        self._due = due
        self._left, self._known, self.taken = STEADY, 0, 0
        self._watched: dict[int, int] = {}  # replays while all was watched, by the graphs' serials
        self._familiar: set[int] = set()  # serials of those that were watched enough
        self._awaited: int | None = None  # for whose sake a nap was ended, until it replays again
        self._patience = 0  # windows more that this may take
        self._chance = random.Random(0)
        self.glances = False
        self.seen_since = 0.0
        self._over = False

    def begin(self) -> None:
        """A debugger watches from here on; whoever watched before may have stopped in a nap."""
        self._over = False
        self.rouse()

    def end(self) -> None:
        """It does not any more."""
        self._over = True
        self._pass(0)
        passing.taken()  # of nobody's any more

    def replay_ended(self, serial: int) -> None:
        """Between two replays, in the thread that replays: who sees its operators changes here.

        A graph that was not watched enough yet, of another batch size for instance, ends a nap until it replays again.
        """
        if not self.wanted and self.asleep:
            self.rouse()
        elif not self.wanted:
            if self.blind:
                self.look()
            elif eager.rests:  # a debugger before this one has stopped while it slept
                eager.follow(False)
            return
        self._count(serial)
        if self.asleep:
            apart = max(self._chance.randint(*APART), self._every())
            self._pass(0 if self._exact() else min(apart - 1, self._left))

    def replays_passed(self, serial: int, count: int) -> None:
        """The same after some that passed unseen, the last one of the graph with that serial."""
        self._left -= count - 1
        self._count(serial)
        self._pass(0)
        self.glances = self.asleep

    def looked(self, count: int) -> None:
        """That many have passed, and somebody has looked before it was time for a glance."""
        self._left -= count

    def _count(self, serial: int) -> None:
        self._left -= 1
        known = self._news()
        if not self.blind:
            self._note_watched(serial, 1)
            if serial == self._awaited:
                self._awaited = None
        if known != self._known:
            self._known = known
            self.rouse()
        elif self.asleep and serial not in self._familiar:
            self._awaited, self._patience, self._left = serial, PATIENCE, AWAKE
            self._wake()
        elif self._left <= 0:
            self._turn()
        if self.asleep:
            eager.follow(True)
        elif self.blind:
            self.look()

    def dropped(self, serial: int) -> None:
        """A graph is gone."""
        self._watched.pop(serial, None)
        self._familiar.discard(serial)
        if serial == self._awaited:
            self._awaited = None

    def _note_watched(self, serial: int, count: int) -> None:
        watched = self._watched[serial] = self._watched.get(serial, 0) + count
        if watched >= min(ENOUGH, STEADY):
            self._familiar.add(serial)

    def begin_idle(self) -> None:
        """Operators pass unseen from here on, until `rouse`: there is no graph."""
        self.asleep = self.idle = True
        self._turned(True)

    def rouse(self) -> None:
        """Something happened: watch for long, and in this thread at once."""
        self._left = STEADY
        self._wake()
        if self.blind:
            self.look()

    def needed(self) -> None:
        """This thread's next operators must be seen."""
        if self.blind:
            self.rouse()

    @property
    def steady(self) -> bool:
        """Whether graphs replay and operators pass unseen."""
        return self.asleep and not self.idle

    def attend(self) -> None:
        """The step that is about to be prepared is to be seen in full: a window begins, in this thread at once."""
        if self.steady:
            self._left = AWAKE
            self._wake()
            self.glances = True
            if self.blind:
                self.look()

    def look(self) -> None:
        """After a nap: give this thread its mode back, and see whether every one has."""
        if not self.asleep:
            eager.follow(False)
            if not eager.anyone_rests():
                self._turned(False)

    def _turn(self) -> None:
        if self.asleep:
            self._left = AWAKE
            self._wake()
        elif self._busy():
            self._left = AWAKE
        elif self._awaited is not None and self._patience:
            self._left, self._patience = AWAKE, self._patience - 1
        else:
            if self._awaited is not None:  # it comes too seldom to be waited for many times
                self._note_watched(self._awaited, AWAKE)
                self._awaited = None
            self.asleep, self._left, self.taken = True, ASLEEP, self.taken + 1
            self._turned(True)

    def _wake(self) -> None:
        self.asleep = False
        if self.idle:
            self.idle = False
            call_main_back()
        self._pass(0)
        host_reads.rest(False)

    def _pass(self, count: int) -> None:
        """Let that many replays pass, then take a glance at the next."""
        self.glances = False
        passing.let(count if self.asleep and not self._over else 0, self._familiar, self._due)

    def sentence(self) -> str | None:
        """What was not watched, for the report; None where all was."""
        if not self.taken:
            return None
        return (
            f"eager operators were watched around {AWAKE} replays in {AWAKE + ASLEEP:,} after {STEADY} without news: "
            "SG102, SG103, SG108, reads by the host and the operators that wrote before a replay are known of these "
            f"only; of the others one in {APART[0]} to {APART[1]} was checked, with the kernels launched before it "
            "(--watch-eager always)"
        )
