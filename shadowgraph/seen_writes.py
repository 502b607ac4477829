"""Writes as they are seen: into the record of writes, into the journal, and to the checks that want to hear of them."""

from __future__ import annotations

from collections.abc import Iterable

from shadowgraph.checks.base import Check, Context
from shadowgraph.checks.registry import Checks
from shadowgraph.graphs.model import Graph, Launch, Node
from shadowgraph.journal import Journal
from shadowgraph.naps import Naps
from shadowgraph.tracking.phases import Phase
from shadowgraph.tracking.stores import StoreLog
from shadowgraph.tracking.writes import Write, write_of


class SeenWrites:
    """Told of writes, with a lock of the caller's held.

    Parameters
    ----------
    checks
        All of them, those of `registry` and others. In a nap those that must see every write hear of none.
    """

    def __init__(
        self, context: Context, journal: Journal, naps: Naps, registry: Checks, checks: Iterable[Check]
    ) -> None:
        self._context, self._journal, self._naps = context, journal, naps
        self._told = [check for check in checks if type(check).written is not Check.written]
        self._told_asleep = [check for check in self._told if check not in registry.sighted]
        self._of_nodes: dict[tuple[int, int], Write] = {}

    def note(self, write: Write, phase: Phase | None, graph: Graph | None) -> None:
        """Something wrote, in a phase; of a replay, with its graph."""
        self._context.writes.add(write)
        self._journal.launched(write, phase, graph)
        for check in self._told_asleep if self._naps.blind else self._told:
            check.written(write, phase, graph)

    def defer(self, launch: Launch, phase: Phase | None, model: Graph | None) -> None:
        """Keep a launch that nobody wants to hear of now, for who is accused later."""
        self._context.writes.defer(launch, model.serial if model else None)
        self._journal.ran(launch, phase)

    def of_node(self, graph: Graph, node: Node, stores: StoreLog | None) -> Write:
        """What a node wrote; where its stores are not known, the same each time."""
        if stores is not None:
            return write_of(node.launch, stores, node.index)
        key = (graph.serial, node.index)
        if key not in self._of_nodes:
            self._of_nodes[key] = write_of(node.launch, None, node.index)
        return self._of_nodes[key]

    def dropped(self, serial: int) -> None:
        """A graph is gone."""
        for key in [key for key in self._of_nodes if key[0] == serial]:
            del self._of_nodes[key]
