"""Broken guards as the findings show them: where they stand, how far they are damaged, which launches may have done it.

Used by `OverrunChain` and the rules that it asks, under the debugger's lock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise

from shadowgraph.checks.base import Checkpoint, Detection
from shadowgraph.model.buffers import Buffer, Ledger
from shadowgraph.model.device_nodes import NodeKind
from shadowgraph.model.findings import Culprit, Finding, Status
from shadowgraph.model.guards import Side, guards_of
from shadowgraph.model.launches import LaunchKind
from shadowgraph.model.ranges import ByteRange, RangeSet
from shadowgraph.monitor.finding_store import FindingStore

VALUE = 16  # bytes: the part of a stored value that equals the canary does not show
_DATES = 256  # boundaries kept of a guard
OPEN = frozenset(
    map(str, (LaunchKind.CALLABLE, NodeKind.HOST, NodeKind.CONDITIONAL, NodeKind.CHILD, NodeKind.OTHER))
)  # may hold unknown pointers

Who = tuple[str | None, str | None, int | None, str | None]
Date = tuple[str, int, int, int]
Place = tuple[int, Side]


@dataclass(slots=True, eq=False)
class BrokenGuard:
    """The broken guard of a finding, or the damaged memory next to a buffer without one.

    Attributes
    ----------
    given
        Serials of the buffers into which each culprit was given a pointer.
    suspected
        Whether a launch that was given the buffer may have broken it.
    dates
        Boundaries at which the damage was seen, with the order of each; those at which only the far part was due to be
        read are left out: the damage may be older.
    late
        Order of the last boundary at which the far part alone was read; 0 for none.
    stores
        What culprits whose stores are known wrote outside the memory that they were given.
    passed
        Buffers that the overrun from here went over or came close to, by serial.
    changed
        Bytes of other buffers that consequences show, by serial.
    state
        Revision of the finding, and number of pointers and dates, when it was last examined.
    origin
        Id of the finding that this one continues.
    perhaps
        Id of the finding that this one may continue: a launch that was given its buffer may have broken it as well.
    """

    id: int
    buffer: Buffer
    side: Side
    given: dict[Who, set[int]] = field(default_factory=dict)
    suspected: bool = False
    dates: dict[Date, int] = field(default_factory=dict)
    late: int = 0
    stores: RangeSet = field(default_factory=RangeSet)
    passed: dict[int, Buffer] = field(default_factory=dict)
    changed: dict[int, ByteRange] = field(default_factory=dict)
    state: tuple[int, int, int] = (0, 0, 0)
    origin: int | None = None
    perhaps: int | None = None

    @property
    def place(self) -> Place:
        return self.buffer.serial, self.side

    @property
    def edge(self) -> int:
        """The address where an overrun of the buffer begins."""
        return self.buffer.stop if self.side is Side.AFTER else self.buffer.start

    def seen_at(self, checkpoint: Checkpoint, late: bool) -> None:
        """Note a sighting."""
        if late:
            self.late = max(self.late, checkpoint.order)
            return
        self.dates[date_of(checkpoint)] = checkpoint.order
        if len(self.dates) > _DATES:
            del self.dates[next(iter(self.dates))]


class BrokenGuards:
    """All broken guards that findings show, by finding and by place.

    Attributes
    ----------
    book
        The findings, which say how far each guard is damaged.
    stays
        Whether the bytes of a guard are as its damage left them, since it was not re-armed: the same bytes written once
        more cannot be seen.
    """

    def __init__(
        self, book: FindingStore, ledger: Ledger, stays: Callable[[Buffer, Side], bool] = lambda *_: False
    ) -> None:
        self.book, self.ledger, self.stays = book, ledger, stays
        self._by_id: dict[int, BrokenGuard] = {}
        self._by_place: dict[Place, list[BrokenGuard]] = {}

    def enter(self, id: int, buffer: Buffer, side: Side) -> BrokenGuard:
        """The broken guard of a finding, entered by its first sighting."""
        known = self._by_id.get(id)
        if known is None:
            known = self._by_id[id] = BrokenGuard(id, buffer, side)
            self._by_place.setdefault(known.place, []).append(known)
        return known

    def get(self, id: int) -> BrokenGuard | None:
        return self._by_id.get(id)

    def __iter__(self) -> Iterator[BrokenGuard]:
        return iter(self._by_id.values())

    def at(self, place: Place) -> list[BrokenGuard]:
        """The findings about one guard: one for each cause."""
        return self._by_place.get(place, [])

    def finding(self, known: BrokenGuard) -> Finding | None:
        return self.book.get(known.id)

    def damage(self, known: BrokenGuard) -> ByteRange | None:
        """The extreme changed bytes of a finding, as addresses."""
        finding = self.book.get(known.id)
        if finding is None or finding.bytes is None:
            return None
        start = known.buffer.start
        return ByteRange(start + finding.bytes.first, start + finding.bytes.last + 1)

    def is_broken(self, buffer: Buffer, side: Side, down: bool, up: bool) -> bool:
        """Whether a guard is damaged as far as its lower end (`down`) and its upper end (`up`), or to within the gaps
        that a strided write leaves. A missing guard counts as damaged."""
        whole = guard_at(buffer, side)
        if whole is None:
            return True
        known = self.at((buffer.serial, side))
        parts = [(part, self._gap(each)) for each in known if (part := self.damage(each)) is not None]
        low = any(part.start < whole.start + gap for part, gap in parts)
        high = any(part.stop > whole.stop - gap for part, gap in parts)
        return bool(parts) and (low or not down) and (high or not up)

    def _gap(self, known: BrokenGuard) -> int:
        """The most bytes that a write may have left out at an end of a guard: as many as between its own ranges."""
        finding = self.finding(known)
        ranges = finding.bytes.ranges if finding is not None and finding.bytes is not None else ()
        return max((after[0] - before[1] for before, after in pairwise(ranges)), default=0) + VALUE

    def neighbour(self, buffer: Buffer, up: bool) -> Buffer | None:
        """The next live buffer by address."""
        previous, following = self.ledger.neighbours(buffer)
        return following if up else previous

    def confirmed(self, known: BrokenGuard) -> list[Culprit]:
        """The confirmed culprits of a finding."""
        finding = self.finding(known)
        return confirmed_of(finding) if finding is not None else []


def guard_at(buffer: Buffer, side: Side) -> ByteRange | None:
    """The addresses of a guard; None where there is none."""
    return next((guard.whole for guard in guards_of(buffer, 1) if guard.side is side), None)


def confirmed_of(finding: Finding) -> list[Culprit]:
    """The confirmed culprits of a finding."""
    return [one for one in (finding.culprit, *finding.candidates) if one.status is Status.CONFIRMED]


def is_late(draft: Detection) -> bool:
    """Whether only the far part of a guard was read: what it shows may be old."""
    return draft.confidence == "low"


def date_of(checkpoint: Checkpoint) -> Date:
    """A boundary, the same for all evidence about it: check nodes report each guard by itself."""
    graph = checkpoint.graph.serial if checkpoint.graph is not None else 0
    by_number = graph and checkpoint.replay is not None and checkpoint.step is None
    replay = checkpoint.replay if checkpoint.replay is not None else 0
    return checkpoint.at, graph, replay, 0 if by_number else checkpoint.order


def who_of(culprit: Culprit, finding: Finding) -> Who:
    """Identity of a culprit's launch across sightings."""
    return who(culprit.kind, culprit.name, culprit.node, finding.graph)


def who(kind: str | None, name: str | None, node: int | None, graph: str | None) -> Who:
    """Identity of a launch across sightings: a node of its graph, or an eager launch, whatever replay that prepared."""
    return kind, name, node, graph if node is not None else None


def serials_at(ledger: Ledger, pointers: Iterable[ByteRange]) -> set[int]:
    """Serials of the buffers that pointers lead into."""
    return {b.serial for where in pointers for b in ledger.overlapping(where.start, max(where.stop, where.start + 1))}
