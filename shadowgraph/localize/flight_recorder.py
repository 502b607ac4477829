"""Bounded log of the last launches and replays in host memory, for crash dumps and reports.

Appended to in the thread of each event, mostly under the debugger's lock; read by any thread without it.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from shadowgraph.checks.base import Checkpoint
from shadowgraph.engines.base import Mirror
from shadowgraph.graphs.observer.observer import OperatorObserver
from shadowgraph.model.graphs import Graph, Launch
from shadowgraph.model.host_plans import HostPlans
from shadowgraph.model.journal import Ran, Replayed
from shadowgraph.model.launches import IndexRule
from shadowgraph.model.phases import Phase
from shadowgraph.model.ranges import ByteRange, RangeSet
from shadowgraph.model.views import TensorView
from shadowgraph.tracking import passing
from shadowgraph.tracking.passing import Passed
from shadowgraph.tracking.writes import Write

LAUNCHES = 4096
REPLAYS = 4096
GIVEN = 512
STORED = 4096
OBSERVED = 64  # latest operators that the observer in C++ adds
RECENT = 4096  # of which those before one replay are chosen: evidence of a device arrives a few replays later
_PIECES = 16


class Stored(NamedTuple):
    """The bytes that a node of a host graph stored when it last ran: up to 16 ranges, or one range around them all."""

    ranges: tuple[tuple[int, int], ...]
    exact: bool


class Given(NamedTuple):
    """A launch that was about to run, and copies of its arguments' values.

    Attributes
    ----------
    copied
        Argument and view of each range that `mirror` holds, in order.
    passed
        `FlightRecorder.unseen` at that time.
    """

    launch: Launch
    rules: tuple[IndexRule, ...]
    copied: tuple[tuple[str, TensorView], ...]
    mirror: Mirror
    checkpoint: Checkpoint
    passed: int


class FlightRecorder:
    """All logs, oldest first. Appending takes no lock and a fraction of a microsecond: it is on the replay path.

    Launches are kept without their stores, so that the log does not hold the contents of a `StoreLog`.

    Attributes
    ----------
    stored
        The ranges that nodes stored to, by graph serial and node index; stores are seen only on the host.
    observer
        Notes operators while they pass unseen by dispatch modes; None where that is not wanted.
    """

    def __init__(self) -> None:
        self.launches: deque[tuple[Launch, float, Phase | None, int | None, int | None]]  # fields of `Ran`
        self.launches = deque(maxlen=LAUNCHES)
        self.replays: deque[tuple[int, int, float, int]] = deque(maxlen=REPLAYS)  # fields of `Replayed`
        self.given: deque[Given] = deque(maxlen=GIVEN)
        self.stored: dict[tuple[int, int], Stored] = {}
        self.host_plans = HostPlans()
        self.observer: OperatorObserver | None = None
        self._unseen = 0

    @property
    def unseen(self) -> int:
        """Replays so far that passed unseen, together with the launches that prepared them."""
        return self._unseen + len(passing.pending())

    def launched(self, write: Write, phase: Phase | None, graph: Graph | None) -> None:
        """Note a launch, `graph` for a node of its replay."""
        serial = graph.serial if graph is not None else None
        self.launches.append((write.launch, time.time(), phase, serial, write.node))
        if write.stores is not None and serial is not None and write.node is not None:
            self._keep(serial, write.node, write.ranges)

    def replay_launched(self, writes: Iterable[Write], graph: Graph) -> None:
        """Note nodes of a replay whose stores are not known."""
        now, serial = time.time(), graph.serial
        self.launches.extend([(write.launch, now, Phase.REPLAY, serial, write.node) for write in writes])

    def ran(self, launch: Launch, phase: Phase | None) -> None:
        """Note a launch of host code whose writes have not been computed."""
        self.launches.append((launch, time.time(), phase, None, None))

    def _keep(self, graph: int, node: int, ranges: RangeSet) -> None:
        key, spans = (graph, node), list(ranges)
        if not spans or (key not in self.stored and len(self.stored) >= STORED):
            return
        exact = len(spans) <= _PIECES
        pieces = spans if exact else [ByteRange(spans[0].start, spans[-1].stop)]
        self.stored[key] = Stored(tuple((span.start, span.stop) for span in pieces), exact)

    def dropped(self, graph: int) -> None:
        """The graph is gone."""
        for key in [key for key in list(self.stored) if key[0] == graph]:
            self.stored.pop(key, None)

    def taken(self) -> tuple[tuple[Ran, ...], tuple[Replayed, ...]]:
        """Launches and replays so far, with replays that passed unseen and are not entered yet, and the latest
        operators that passed with them; other threads may append meanwhile."""
        while True:
            try:
                launches, replays = tuple(self.launches), tuple(self.replays)
                break
            except RuntimeError:  # one was appended just now
                continue
        began = [Replayed(*replayed) for replayed in replays]
        order = began[-1].order if began else 0
        began += [Replayed(each.graph.serial, each.replay, each.time, order) for each in passing.pending()]
        ran = [Ran(*each) for each in launches]
        if passing.on:  # else the dispatch mode notes operators, and they are among the launches
            since = ran[-1].time if ran else 0.0
            ran += [each for each in self.last_observed() if each.time > since]
        return tuple(ran), tuple(began)

    def last_observed(self) -> tuple[Ran, ...]:
        """The latest operators that the observer in C++ has noted, oldest first; none where it is not on."""
        until = self.observer.latest_sequence() if self.observer is not None else 0
        return self.launches_between(max(0, until - OBSERVED), until)

    def launches_between(self, after: int, until: int, writing: Iterable[ByteRange] | None = None) -> tuple[Ran, ...]:
        """The operators that began in any thread between two moments, as `OperatorObserver.launches_between`.

        Parameters
        ----------
        after, until
            Of `OperatorObserver.latest_sequence`, at the end of a replay and at the beginning of the next one.
        writing
            Only operators that may write bytes of these ranges; None for all.
        """
        if self.observer is None:
            return ()
        found = self.observer.launches_between(after, until, writing)
        return tuple(Ran(each.launch, each.time, None, None, None) for each in found)

    def operators_before(self, graph: int, replay: int, where: ByteRange) -> tuple[Launch, ...]:
        """Operators that the observer in C++ has noted between a replay and the one before it, and that may write into
        a range, oldest first."""
        if self.observer is None:
            return ()
        _, replays = self.taken()
        places = [at for at, each in enumerate(replays) if (each.graph, each.replay) == (graph, replay)]
        if not places:
            return ()
        since = replays[places[-1] - 1].time if places[-1] else 0.0
        until = self.observer.latest_sequence()
        ran = self.launches_between(max(0, until - RECENT), until, (where,))
        return tuple(each.launch for each in ran if since <= each.time <= replays[places[-1]].time)

    def enter_passed(self, clock: Iterator[int]) -> list[Passed]:
        """Enter the replays that passed until now, before the next one that is observed, and return them."""
        found = passing.taken()
        for each in found:
            self.passed(each, next(clock))
        return found

    def passed(self, replay: Passed, order: int) -> None:
        """Note a replay that passed unobserved."""
        self._unseen += 1
        self.replays.append((replay.graph.serial, replay.replay, replay.time, order))

    def replayed(self, graph: Graph, order: int) -> None:
        """Note that a replay begins; `graph.replays` already counts it."""
        self.replays.append((graph.serial, graph.replays, time.time(), order))
