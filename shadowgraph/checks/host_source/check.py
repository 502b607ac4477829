"""SG110: a copy node of a graph uses host memory that was freed, or went to another owner, since its capture.

A node keeps the address of pinned memory as it keeps any other, and nothing keeps the memory for it. For memory of
torch's the life of its storage decides, noted where it was allocated or captured: torch's allocator hands a freed
block out again and the driver does not notice. For other memory the driver's number of the allocation does, noted at
the end of the capture and compared at each observed replay.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from msgspec.structs import replace

from shadowgraph.checks.base import Check, Checkpoint, Context, Detection
from shadowgraph.checks.culprits import culprit_of_node
from shadowgraph.checks.host_source import CODE
from shadowgraph.checks.host_source.details import Ended
from shadowgraph.checks.host_source.facts import Fate
from shadowgraph.checks.host_source.lifetimes import CERTAIN, fate_by_driver, fate_of_storage
from shadowgraph.model.buffers import Buffer
from shadowgraph.model.findings import Culprit, Severity, Status
from shadowgraph.model.graphs import Graph
from shadowgraph.model.host_copies import HostCopy, HostKind
from shadowgraph.model.phases import Phase
from shadowgraph.tracking.foreign import still_there, whereabouts
from shadowgraph.tracking.host_memory import tenants_since, unowned, used_by_capture

_LOOKS = 64  # most looks for a new owner of the bytes after the report
_NODES = 64  # copy nodes of a graph that are looked at


@dataclass(slots=True, eq=False)
class _Use:
    """A copy node's use of host memory.

    Attributes
    ----------
    buffer
        The memory; in no ledger where no storage of it is known.
    stored
        Whether a storage of it is known.
    asks
        Whether the driver is asked for the memory: it knows nothing of what torch's allocator does with a block.
    reported
        What was reported while no known memory occupied the bytes.
    """

    copy: HostCopy
    buffer: Buffer
    stored: bool
    in_capture: bool
    asks: bool
    reported: Fate | None = None
    version: int = -1
    looks: int = 0


@dataclass(slots=True)
class _Held:
    uses: list[_Use] = field(default_factory=list)
    vacant: list[_Use] = field(default_factory=list)


class HostSources(Check):
    """At each observed replay of a graph with copies of host memory, compares the owners of that memory with those of
    the capture."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._held: dict[int, _Held] = {}  # by the graph's serial

    def captured(self, graph: Graph) -> None:
        self._held = {serial: held for serial, held in self._held.items() if serial in self.context.graphs}
        if graph.host_copies:
            uses = [self._use(copy, graph) for copy in graph.host_copies[:_NODES]]
            self._held[graph.serial] = _Held(uses)
            names = self.context.names
            if any(use.stored and not names.owners_of(use.buffer.range, use.buffer.serial) for use in uses):
                names.expire()  # owners are walked while their memory lives
                names.refresh()

    def _use(self, copy: HostCopy, graph: Graph) -> _Use:
        ledger, began, ended = self.context.ledger, graph.began, graph.ended or graph.began
        tenant = used_by_capture(ledger, copy.host, began, ended)
        if tenant is None:
            return _Use(copy, unowned(ledger, copy.host), False, False, True)
        return _Use(copy, tenant, True, tenant.graph == graph.serial, not tenant.owned)

    def replay_begins(self, checkpoint: Checkpoint) -> None:
        held = self._held.get(checkpoint.graph.serial) if checkpoint.graph is not None else None
        if held is None:
            return
        for use in tuple(held.uses):
            fate = self._fate(use)
            if fate is not None:
                held.uses.remove(use)
                self._report(use, fate, held, checkpoint)
        for use in tuple(held.vacant):
            self._look_again(use, held, checkpoint)

    def _fate(self, use: _Use) -> Fate | None:
        """What became of the memory; None while nothing is known to have."""
        then, gone = use.copy.block, use.stored and not still_there(use.buffer)
        if gone:
            moved = whereabouts(use.buffer) is not None
            fate = fate_of_storage(then, use.buffer.owned, use.in_capture, moved, bool(self._victims(use)))
            if fate is not None:
                return fate
        if use.asks and then is not None and then.kind is HostKind.PINNED:
            return fate_by_driver(then, self.context.engine.host_block(use.copy.host.start))
        unknown = not use.stored and then is not None and then.kind is HostKind.PAGEABLE
        return Fate.PAGEABLE if unknown else None

    def _victims(self, use: _Use) -> tuple[Buffer, ...]:
        """Host memory that torch has allocated there since."""
        since = use.buffer.freed_at or use.buffer.serial
        return tuple(each for each in tenants_since(self.context.ledger, use.copy.host, since) if each.owned)

    def _report(self, use: _Use, fate: Fate, held: _Held, checkpoint: Checkpoint) -> None:
        victims = self._victims(use)
        if fate in CERTAIN and not victims:
            use.reported, use.version = fate, self.context.ledger.host.version
            held.vacant.append(use)
        self.context.report(self._draft(use, fate, victims, checkpoint))

    def _look_again(self, use: _Use, held: _Held, checkpoint: Checkpoint) -> None:
        """Report once more, with what occupies the bytes, if anything does by now."""
        version = self.context.ledger.host.version
        if use.version == version or use.looks >= _LOOKS:
            return
        use.version, use.looks = version, use.looks + 1
        victims = self._victims(use)
        if victims and use.reported is not None:
            held.vacant.remove(use)
            self.context.report(self._draft(use, use.reported, victims, checkpoint))

    def _draft(self, use: _Use, fate: Fate, victims: tuple[Buffer, ...], checkpoint: Checkpoint) -> Detection:
        copy, graph, certain = use.copy, checkpoint.graph, fate in CERTAIN
        assert graph is not None
        self.context.names.expire()
        return Detection(
            code=CODE,
            checkpoint=checkpoint,
            buffer=use.buffer,
            first=copy.host.start,
            last=copy.host.stop - 1,
            count=0,
            ranges=(),
            located=(self._culprit(copy, graph),),
            phase=Phase.REPLAY,
            graph=graph,
            replay=checkpoint.replay,
            severity=Severity.ERROR if certain else Severity.NOTE,
            confidence="high" if certain else "medium",
            key=f"{graph.serial} node {copy.node}",
            facts=Ended(copy, fate, victims),
        )

    def _culprit(self, copy: HostCopy, graph: Graph) -> Culprit:
        """The copy node, with the line that captured it."""
        if graph.read_nodes is None:
            way = "device to host" if copy.to_host else "host to device"
            return Culprit(Status.CONFIRMED, "memcpy", f"memcpy {way}", copy.node)
        found = culprit_of_node(
            graph, copy.node, 0, copy.host, copy.host, self.context.ledger, self.context.names
        )  # fmt: skip
        return replace(found, seen_in=None)
