"""What is compared across the replays of each graph, and what host memory still holds of it."""

from __future__ import annotations

from collections.abc import Sequence

from shadowgraph.checks.base import Check, Context
from shadowgraph.engines.base import Shadow
from shadowgraph.graphs.model import Graph
from shadowgraph.tracking.buffers import Buffer
from shadowgraph.tracking.ranges import ByteRange


class Plans:
    """A shadow a graph, made anew when memory or declarations have changed."""

    def __init__(self, context: Context, checks: Sequence[Check]) -> None:
        self._context, self._checks = context, checks
        self._plans: dict[int, tuple[tuple[int, int], Shadow]] = {}

    def of(self, graph: Graph, declared: int) -> Shadow:
        """The shadow of a graph; `declared` changes with every declaration."""
        version = (self._context.ledger.version, declared)
        known = self._plans.get(graph.serial)
        if known is None or known[0] != version:
            parts = [part for check in self._checks for part in check.parts(graph)]
            known = self._plans[graph.serial] = (version, self._context.engine.shadow(parts))
        return known[1]

    def drop(self, graph: Graph) -> None:
        """A graph is gone."""
        self._plans.pop(graph.serial, None)

    def mirrored(self) -> list[tuple[int, Buffer, ByteRange, bytes]]:
        """What host memory mirrors: graph, buffer, range and its bytes when that graph last began to replay."""
        found: dict[int, tuple[int, Buffer, ByteRange, bytes]] = {}
        for serial, (_, shadow) in list(self._plans.items()):
            for _, where, data in shadow.last_values():
                buffer = self._context.ledger.owner(where.start, where.stop)
                if buffer is not None and data:
                    found[where.start] = (serial, buffer, where, data)
        return list(found.values())

    def last_values(self) -> list[tuple[str, str, bytes]]:
        """Name, dtype and bytes of small buffers as they were at the last boundary, from host memory."""
        names = self._context.names
        return [(names.name_of(b, where)[0], b.dtype, data) for _, b, where, data in self.mirrored()]
