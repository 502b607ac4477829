"""Eager writes that may prepare a replay, in order, and which of them each byte shows.

Used by `LostPreparations`, under the debugger's lock; `Preparations.host_read` without it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain
from math import inf
from typing import NamedTuple

from shadowgraph.model.launches import Access
from shadowgraph.model.ranges import ByteRange, RangeSet
from shadowgraph.tracking.writes import Write

NOTHING = 0  # in the place of a graph's serial: declared to prepare no replay
_KEPT = 256  # writes of bytes that a graph reads
_OTHERS = 128  # of other memory, which a graph that is captured or met later may read
_PIECES = 64  # ranges of one write that are followed
_RUNS = 2048
_HIDDEN = 6  # writes under another that no replay has read


@dataclass(slots=True, eq=False)
class Copy:
    """Bytes that a write prepared, copied before another launch overwrote them; `data` is None until they arrive."""

    where: ByteRange
    data: bytes | None = None


@dataclass(slots=True, eq=False)
class Prepared:
    """An eager write.

    Attributes
    ----------
    order
        When it ran, by `Context.clock`.
    meant, replay
        The graph that it was declared to prepare, by its serial, or `NOTHING`, and the number of its coming replay;
        else None.
    sure, constant
        Whether it wrote every byte of its ranges; whether it wrote one value everywhere.
    readers
        Serials of the graphs that read some of its bytes.
    consumers
        Serials of the graphs that have replayed with bytes of it, in order.
    seen
        Whether host code is known to have read it.
    copies
        Its bytes.
    """

    order: int
    write: Write
    meant: int | None
    replay: int | None
    sure: bool
    constant: bool
    readers: frozenset[int] = frozenset()
    consumers: list[int] = field(default_factory=list)
    seen: bool = False
    copies: list[Copy] = field(default_factory=list)

    @property
    def ranges(self) -> RangeSet:
        """The bytes that it wrote, or may have written."""
        return self.write.ranges

    @property
    def settled(self) -> bool:
        """Whether a replay that it may have been for has read it."""
        return bool(self.consumers) and (self.meant is None or self.meant in self.consumers)

    def read_by_others(self, serial: int) -> bool:
        """Whether a replay of another graph has found bytes of it."""
        return any(consumer != serial for consumer in self.consumers)

    def reads(self, where: RangeSet) -> bool:
        """Whether it made its values from these bytes, as far as its signature tells."""
        pointers = self.write.launch.pointers
        return any(where.overlaps(p.view.hull) for p in pointers if p.access in (Access.READ, Access.READ_WRITE))

    def may_read(self, where: RangeSet) -> bool:
        """Whether it may have read these bytes."""
        return any(where.overlaps(p.view.hull) for p in self.write.launch.pointers if p.may_read)

    def differs(self, other: Prepared) -> bool:
        """Whether its values are not known to be those of another write of the same bytes."""
        mine, its = ([(copy.where, copy.data) for copy in each.copies] for each in (self, other))
        return not mine or mine != its


class Run(NamedTuple):
    """Bytes that show one write, and the writes under it, the latest first: of those that a replay has read at most
    one."""

    start: int
    stop: int
    entry: Prepared
    below: tuple[Prepared, ...]


@dataclass(slots=True, eq=False)
class Layer:
    """The bytes that a graph finds of one write."""

    entry: Prepared
    runs: list[Run]
    since: int

    @property
    def is_plain(self) -> bool:
        """Whether all that these bytes hide was read by the replays that it was for, as is usual."""
        return all(each.settled or each.order <= self.since for run in self.runs for each in run.below)

    @property
    def before(self) -> Prepared | None:
        """The latest write under these bytes that a replay has read since the graph's last one."""
        found = (each for run in self.runs for each in run.below if each.consumers and each.order > self.since)
        return max(found, key=lambda each: each.order, default=None)

    @property
    def hides(self) -> list[tuple[Prepared, RangeSet]]:
        """The writes since the graph's last replay that these bytes hide, the latest first."""
        found: dict[int, tuple[Prepared, list[ByteRange]]] = {}
        for run in self.runs:
            for entry in run.below:
                if entry.order > self.since:
                    found.setdefault(entry.order, (entry, []))[1].append(ByteRange(run.start, run.stop))
        return [(entry, RangeSet.of(parts)) for _, (entry, parts) in sorted(found.items(), reverse=True)]


class Preparations:
    """Eager writes in order, bounded, and the latest one of each byte that a graph reads."""

    def __init__(self) -> None:
        self._kept: deque[Prepared] = deque(maxlen=_KEPT)
        self._others: deque[Prepared] = deque(maxlen=_OTHERS)
        self._runs: list[Run] = []  # by address, disjoint; parallel to the ends
        self._stops: list[int] = []

    def __bool__(self) -> bool:
        return bool(self._runs)

    def add(self, entry: Prepared, early: bool) -> None:
        """Add a write.

        Parameters
        ----------
        early
            Whether it prepares a graph that is not met yet, as on a device before its first replay.
        """
        (self._kept if entry.readers else self._others).append(entry)
        if entry.readers or early:
            self._show(entry)

    def clear(self) -> None:
        """Forget all: there were unseen writes."""
        self._kept.clear()
        self._others.clear()
        self._runs, self._stops = [], []

    def met(self, serial: int, live: RangeSet) -> None:
        """A graph is met: it reads some of the writes so far."""
        for entry in chain(self._others, self._kept):
            if any(live.overlaps(part) for part in entry.ranges):
                entry.readers |= {serial}
        late = [entry for entry in self._others if entry.readers]
        if late:
            self._kept = deque(sorted((*self._kept, *late), key=lambda each: each.order), maxlen=_KEPT)
            self._others = deque((each for each in self._others if not each.readers), maxlen=_OTHERS)
            self._runs, self._stops = [], []
            for entry in self._kept:
                self._show(entry)

    def layers(self, serial: int, live: RangeSet, since: int, until: float = inf) -> list[Layer]:
        """What a graph finds of writes between two points in time. Called at each observed replay."""
        found: dict[int, Layer] = {}
        for run in self._runs:
            entry = run.entry
            if since < entry.order <= until and serial in entry.readers and live.overlaps(ByteRange(*run[:2])):
                layer = found.get(entry.order)
                if layer is None:
                    found[entry.order] = Layer(entry, [run], since)
                else:
                    layer.runs.append(run)
        return list(found.values())

    def shown(self, where: ByteRange) -> list[Run]:
        """The runs that share a byte with a range."""
        return self._runs[bisect_right(self._stops, where.start) : self._end(where.stop)]

    def kept(self, order: int) -> list[Prepared]:
        """Writes of bytes that graphs read, later than a point in time, in order."""
        return [entry for entry in self._kept if entry.order > order]

    def between(self, first: int, last: int) -> Iterator[Prepared]:
        """All known writes after one point in time, up to and with another."""
        return (entry for entry in (*self._others, *self._kept) if first < entry.order <= last)

    def host_read(self, where: ByteRange) -> None:
        """Host code reads some bytes. Any thread, without a lock: at worst a mark is missed."""
        for run in list(self._runs):
            if run.start < where.stop and where.start < run.stop:
                run.entry.seen = True

    # -- runs -------------------------------------------------------------------------------------------------

    def _end(self, stop: int) -> int:
        """The number of runs that start before an address."""
        return bisect_left(self._runs, stop, key=lambda run: run.start)

    def _show(self, entry: Prepared) -> None:
        parts = list(entry.ranges)
        if len(self._runs) > _RUNS:
            self._runs, self._stops = [], []
            return
        if len(parts) > _PIECES:  # what these bytes show is not followed
            self._splice(ByteRange(parts[0].start, parts[-1].stop), [])
            return
        for part in parts:
            first, last = bisect_right(self._stops, part.start), self._end(part.stop)
            old = self._runs[first:last]
            if len(old) == 1 and old[0].start == part.start and old[0].stop == part.stop:
                self._runs[first] = Run(part.start, part.stop, entry, _below(old[0]))
            else:
                self._splice(part, _laid(entry, part, old))

    def _splice(self, part: ByteRange, runs: list[Run]) -> None:
        """Put runs in the place of a part."""
        first, last = bisect_right(self._stops, part.start), self._end(part.stop)
        old = self._runs[first:last]
        if old and old[0].start < part.start:
            runs = [old[0]._replace(stop=part.start), *runs]
        if old and old[-1].stop > part.stop:
            runs = [*runs, old[-1]._replace(start=part.stop)]
        self._runs[first:last] = runs
        self._stops[first:last] = [run.stop for run in runs]


def _laid(entry: Prepared, part: ByteRange, old: list[Run]) -> list[Run]:
    """The runs of a part that was just written, over those that had bytes of it."""
    below = [_below(run) for run in old]
    if all(len(each) == 1 and each[0].settled for each in below):  # as usual; pieces are no longer told apart
        latest = max((each[0] for each in below), key=lambda each: each.order, default=None)
        return [Run(part.start, part.stop, entry, (latest,) if latest is not None else ())]
    found, at = list[Run](), part.start
    for run, under in zip(old, below, strict=True):
        if at < run.start:
            found.append(Run(at, run.start, entry, ()))
        at = min(run.stop, part.stop)
        found.append(Run(max(run.start, part.start), at, entry, under))
    if at < part.stop:
        found.append(Run(at, part.stop, entry, ()))
    return found


def _below(run: Run) -> tuple[Prepared, ...]:
    """What lies under a write over a run: of the writes that a replay has read the latest."""
    if run.entry.settled and all(each.settled for each in run.below):
        return (run.entry,)
    found, settled = list[Prepared](), False
    for entry in (run.entry, *run.below):
        if not entry.settled:
            found.append(entry)
        elif not settled:
            settled = True
            found.append(entry)
    return tuple(found[:_HIDDEN])
