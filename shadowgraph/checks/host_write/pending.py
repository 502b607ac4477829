"""Copies from pinned memory that were queued and have not been seen to arrive. The caller holds the debugger's lock."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from shadowgraph.checks.base import Checkpoint
from shadowgraph.checks.host_write.comparing import Format
from shadowgraph.engines.base import Fetching
from shadowgraph.model.graphs import Graph
from shadowgraph.model.host_copies import HostCopy, HostWrite, QueuedCopy, bytes_at
from shadowgraph.model.ranges import ByteRange

MOST_WRITES = 4  # that are kept for one copy


class SeenWrite(NamedTuple):
    """An operator that wrote the source.

    Attributes
    ----------
    after
        Bytes of the source after it.
    in_flight
        Whether the copy had certainly not run yet when it began; False where that is not known.
    """

    write: HostWrite
    after: tuple[bytes, ...]
    in_flight: bool


@dataclass(slots=True, eq=False)
class Pending:
    """A copy in flight.

    Attributes
    ----------
    of
        The copy of host code, or the node of a graph.
    graph, replay
        The replay that has queued it, or for which it prepares, where that is known.
    readers
        Graphs that read the target, as long as it is not known which of them replays first.
    source, target
        The memory on both sides.
    hold
        A reference that keeps the source in place during a read; None if it is gone.
    arrived
        Bytes of the target behind the copy, by place in `pieces`.
    beginning
        Writes that have begun and not ended, with whether the copy had certainly not run yet.
    """

    of: QueuedCopy | HostCopy
    checkpoint: Checkpoint
    graph: Graph | None
    replay: int | None
    source: ByteRange
    target: ByteRange
    pieces: tuple[ByteRange, ...]
    before: tuple[bytes, ...]
    form: Format
    hold: Callable[[], object | None]
    readers: tuple[Graph, ...] = ()
    queued: Fetching | None = None
    arrived: dict[int, bytes] = field(default_factory=dict)
    writes: list[SeenWrite] = field(default_factory=list)
    beginning: dict[int, bool] = field(default_factory=dict)  # by the write's id

    @property
    def captured(self) -> bool:
        """Whether it is a node of a graph."""
        return isinstance(self.of, HostCopy)

    def replay_begins(self, graph: Graph, replay: int | None) -> None:
        """A graph replays: the first one that reads the target is what the copy prepares."""
        if graph in self.readers:
            self.graph, self.replay, self.readers = graph, replay, ()

    def parts(self) -> list[tuple[object, ByteRange]]:
        """The bytes of the target to read behind it, each under a key."""
        if self.form.converts:
            return [(Piece(self, 0), self.target)]  # all of it is one piece
        return [(Piece(self, place), piece.shift(self.target.start)) for place, piece in enumerate(self.pieces)]

    def now(self) -> tuple[bytes, ...] | None:
        """The bytes of the source; None where it is gone."""
        held = self.hold()
        return bytes_at(self.source.start, self.pieces) if held is not None else None

    def hit_by(self, ranges: Sequence[ByteRange]) -> bool:
        """Whether a range has a byte of the source."""
        return any(where.overlaps(self.source) for where in ranges)

    def write_begins(self, write: HostWrite) -> None:
        """An operator is about to write the source."""
        if len(self.writes) < MOST_WRITES:
            self.beginning[id(write)] = self.queued is not None and not self.queued.passed()

    def write_ran(self, write: HostWrite) -> None:
        """It has."""
        in_flight = self.beginning.pop(id(write), None)
        after = self.now() if in_flight is not None else None
        if in_flight is not None and after is not None:
            self.writes.append(SeenWrite(write, after, in_flight))


@dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """The key of bytes that are read behind a copy."""

    pending: Pending
    place: int
