"""In which order graphs were replayed, and eager code wrote memory of pools: whose values the bytes of a tenant hold.

Used by the check, under the debugger's lock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from shadowgraph.checks.pool_clobber.accesses import Change
from shadowgraph.checks.pool_clobber.tenants import Tenant
from shadowgraph.model.graphs import Graph
from shadowgraph.model.launches import Launch
from shadowgraph.model.ranges import RangeSet

_WRITES = 256  # eager writes to pool memory that are kept


class Replayed(NamedTuple):
    """The latest replay of a graph, with its time by the debugger's clock."""

    graph: Graph
    order: int
    replay: int


class Written(NamedTuple):
    """An eager write, with its time by the debugger's clock.

    Attributes
    ----------
    tenant
        Whose memory it was for; None where that is not known, and may be any tenant's.
    sure
        Whether it is known to have written all these bytes.
    """

    order: int
    launch: Launch
    parts: RangeSet
    tenant: Tenant | None = None
    sure: bool = False


@dataclass(slots=True)
class Clobber:
    """A write that stands in the place of a tenant's own values.

    Attributes
    ----------
    by
        The tenant that was written.
    write, replayed
        The node that wrote it, with its replay, or the eager launch.
    parts
        The bytes that were read.
    made
        The write before it that gave them the tenant's own values, with its replay, if it was a node's.
    """

    by: Tenant
    write: Change | Written
    replayed: Replayed | None
    parts: RangeSet
    made: tuple[Change, Replayed] | Written | None = None

    @property
    def order(self) -> int:
        """When the replay began, or the launch ran, by the debugger's clock."""
        return self.write.order if isinstance(self.write, Written) else self.replayed.order if self.replayed else 0


class History:
    """The latest replay of each graph, in order, and recent eager writes.

    Attributes
    ----------
    floor
        Eager writes before it may be missing.
    """

    def __init__(self) -> None:
        self._replays: dict[int, Replayed] = {}  # the latest one last
        self._writes: deque[Written] = deque()
        self._before: Mapping[int, int] = {}  # replays, by graph, that ran before what is known
        self.floor = 0

    def begins(self, graph: Graph, order: int) -> Replayed | None:
        """A replay begins; returns the graph's replay before, if it is known."""
        before = self._replays.pop(graph.serial, None)
        self._replays[graph.serial] = Replayed(graph, order, graph.replays)
        return before

    def wrote(self, written: Written) -> None:
        """Eager code wrote memory of a pool, or is about to."""
        self._writes.append(written)
        if len(self._writes) > _WRITES:
            self.floor = self._writes.popleft().order

    def is_known(self, launch: Launch, parts: RangeSet) -> bool:
        """Whether the latest write is that of a launch which was known before it ran."""
        latest = self._writes[-1] if self._writes else None
        return (
            latest is not None
            and latest.tenant is not None
            and (latest.launch.name, latest.parts)
            == (
                launch.name,
                parts,
            )
        )

    def forget(self, replays: Mapping[int, int]) -> None:
        """Replays and writes passed unseen; `replays` says how many there were of each graph by then."""
        self._replays.clear()
        self._writes.clear()
        self._before = dict(replays)

    def drop(self, serial: int) -> None:
        """A graph is gone: what it wrote is not known any more."""
        last = self._replays.pop(serial, None)
        if last is not None:
            self.floor = max(self.floor, last.order)

    def knows(self, graph: Graph, coming: bool) -> bool:
        """Whether all replays of a graph since the beginning of what is known were seen, but for one that begins."""
        last = self._replays.get(graph.serial)
        seen = last.replay if last is not None else self._before.get(graph.serial, 0)
        return graph.replays - coming <= seen

    def before(self, replayed: Replayed, previous: Replayed | None) -> list[Replayed]:
        """The replays as they were before one, the latest first."""
        known = [each for each in self._replays.values() if each.graph.serial != replayed.graph.serial]
        return sorted((*known, *filter(None, (previous,))), key=lambda each: each.order, reverse=True)

    def latest(self) -> Iterator[Replayed]:
        """The latest replay of each graph, the latest one first."""
        return reversed(self._replays.values())

    def written(self, since: int, until: float) -> Iterator[Written]:
        """Eager writes between two times, the latest first."""
        for written in reversed(self._writes):
            if written.order < since:
                return
            if written.order < until:
                yield written


class Search:
    """The search, from the latest write back, for the values that bytes of a tenant hold.

    Attributes
    ----------
    found
        The last write of another tenant to bytes that the tenant has not written since.
    """

    def __init__(self, tenant: Tenant, parts: RangeSet) -> None:
        self._tenant, self._left = tenant, parts.copy()
        self.found: Clobber | None = None

    @property
    def over(self) -> bool:
        """Whether all is known."""
        return self.found.made is not None if self.found is not None else not self._left

    def take_changes(self, changes: Iterable[Change], replayed: Replayed) -> None:
        """Go back over a replay, or over its beginning."""
        for change in changes:
            if self.over:
                return
            if change.by is None:
                self._own(change.parts, (change, replayed))
            else:
                self._others(change.by, change, replayed)

    def take_writes(self, writes: Iterable[Written]) -> None:
        """Go back over eager writes. Where it is not known for whom they were, they count as the tenant's own."""
        for written in writes:
            if self.over:
                return
            if written.tenant is None or written.tenant is self._tenant:
                self._own(written.parts, written)
            else:
                self._others(written.tenant, written, None)

    def _own(self, parts: RangeSet, made: tuple[Change, Replayed] | Written) -> None:
        if self.found is not None:
            if any(self.found.parts.overlaps(part) for part in parts):
                self.found.made = made
            return
        for part in parts:
            self._left.discard(part)

    def _others(self, by: Tenant, write: Change | Written, replayed: Replayed | None) -> None:
        if self.found is None:
            hit = RangeSet.of(piece for part in write.parts for piece in self._left.intersection(part))
            if hit:
                self.found = Clobber(by, write, replayed, hit)
