"""Where nothing happens for long, eager operators are watched around some replays in many only.

To see them takes a dispatch mode, in Python, which costs each of them microseconds: more than anything else that is
done to a server. Replays are checked all the same, Triton launches are seen. What stays unseen is who else wrote what,
so that rules which follow from that rest as well, and begin anew afterwards; reads by the host, which are judged by
those rules, are not told either.
"""

from __future__ import annotations

from collections.abc import Callable

from shadowgraph.graphs import eager, host_reads

STEADY = 512  # replays after the last news before the first nap
AWAKE = 16  # replays between two naps; every rule that looks back gets its chance in them
ASLEEP = 2032  # replays of a nap
ENOUGH = 64  # replays of a graph that are watched before it passes in a nap; never more than `STEADY`


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
    turned
        Called as a nap begins, with True, and when all is seen again: there were writes that nobody saw. Sets `blind`.

    Attributes
    ----------
    asleep
        Whether eager operators pass unseen now.
    blind
        Whether some do: after a nap, those of a thread that has not got its mode back yet.
    taken
        Naps so far.
    """

    def __init__(
        self, wanted: bool, news: Callable[[], int], busy: Callable[[], bool], turned: Callable[[bool], None]
    ) -> None:
        self.wanted, self.asleep, self.blind = wanted, False, False
        self._news, self._busy, self._turned = news, busy, turned
        self._left, self._known, self.taken = STEADY, 0, 0
        self._watched: dict[int, int] = {}  # replays while all was watched, by the graphs' serials

    def replay_ended(self, serial: int) -> None:
        """Between two replays, in the thread that replays: who sees its operators changes here.

        A graph that was not watched enough yet, of another batch size for instance, ends a nap for a while.
        """
        if not self.wanted:
            if eager.rests:  # a debugger before this one has stopped while it slept
                eager.follow(False)
            return
        self._left -= 1
        known, watched = self._news(), self._watched.get(serial, 0)
        if not self.blind:
            self._watched[serial] = watched + 1
        if known != self._known:
            self._known = known
            self.rouse()
        elif self.asleep and watched < min(ENOUGH, STEADY):
            self._left = AWAKE
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
        else:
            self.asleep, self._left, self.taken = True, ASLEEP, self.taken + 1
            self._turned(True)

    def _wake(self) -> None:
        self.asleep = False
        host_reads.rest(False)

    def sentence(self) -> str | None:
        """What was not watched, for the report; None where all was."""
        if not self.taken:
            return None
        return (
            f"eager operators were watched around {AWAKE} replays in {AWAKE + ASLEEP:,} after {STEADY} without news: "
            "SG102, SG103, SG108, reads by the host and the operators that wrote before a replay are known of these "
            "only "
            "(--watch-eager always)"
        )
