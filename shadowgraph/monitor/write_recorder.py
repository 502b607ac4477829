"""Records observed writes: in the write log, in the flight recorder, and with the checks that ask for them.

Called by `Monitor`, in the thread of the launch; the caller holds the debugger's lock to record a write.
"""

from __future__ import annotations

from collections.abc import Iterable

from shadowgraph.checks.base import Check, Context
from shadowgraph.checks.registry import Checks
from shadowgraph.localize.flight_recorder import FlightRecorder
from shadowgraph.model.graphs import Graph, Launch, Node
from shadowgraph.model.phases import Phase
from shadowgraph.monitor.sampling.observation import Observation
from shadowgraph.tracking.stores import StoreLog
from shadowgraph.tracking.writes import Write, write_of


class WriteRecorder:
    """Distributes writes. The caller holds a lock.

    Parameters
    ----------
    checks
        All checks, of `registry` and others. In the steady state, checks that need every write receive none.
    """

    def __init__(
        self,
        context: Context,
        journal: FlightRecorder,
        observation: Observation,
        registry: Checks,
        checks: Iterable[Check],
    ) -> None:
        self._context, self._journal, self._observation = context, journal, observation
        self._told = [check for check in checks if type(check).written is not Check.written]
        self._told_unobserved = [check for check in self._told if check not in registry.needs_every_write]
        self._told_of_nodes = self._told
        self._of_nodes: dict[int, dict[int, Write]] = {}  # by graph serial and node index

    def replay_begins(self) -> None:
        """Nodes of the host backend run next: most checks know their writes, and are not called for each node."""
        self._told_of_nodes = [check for check in self._told if check.wants_known_writes]

    def note(self, write: Write, phase: Phase | None, graph: Graph | None) -> None:
        """Record a write in a phase; for a write of a replay, with its graph."""
        self._context.writes.add(write)
        self._journal.launched(write, phase, graph)
        if graph is not None and write.stores is None:
            told = self._told_of_nodes
        else:
            told = self._told_unobserved if self._observation.incomplete else self._told
        for check in told:
            check.written(write, phase, graph)

    @property
    def tells_of_nodes(self) -> bool:
        """Whether a check wants each node."""
        return bool(self._told_of_nodes)

    def note_nodes(self, graph: Graph, nodes: Iterable[Node]) -> None:
        """Record writes of replay nodes whose stores are unknown, when no check wants each node."""
        writes = [self.of_node(graph, node, None) for node in nodes]
        self._context.writes.extend(writes)
        self._journal.replay_launched(writes, graph)

    def defer(self, launch: Launch, phase: Phase | None, model: Graph | None) -> None:
        """Keep a launch that no check needs now, to name culprits later."""
        self._context.writes.defer(launch, model.serial if model else None)
        self._journal.ran(launch, phase)

    def of_node(self, graph: Graph, node: Node, stores: StoreLog | None) -> Write:
        """The write of a node; when its stores are unknown, the same object each time."""
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
        """A graph was destroyed or reset."""
        self._of_nodes.pop(serial, None)
