"""What a check is, what it is told, and what it hands over."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypedDict, Unpack

from shadowgraph.common.settings import Settings
from shadowgraph.engines.base import Engine, Evidence
from shadowgraph.model.buffers import Buffer, Ledger
from shadowgraph.model.findings import Culprit, Reader, RowOverrun, Severity
from shadowgraph.model.graphs import Graph
from shadowgraph.model.guards import Side
from shadowgraph.model.launches import Launch
from shadowgraph.model.phases import Phase
from shadowgraph.model.ranges import ByteRange
from shadowgraph.model.stacks import Stack
from shadowgraph.model.views import TensorView
from shadowgraph.tracking.aliases import NameBook
from shadowgraph.tracking.allocator import HostAllocator
from shadowgraph.tracking.writes import Write, WriteLog


@dataclass(frozen=True, slots=True)
class Step:
    """A check beside a launch, while host code is checked launch by launch.

    Attributes
    ----------
    launch
        The launch that comes next or that just ran; None at a boundary where no launch was seen.
    ran
        Whether it ran since the check before; else nothing that we saw ran.
    sure
        Whether it is known that nothing else was launched since the check before.
    done
        Replays begun by then, by the serials of graphs.
    """

    launch: Launch | None
    ran: bool
    sure: bool
    done: Mapping[int, int] = field(default_factory=dict, repr=False)


@dataclass(slots=True, eq=False)
class Checkpoint:
    """Where a check runs; travels with the check as its tag and is never changed (not frozen: that costs each replay).

    Attributes
    ----------
    at
        ``replay_begin``, ``replay_end``, ``prepare_end``, ``capture_begin``, ``launch``, ``host_read``, ``check``,
        ``nap``: after replays that passed unseen, the last of which it names; ...
    phase
        The phase that just ended, when it is certain; None where it depends on what was written.
    graph, replay
        The graph and its replay that the phase belongs to.
    writes
        Launches since the checkpoint before, from which damage gets its culprit.
    order
        When it was, among checkpoints and host writes: evidence may arrive after later ones.
    step
        Where launches are checked one by one: which one this is about.
    """

    at: str
    phase: Phase | None = None
    graph: Graph | None = None
    replay: int | None = None
    writes: WriteLog = field(default_factory=WriteLog, repr=False)
    order: int = 0
    step: Step | None = None


@dataclass(frozen=True, slots=True)
class Ended:
    """For SG104: how a graph uses a buffer that is gone, and who has its bytes.

    Attributes
    ----------
    live_in
        Whether the graph reads the bytes before it writes them.
    written
        Whether the graph writes them at all.
    moved
        Whether the storage lives on at another address or of another size.
    victims
        Live buffers that have bytes that the graph was given.
    """

    live_in: bool
    written: bool
    moved: bool
    victims: tuple[Buffer, ...] = ()


@dataclass(frozen=True, slots=True)
class Stale:
    """For SG103: rows that a graph reads and what became of them.

    Attributes
    ----------
    count
        Rows that the graph reads.
    fresh
        Those that were refreshed for the coming replay.
    rows
        First and last of each stretch of stale ones, and name and number of the replay that they were written for.
    witnesses
        Inputs that were refreshed in the stale rows.
    """

    count: int
    fresh: tuple[int, ...]
    rows: tuple[tuple[int, int, str | None, int | None], ...]
    witnesses: tuple[tuple[Buffer, TensorView], ...]


@dataclass(frozen=True, slots=True)
class Rebound:
    """For SG108: what host code refreshes in place of the memory that a graph reads.

    Attributes
    ----------
    attribute, owner
        What led to the graph's memory at the capture, and the class of the object that it is one of.
    now
        What it leads to by now, where that is other memory.
    where, buffer
        Memory that holds what the graph should read, and its buffer if it is tracked; None where nobody knows any.
    planned
        Whether a plan says what the graph should read, or the memory that the attribute leads to now.
    """

    attribute: str
    owner: str
    now: TensorView | None
    where: ByteRange | None
    buffer: Buffer | None
    planned: bool


class _Facts(TypedDict, total=False):
    side: Side | None
    truncated: bool
    culprits: tuple[Write, ...]
    phase: Phase | None
    graph: Graph | None
    replay: int | None
    rows: tuple[RowOverrun, ...]
    confidence: str
    key: str


@dataclass(frozen=True, slots=True)
class Detection:
    """A finding before it has names: facts as a check sees them.

    Attributes
    ----------
    first, last, count, ranges
        Absolute addresses, inclusive; ranges up to 16.
    culprits
        Writes that did it or could have, the last one first in line.
    rule
        For SG109: the rule that failed and the values that show it.
    view
        The part of the buffer that the finding is about, when that is not the whole; bytes count from its start.
    key
        What makes two drafts of one kind, buffer and side the same cause.
    located
        Nodes that a look after every node showed to have done it, the culprit first; they come before `culprits`.
    inferred
        It follows from what the host reads alone: counted, and listed on request.
    ended
        For SG104; then `first` and `last` are the bytes that the graph was given, none of which need have changed.
    """

    code: str
    checkpoint: Checkpoint
    buffer: Buffer
    first: int
    last: int
    count: int
    ranges: tuple[tuple[int, int], ...]
    ranges_total: int = 1
    side: Side | None = None
    truncated: bool = False
    window: int | None = None
    expected: bytes = b""
    found: bytes = b""
    culprits: tuple[Write, ...] = ()
    phase: Phase | None = None
    graph: Graph | None = None
    replay: int | None = None
    reader: Reader | None = None
    rows: tuple[RowOverrun, ...] = ()
    rule: str | None = None
    severity: Severity = Severity.ERROR
    confidence: str = "high"
    view: TensorView | None = None
    key: str = ""
    located: tuple[Culprit, ...] = ()
    inferred: bool = False
    ended: Ended | None = None
    stale: Stale | None = None
    rebound: Rebound | None = None

    @classmethod
    def of(
        cls, code: str, checkpoint: Checkpoint, buffer: Buffer, evidence: Evidence[object], **facts: Unpack[_Facts]
    ) -> Detection:
        """A draft about the bytes of a piece of evidence."""
        return cls(
            code=code,
            checkpoint=checkpoint,
            buffer=buffer,
            first=evidence.first,
            last=evidence.last,
            count=evidence.count,
            ranges=evidence.ranges,
            ranges_total=evidence.ranges_total,
            window=evidence.window,
            expected=evidence.expected,
            found=evidence.found,
            **facts,
        )


@dataclass(slots=True)
class Context:
    """What checks share. Owned by the debugger.

    Attributes
    ----------
    graphs
        Live captured graphs by serial.
    writes
        Writes since the last checkpoint.
    clock
        Numbers checkpoints and host writes.
    report
        Hands a draft over.
    """

    settings: Settings
    allocator: HostAllocator
    ledger: Ledger
    engine: Engine
    names: NameBook
    report: Callable[[Detection], None]
    graphs: dict[int, Graph] = field(default_factory=dict)
    writes: WriteLog = field(default_factory=WriteLog)
    clock: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def replays(self) -> dict[int, int]:
        """Replays begun so far, by the serials of the graphs captured so far."""
        return {serial: graph.replays for serial, graph in list(self.graphs.items())}

    def graphs_on(self, where: ByteRange) -> list[Graph]:
        """Captured graphs that were given a view of the range."""
        return [graph for graph in self.graphs.values() if graph.touches(where)]


class Check:
    """One kind of finding. Every hook does nothing unless a check needs it."""

    def __init__(self, context: Context) -> None:
        self.context = context

    @property
    def wants_known_writes(self) -> bool:
        """Whether `written` does anything now with what a node's signature says that it writes, in each replay."""
        return True

    def captured(self, graph: Graph) -> None:
        """A graph was captured."""

    def reads_captured(self, graph: Graph) -> bool:
        """Whether `captured` will read memory: the device is waited for before, without the debugger's lock."""
        return False

    def parts(self, graph: Graph) -> Iterable[tuple[object, ByteRange]]:
        """Ranges to compare across the coming replay, each under a key of this check's own."""
        return ()

    def reads(self, graph: Graph) -> bool:
        """Whether `parts` will read memory now: the device is waited for before, without the debugger's lock."""
        return False

    def owns(self, key: object) -> bool:
        """Whether a key came from this check's `parts`."""
        return False

    def changed(self, evidence: Evidence[object], checkpoint: Checkpoint) -> None:
        """A part changed across a replay."""

    def replay_begins(self, checkpoint: Checkpoint) -> None:
        """The graph of the checkpoint is about to replay."""

    def fetched(self, key: object, data: bytes, checkpoint: Checkpoint) -> None:
        """Bytes that this check asked the engine for."""

    def checkpoint_ends(self, checkpoint: Checkpoint) -> None:
        """All evidence of a checkpoint has been handed out."""

    def host_read(self, view: TensorView, how: str, stack: Stack, checkpoint: Checkpoint) -> None:
        """The host is about to read a view."""

    def written(self, write: Write, phase: Phase | None, graph: Graph | None) -> None:
        """A launch wrote tracked memory (`graph` for a node of a replay)."""

    def recheck(self, checkpoint: Checkpoint) -> None:
        """Somebody asked for a check now."""
