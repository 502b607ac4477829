"""Base class of the checks, and the data that checks exchange: checkpoints, detections, shared context.

The monitor calls the hooks of `Check` in the thread of the event. It holds the debugger's lock for
`launch_begins`, `parts`, `replay_begins`, `replay_ends`, `pool_read`, `pool_written`, `changed`, `fetched`,
`checkpoint_ends`, `written` and those about host memory, and not for `host_read`, `operands_read`, `novel`, `recheck`
and `capture_ended`.
`captured` runs under the lock at the first replay, and without it at the end of a capture on the host.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, TypedDict, Unpack

from shadowgraph.common.settings import Settings
from shadowgraph.engines.base import RANGES, Engine, Evidence, NodePart
from shadowgraph.model.buffers import Buffer, Ledger
from shadowgraph.model.findings import Batch, Culprit, Reader, Severity
from shadowgraph.model.graphs import Graph
from shadowgraph.model.guards import Side
from shadowgraph.model.host_copies import HostWrite, QueuedCopy
from shadowgraph.model.launches import Launch, Pointer
from shadowgraph.model.phases import Phase
from shadowgraph.model.ranges import ByteRange
from shadowgraph.model.stacks import Stack
from shadowgraph.model.steps import StepFacts
from shadowgraph.model.views import TensorView
from shadowgraph.tracking.aliases import NameBook
from shadowgraph.tracking.allocator import HostAllocator
from shadowgraph.tracking.pool_watch import Sight
from shadowgraph.tracking.step_order import PieceReplay
from shadowgraph.tracking.writes import Write, WriteLog


@dataclass(frozen=True, slots=True)
class Step:
    """A check before or after one launch, while host code is checked launch by launch.

    Attributes
    ----------
    launch
        The launch that comes next or that just ran; None at a phase boundary where no launch was seen.
    ran
        Whether the launch ran since the check before; else no launch that was seen ran.
    sure
        Whether it is known that no other launch happened since the check before.
    done
        Replays begun by then, by graph serial.
    """

    launch: Launch | None
    ran: bool
    sure: bool
    done: Mapping[int, int] = field(default_factory=dict, repr=False)


@dataclass(slots=True, eq=False)
class Checkpoint:
    """The point at which a check runs; travels with the check as its tag and is never changed (not frozen: that costs
    time at each replay).

    Attributes
    ----------
    at
        ``replay_begin``, ``replay_end``, ``prepare_end``, ``capture_begin``, ``launch``, ``host_read``, ``check``, ...
    phase
        The phase that just ended, if it is certain; None where it depends on the bytes written.
    graph, replay
        The graph and the replay that the phase belongs to.
    writes
        Launches since the checkpoint before, among which the culprit of damage is looked up.
    order
        Position among checkpoints and host writes, by `Context.clock`; evidence may arrive after later checkpoints.
    step
        Where launches are checked one by one: the launch that the checkpoint belongs to.
    observed
        Whether host launches since the checkpoint before were observed.
    within
        The step, where the graph is a piece of one.
    pieces
        In phase `Phase.STEP` the piece with the last check before, and those after it that may have done damage. Then,
        and in phase `Phase.BETWEEN`, graph and replay are those that the check came before.
    bounds
        Where the program was at the checkpoint before and is at this one, where damage is seen at once: on the host.
    """

    at: str
    phase: Phase | None = None
    graph: Graph | None = None
    replay: int | None = None
    writes: WriteLog = field(default_factory=WriteLog, repr=False)
    order: int = 0
    step: Step | None = None
    observed: bool = True
    within: StepFacts | None = None
    pieces: tuple[PieceReplay, ...] = ()
    bounds: Stack = ()


class _Facts(TypedDict, total=False):
    side: Side | None
    truncated: bool
    culprits: tuple[Write, ...]
    phase: Phase | None
    graph: Graph | None
    replay: int | None
    confidence: str
    key: str
    facts: object


@dataclass(frozen=True, slots=True)
class PoolAccess:
    """A read of memory of a graph pool by eager code, or by the host; or a write by an eager operator.

    Attributes
    ----------
    how
        The operator, or the method of the tensor.
    sight
        When the tensor's storage was first seen, where it owns none of its memory; None where it does.
    storage
        The storage's first byte and size.
    """

    view: TensorView
    how: str
    sight: Sight | None
    storage: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Detection:
    """A finding before it has names: the facts as a check sees them.

    Attributes
    ----------
    first, last, count, ranges
        Absolute addresses, inclusive; ranges up to `RANGES`.
    culprits
        Writes that caused the damage or may have, the likeliest last.
    view
        The part of the buffer that the finding is about, when that is not the whole; bytes count from its start.
    key
        Equal for two detections of one kind, buffer and side that have the same cause.
    located
        Nodes that a probed replay showed to have changed the bytes, the culprit first; they take precedence over
        `culprits`.
    logged
        Launches of the launch log that may have caused the damage, the likeliest first, where no suspect was observed;
        of a step besides the nodes of its pieces.
    unnoted
        Kernels of the replayed graph that no noted launch made and that may have caused the damage, the likeliest
        first; likelier than `culprits`.
    inferred
        Follows from reads by the host alone: counted, and listed on request.
    facts
        What the kind knows beside these: its `Detail`, or what its `FindingKind.describe` makes one of.
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
    severity: Severity = Severity.ERROR
    confidence: str = "high"
    view: TensorView | None = None
    key: str = ""
    located: tuple[Culprit, ...] = ()
    logged: tuple[Culprit, ...] = ()
    unnoted: tuple[Culprit, ...] = ()
    inferred: bool = False
    facts: object | None = None

    @classmethod
    def of(
        cls, code: str, checkpoint: Checkpoint, buffer: Buffer, evidence: Evidence[object], **facts: Unpack[_Facts]
    ) -> Detection:
        """A detection about the bytes of a piece of evidence."""
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


class _Bytes(TypedDict):
    first: int
    last: int
    count: int
    ranges: tuple[tuple[int, int], ...]
    ranges_total: int


def bytes_in(parts: Iterable[ByteRange]) -> _Bytes:
    """The fields of a `Detection` about all bytes of some ranges: at least one, ascending, disjoint."""
    pairs = [(part.start, part.stop - 1) for part in parts]
    return {
        "first": pairs[0][0],
        "last": pairs[-1][1],
        "count": sum(last + 1 - first for first, last in pairs),
        "ranges": tuple(pairs[:RANGES]),
        "ranges_total": len(pairs),
    }


@dataclass(slots=True)
class Context:
    """The state that checks share. Owned by the monitor, which changes it under the debugger's lock.

    Attributes
    ----------
    graphs
        Live captured graphs by serial.
    writes
        Writes since the last checkpoint.
    clock
        Numbers checkpoints and host writes, in order.
    report
        Takes a detection; any thread, and in sync mode it may raise `FindingsError`.
    judged
        Called when all evidence that had arrived was dispatched and reported.
    batch_of
        The batch that a replay of a graph is, or was, prepared for, where an adapter knows it.
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
    judged: Callable[[], None] = lambda: None
    batch_of: Callable[[Graph, int], Batch | None] = lambda *_: None

    def replays(self) -> dict[int, int]:
        """Replays begun so far, by the serials of the graphs captured so far."""
        return {serial: graph.replays for serial, graph in list(self.graphs.items())}

    def graphs_on(self, where: ByteRange) -> list[Graph]:
        """Captured graphs that were given a view of the range."""
        return [graph for graph in self.graphs.values() if graph.touches(where)]


def reader_at(kind: str, name: str, stack: Stack, node: int | None = None) -> Reader:
    """A reader, with the innermost line of its stack."""
    frame = stack[0] if stack else None
    return Reader(kind, name, node, frame.file if frame else None, frame.line if frame else None)


def host_reader(how: str, stack: Stack) -> Reader:
    """Host code that reads a tensor."""
    return reader_at("host", how, stack)


def first_reader(graph: Graph, where: ByteRange) -> Reader | None:
    """The first node of a graph that reads a range."""
    for node in graph.readers(where):
        return reader_at("graph", node.launch.name, node.launch.stack, node.index)
    return None


class Check:
    """What looks for one kind of finding. Every hook does nothing unless a check needs it.

    Attributes
    ----------
    needs_every_write
        Whether it must see every write of the host: with any write missing its findings would be wrong.
    node_version
        Changes whenever `node_parts` would give others.
    """

    needs_every_write: ClassVar[bool] = False

    def __init__(self, context: Context) -> None:
        self.context = context
        self.node_version = 0

    @property
    def wants_known_writes(self) -> bool:
        """Whether `written` currently needs the writes that a node's signature tells, in each replay."""
        return True

    def capture_ended(self, graph: Graph) -> None:
        """A capture has just ended in this thread; its nodes may not be known before `captured`."""

    def captured(self, graph: Graph) -> None:
        """A graph was captured."""

    def reads_captured(self, graph: Graph) -> bool:
        """Whether `captured` will read memory: the monitor then waits for the device first, without the debugger's
        lock."""
        return False

    def parts(self, graph: Graph) -> Iterable[tuple[object, ByteRange]]:
        """Ranges to compare across the coming replay, each under a key that belongs to this check."""
        return ()

    def node_parts(self, graph: Graph) -> Iterable[NodePart]:
        """Ranges that the graph's own check nodes are to compare at every replay, observed or not. Reads no memory. In
        observed replays they are compared as `parts` alone, which must have them, too."""
        return ()

    def is_damage(self, key: object) -> bool | None:
        """Whether any change of a part is damage, which a reader of the check log is told; False where that depends on
        what the host does next, None where the log does not tell of it."""
        return None

    def reads(self, graph: Graph) -> bool:
        """Whether `parts` will read memory now: the monitor then waits for the device first, without the debugger's
        lock."""
        return False

    def owns(self, key: object) -> bool:
        """Whether a key came from this check's `parts`."""
        return False

    def changed(self, evidence: Evidence[object], checkpoint: Checkpoint) -> None:
        """A part changed across a replay."""

    @property
    def expects_launches(self) -> bool:
        """Whether `launch_begins` may do anything now. Called without a lock."""
        return True

    def launch_begins(self, launch: Launch, graph: Graph | None) -> None:
        """On a device: an eager launch that writes tracked memory is about to run, declared to prepare a graph."""

    def replay_begins(self, checkpoint: Checkpoint) -> None:
        """The graph of the checkpoint is about to replay."""

    def replay_ends(self, checkpoint: Checkpoint) -> None:
        """An observed replay of a graph with copies of host memory has been queued, and nothing behind it yet."""

    def copy_queued(self, copy: QueuedCopy, checkpoint: Checkpoint) -> None:
        """An asynchronous copy from pinned memory has been queued, and nothing behind it yet."""

    def host_write_begins(self, write: HostWrite) -> None:
        """An operator is about to write host memory of `tracking.pending_sources`."""

    def host_write_ran(self, write: HostWrite) -> None:
        """The operator of `host_write_begins` ran."""

    def fetched(self, key: object, data: bytes, checkpoint: Checkpoint) -> None:
        """Bytes that this check requested from the engine have arrived."""

    def checkpoint_ends(self, checkpoint: Checkpoint) -> None:
        """All evidence of a checkpoint has been dispatched."""

    def host_read(self, view: TensorView, how: str, stack: Stack, checkpoint: Checkpoint) -> None:
        """The host is about to read a view."""

    def pool_read(self, read: PoolAccess, checkpoint: Checkpoint) -> None:
        """Eager code, or the host, is about to read watched memory of a pool (`tracking.pool_watch`)."""

    def pool_written(self, written: PoolAccess) -> None:
        """An eager operator is about to write watched memory of a pool; `written` follows where it is tracked."""

    def operands_read(self, name: str, pointers: Sequence[Pointer]) -> None:
        """An eager operator is about to read tracked memory; only with the option `undefined`."""

    def novel(self) -> None:
        """A step larger than all before it is about to be prepared."""

    def written(self, write: Write, phase: Phase | None, graph: Graph | None) -> None:
        """A launch wrote tracked memory (`graph` for a node of a replay)."""

    def recheck(self, checkpoint: Checkpoint) -> None:
        """The caller requested a check now."""

    def invalidate_writers(self) -> None:
        """There were writes that were not seen."""
