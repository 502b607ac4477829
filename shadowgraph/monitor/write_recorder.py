"""Writes as they are seen: into the record of writes, into the journal, and to the checks that want to hear of them."""

from __future__ import annotations

from collections.abc import Iterable

from shadowgraph.checks.base import Check, Context
from shadowgraph.checks.registry import Checks
from shadowgraph.localize.flight_recorder import FlightRecorder
from shadowgraph.model.graphs import Graph, Launch, Node
from shadowgraph.model.phases import Phase
from shadowgraph.monitor.sampling.naps import Naps
from shadowgraph.tracking.stores import StoreLog
from shadowgraph.tracking.writes import Write, write_of


class WriteRecorder:
    """Told of writes, with a lock of the caller's held.

    Parameters
    ----------
    checks
        All of them, those of `registry` and others. In a nap those that must see every write hear of none.
    """

    def __init__(
        self, context: Context, journal: FlightRecorder, naps: Naps, registry: Checks, checks: Iterable[Check]
    ) -> None:
        self._context, self._journal, self._naps = context, journal, naps
        self._told = [check for check in checks if type(check).written is not Check.written]
        self._told_asleep = [check for check in self._told if check not in registry.needs_every_write]
        self._told_of_nodes = self._told
        self._of_nodes: dict[int, dict[int, Write]] = {}  # by graph and node

    def replay_begins(self) -> None:
        """Nodes of the host backend run next: most checks know what these write, and need not be told each time."""
        self._told_of_nodes = [check for check in self._told if check.wants_known_writes]

    def note(self, write: Write, phase: Phase | None, graph: Graph | None) -> None:
        """Something wrote, in a phase; of a replay, with its graph."""
        self._context.writes.add(write)
        self._journal.launched(write, phase, graph)
        if graph is not None and write.stores is None:
            told = self._told_of_nodes
        else:
            told = self._told_asleep if self._naps.blind else self._told
        for check in told:
            check.written(write, phase, graph)

    @property
    def tells_of_nodes(self) -> bool:
        """Whether some check is to be told of each node."""
        return bool(self._told_of_nodes)

    def note_nodes(self, graph: Graph, nodes: Iterable[Node]) -> None:
        """Nodes of a replay wrote whose stores are not known, and no check is to be told of each."""
        writes = [self.of_node(graph, node, None) for node in nodes]
        self._context.writes.extend(writes)
        self._journal.replay_launched(writes, graph)

    def defer(self, launch: Launch, phase: Phase | None, model: Graph | None) -> None:
        """Keep a launch that nobody wants to hear of now, for who is accused later."""
        self._context.writes.defer(launch, model.serial if model else None)
        self._journal.ran(launch, phase)

    def of_node(self, graph: Graph, node: Node, stores: StoreLog | None) -> Write:
        """What a node wrote; where its stores are not known, the same each time."""
        if stores is not None:
            return write_of(node.launch, stores, node.index)
        known = self._of_nodes.get(graph.serial)
        if known is None:
            known = self._of_nodes[graph.serial] = {}
        write = known.get(node.index)
        if write is None:
            write = known[node.index] = write_of(node.launch, None, node.index)
        return write

    def dropped(self, serial: int) -> None:
        """A graph is gone."""
        self._of_nodes.pop(serial, None)
