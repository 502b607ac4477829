"""What `InGraphMutation` knows of each buffer, and the keys of the ranges that it has compared; under its locks."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from shadowgraph.checks.base import Detection
from shadowgraph.model.buffers import Buffer
from shadowgraph.model.ranges import ByteRange, RangeSet


@dataclass(frozen=True, slots=True)
class Protected:
    """Key of a declared range."""

    buffer: Buffer
    where: ByteRange


@dataclass(frozen=True, slots=True)
class Candidate:
    """Key of a buffer that may prove to be host-owned."""

    buffer: Buffer


@dataclass(slots=True)
class Dirty:
    """Bytes that a replay changed and that neither the host nor a later replay has rewritten.

    Attributes
    ----------
    lasting
        Kept when observation begins, as the change is the reason for it.
    unsure
        The host may have written the same values since, unseen. A read is no error then, until the graph has
        overwritten the bytes once more.
    """

    draft: Detection
    ranges: RangeSet
    counter: bool
    lasting: bool = False
    unsure: bool = False


@dataclass(slots=True)
class Story:
    """The history of one buffer; ends with its free, so that the next allocation at the address inherits nothing.

    Attributes
    ----------
    host_made
        Whether the host wrote more than a constant into the buffer; None before the first look.
    rewrites
        Bytes that the host has written since the buffer was found to be constant.
    openings
        How often `rewrites` started anew.
    graph_made
        Bytes changed by a graph and not rewritten by the host since.
    clean_reads
        Bytes that the host read while they held its own values.
    dirty
        Changes by replays, the latest last; no byte is in two of them.
    replayed
        Serial of the graph whose writes are all in `graph_made`; 0 after any other write.
    read
        Reads by the host, since the last replay, of its own bytes that a replay had changed.
    changed
        Whether a replay was seen to change it.
    first
        That replay's change, where it was the first one and passed unobserved; while no write by the host came after it
        that was seen, up to the end of the observation that began with it.
    opens
        Whether that observation has yet to begin.
    """

    buffer: Buffer
    host_made: bool | None = None
    rewrites: RangeSet = field(default_factory=RangeSet)
    openings: int = 0
    graph_made: RangeSet = field(default_factory=RangeSet)
    clean_reads: RangeSet = field(default_factory=RangeSet)
    dirty: list[Dirty] = field(default_factory=list)
    replayed: int = 0
    read: list[tuple[Detection, RangeSet]] = field(default_factory=list)
    changed: bool = False
    first: Detection | None = None
    opens: bool = False

    @property
    def planned_from(self) -> bool:
        """Whether the host has read its own values in the buffer, and no replay was seen to change it."""
        return bool(self.host_made and self.clean_reads) and not self.changed and self.buffer.alive

    def dates(self, draft: Detection) -> bool:
        """Whether the first change on record is by the same graph, and of bytes that a detection is about."""
        first = self.first
        if first is None or first.key != draft.key:
            return False
        changed = RangeSet.of(ByteRange(start, last + 1) for start, last in first.ranges)
        return changed.overlaps(ByteRange(draft.first, draft.last + 1))

    def invalidate_writers(self) -> None:
        """Writes by the host have passed unseen. A change that is the reason to observe stays on record, once."""
        self.graph_made = RangeSet.of([self.buffer.range])
        self.dirty = [replace(dirty, lasting=False, unsure=True) for dirty in self.dirty if dirty.lasting]
        self.first, self.opens = (self.first if self.opens else None), False

    def overwritten(self, graph: int) -> None:
        """An observed replay of a graph, by serial, overwrites what it has changed before, with whatever values."""
        if any(dirty.unsure for dirty in self.dirty):
            key = str(graph)
            self.dirty = [replace(d, unsure=False) if d.draft.key == key else d for d in self.dirty]

    def clean_dirt(self, part: ByteRange) -> None:
        """Forget the changes of replays in some bytes."""
        for dirty in self.dirty:
            dirty.ranges.discard(part)
        self.dirty = [dirty for dirty in self.dirty if dirty.ranges]

    def adopt(self) -> None:
        """The buffer proved host-made late: graphs' writes to the bytes that the host did not rewrite were not tracked
        until now."""
        self.host_made = True
        for part in RangeSet.of([self.buffer.range]) - self.rewrites:
            self.graph_made.add(part)
            self.clean_reads.discard(part)
