"""Listens to a backend, runs the checks at every boundary between two phases, keeps the findings."""

from __future__ import annotations

import threading

import msgspec

from shadowgraph.assembly import finding_of
from shadowgraph.book import FindingBook, read_suppressions
from shadowgraph.checks.base import Check, Checkpoint, Context, Draft
from shadowgraph.checks.registry import Checks
from shadowgraph.coverage import Coverage, CoverageLog
from shadowgraph.engines.base import Shadow
from shadowgraph.engines.numpy_engine import NumpyEngine
from shadowgraph.errors import FindingsError
from shadowgraph.faults import shielded
from shadowgraph.findings import Severity
from shadowgraph.graphs.events import Listener
from shadowgraph.graphs.model import Graph, Launch, Node
from shadowgraph.reports.verdicts import verdict
from shadowgraph.settings import Settings
from shadowgraph.tracking.aliases import NameBook
from shadowgraph.tracking.allocator import HostAllocator
from shadowgraph.tracking.buffers import Buffer
from shadowgraph.tracking.guards import Guard, guards_of
from shadowgraph.tracking.phases import Phase
from shadowgraph.tracking.ranges import ByteRange
from shadowgraph.tracking.stacks import Stack
from shadowgraph.tracking.stores import StoreLog
from shadowgraph.tracking.views import TensorView
from shadowgraph.tracking.writes import Write, write_of
from shadowgraph.watches import Watches


class Supervisor(Listener):
    """The part of a debugger that works: events in, findings out.

    Attributes
    ----------
    paused
        While true, events pass unseen.
    preparing
        Graphs of the `prepare` blocks that are open, innermost last.
    """

    def __init__(self, settings: Settings, allocator: HostAllocator) -> None:
        self.settings = settings
        self.allocator = allocator
        suppressions = read_suppressions(settings.suppressions) if settings.suppressions else frozenset()
        self.book = FindingBook(suppressions)
        engine = NumpyEngine(allocator.arena.base)
        names = NameBook(allocator.ledger)
        self.context = Context(settings, allocator, allocator.ledger, engine, names, self._take)
        self.checks = Checks(self.context)
        self.watches = Watches(self.context)
        self.paused = False
        self.preparing: list[Graph | None] = []
        self._all: tuple[Check, ...] = (*self.checks.all, self.watches)
        self._lock = threading.RLock()
        self._coverage = CoverageLog()
        self._replaying: Graph | None = None
        self._capturing = False
        self._shadow: Shadow | None = None
        self._node_writes: dict[tuple[int, int], Write] = {}
        self._guards: tuple[int, tuple[Guard, ...]] = (-1, ())

    def flush(self, at: str, phase: Phase | None = None, graph: Graph | None = None, replay: int | None = None) -> None:
        """Check now, as the end of a phase."""
        if not self.paused and self._replaying is None:
            with self._lock:
                self._judge(Checkpoint(at, phase, graph, replay))

    def recheck(self) -> None:
        """Check guards and declared rules now."""
        self.flush("check")
        if not self.paused:
            for check in self._all:
                with shielded("check"):
                    check.recheck(Checkpoint("check"))

    def rearm(self) -> None:
        """Arm every standing guard anew, without looking at it."""
        for buffer in list(self.allocator.tenants.values()):
            self.allocator.arm(buffer)
        self.context.writes.clear()

    def coverage(self) -> Coverage:
        return self._coverage.coverage(self.context.writes.dropped)

    def is_tracked(self, where: ByteRange) -> bool:
        """Whether a range belongs to a buffer of the ledger."""
        return self.context.ledger.owner(where.start, where.stop) is not None

    # -- what the backend tells --------------------------------------------------------------------------------

    def capture_began(self, graph: Graph) -> None:
        self.flush("capture_begin")
        self._capturing = True

    def capture_ended(self, graph: Graph) -> None:
        self._capturing = False
        self.context.graphs[graph.serial] = graph
        self.context.names.refresh()
        self._coverage.note(graph, list(self.allocator.tenants.values()), self.context.ledger)
        for check in self._all:
            check.captured(graph)

    def graph_reset(self, graph: Graph) -> None:
        self._capturing = False
        self.context.graphs.pop(graph.serial, None)
        for key in [key for key in self._node_writes if key[0] == graph.serial]:
            del self._node_writes[key]

    def replay_began(self, graph: Graph) -> None:
        if self.paused:
            return
        with self._lock:
            self.context.graphs.setdefault(graph.serial, graph)
            checkpoint = Checkpoint("replay_begin", None, graph, graph.replays)
            self._judge(checkpoint)
            for check in self._all:
                check.replay_begins(checkpoint)
            parts = [part for check in self._all for part in check.parts(graph)]
            self._shadow = self.context.engine.snapshot(parts)
            self._replaying = graph

    def node_ran(self, graph: Graph, node: Node, stores: StoreLog | None) -> None:
        if self.paused or self._replaying is not graph:
            return
        write = self._write_of_node(graph, node, stores)
        self._note(write, Phase.REPLAY, graph)
        if write.opaque or self.settings.sync:
            self._guards_now(Checkpoint("node", Phase.REPLAY, graph, graph.replays))

    def replay_ended(self, graph: Graph) -> None:
        if self.paused or self._replaying is not graph:
            return
        with self._lock:
            self._replaying = None
            checkpoint = Checkpoint("replay_end", Phase.REPLAY, graph, graph.replays)
            shadow, self._shadow = self._shadow, None
            if shadow is not None:
                self.context.engine.check_snapshot(checkpoint, shadow)
            self._judge(checkpoint)

    def launch_ran(self, launch: Launch, stores: StoreLog | None) -> None:
        if self.paused or self._capturing or self._replaying is not None:
            return
        marked = bool(self.preparing)
        self._note(write_of(launch, stores), Phase.PREPARE if marked else None, None)
        if self.settings.sync:
            model = self.preparing[-1] if marked else None
            replay = model.replays + 1 if model else None
            self._guards_now(Checkpoint("launch", Phase.PREPARE if marked else None, model, replay))

    def host_read(self, view: TensorView, how: str, stack: Stack) -> None:
        if self.paused or self._capturing or self._replaying is not None:
            return
        for check in self._all:
            check.host_read(view, how, stack, Checkpoint("host_read"))

    def retiring(self, buffer: Buffer) -> None:
        """A tenant's guards are about to be overwritten by the next tenant's: look a last time."""
        if self.paused or self._capturing:
            return
        graph = self._replaying
        phase, replay = (Phase.REPLAY, graph.replays) if graph else (None, None)
        guards = guards_of(buffer, self.settings.near_guard)
        self.context.engine.check_guards(Checkpoint("retire", phase, graph, replay), guards)
        self._drain()

    # -- parts -------------------------------------------------------------------------------------------------

    def _judge(self, checkpoint: Checkpoint) -> None:
        """Check every guard, hand out all evidence, start a new segment of writes."""
        self._guards_now(checkpoint)
        for check in self._all:
            check.checkpoint_ends(checkpoint)
        self.context.writes.clear()

    def _guards_now(self, checkpoint: Checkpoint) -> None:
        self.context.engine.check_guards(checkpoint, self._standing_guards())
        self._drain()

    def _drain(self) -> None:
        for result in self.context.engine.poll():
            assert isinstance(result.tag, Checkpoint)
            for evidence in result.evidence:
                if isinstance(evidence.subject, Guard):
                    self.checks.out_of_bounds.broken_guard(evidence, result.tag)
                    continue
                for check in self._all:
                    if check.owns(evidence.subject):
                        check.changed(evidence, result.tag)

    def _standing_guards(self) -> tuple[Guard, ...]:
        version, guards = self._guards
        if version != self.allocator.tenancies:
            tenants = list(self.allocator.tenants.values())
            guards = tuple(guard for b in tenants for guard in guards_of(b, self.settings.near_guard))
            self._guards = (self.allocator.tenancies, guards)
        return guards

    def _note(self, write: Write, phase: Phase | None, graph: Graph | None) -> None:
        self.context.writes.add(write)
        for check in self._all:
            check.written(write, phase, graph)

    def _write_of_node(self, graph: Graph, node: Node, stores: StoreLog | None) -> Write:
        if stores is not None:
            return write_of(node.launch, stores, node.index)
        key = (graph.serial, node.index)
        if key not in self._node_writes:
            self._node_writes[key] = write_of(node.launch, None, node.index)
        return self._node_writes[key]

    def _take(self, draft: Draft) -> None:
        """A check hands over a draft: name it, count it, and in sync mode raise it."""
        self.context.names.refresh()
        finding = finding_of(draft, self.context)
        finding = msgspec.structs.replace(finding, message=verdict(finding), coverage=self.coverage().sentence())
        kept, new = self.book.add(finding, draft.key)
        if new and self.settings.sync and kept.severity is Severity.ERROR:
            raise FindingsError(kept.message)
