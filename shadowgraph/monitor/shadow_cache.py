"""Cache of shadow copies: the ranges that are compared across replays of each graph, and their values in host memory.

`Monitor` calls `of` under the debugger's lock, and `waits` before it takes the lock.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from shadowgraph.checks.base import Check, Context
from shadowgraph.engines.base import Shadow
from shadowgraph.model.buffers import Buffer, Role
from shadowgraph.model.graphs import Graph
from shadowgraph.model.ranges import ByteRange
from shadowgraph.tracking.foreign import still_there


class _Plan(NamedTuple):
    """Ranges to compare for one graph, their shadow as far as it fits, and their foreign buffers."""

    version: tuple[int, int]
    parts: tuple[tuple[object, ByteRange], ...]
    shadow: Shadow
    foreign: tuple[Buffer, ...]


class ShadowCache:
    """One shadow per graph, rebuilt when memory or declarations have changed."""

    def __init__(self, context: Context, checks: Sequence[Check]) -> None:
        self._context, self._checks = context, checks
        self._plans: dict[int, _Plan] = {}

    def waits(self, graph: Graph, declared: int) -> bool:
        """Whether `of` will read memory, which waits for the device."""
        known = self._plans.get(graph.serial)
        if known is not None and known[0] == (self._context.ledger.version, declared):
            return False
        return any(check.reads(graph) for check in self._checks)

    def of(self, graph: Graph, declared: int) -> Shadow:
        """The shadow of a graph; `declared` changes with every declaration."""
        known = self._plans.get(graph.serial)
        for buffer in known.foreign if known is not None else ():
            if not still_there(buffer):  # freed or moved by the program: not readable
                self._context.ledger.free(buffer)
        version = (self._context.ledger.version, declared)
        if known is None or known.version != version:
            known = self._plans[graph.serial] = self._renewed(known, graph, version)
        return known.shadow

    def _renewed(self, known: _Plan | None, graph: Graph, version: tuple[int, int]) -> _Plan:
        """The plan after a change of memory or declarations."""
        parts = tuple(part for check in self._checks for part in check.parts(graph))
        # A change elsewhere leaves the old shadow valid; a new one would wait for the device.
        fits = known is not None and known.parts == parts
        shadow = known.shadow if known is not None and fits else self._context.engine.shadow(parts)
        return _Plan(version, parts, shadow, self._foreign(parts))

    def _foreign(self, parts: Iterable[tuple[object, ByteRange]]) -> tuple[Buffer, ...]:
        owners = (self._context.ledger.owner(where.start, where.stop) for _, where in parts)
        return tuple({b.serial: b for b in owners if b is not None and b.role is Role.FOREIGN}.values())

    def drop(self, graph: Graph) -> None:
        """A graph was destroyed or reset."""
        self._plans.pop(graph.serial, None)

    def mirrored(self) -> list[tuple[int, Buffer, ByteRange, bytes]]:
        """Values in host memory: graph serial, buffer, range, and its bytes when that graph last began to replay."""
        found: dict[int, tuple[int, Buffer, ByteRange, bytes]] = {}
        for serial, plan in list(self._plans.items()):
            for _, where, data in plan.shadow.last_values():
                buffer = self._context.ledger.owner(where.start, where.stop)
                if buffer is not None and data:
                    found[where.start] = (serial, buffer, where, data)
        return list(found.values())

    def last_values(self) -> list[tuple[str, str, bytes]]:
        """Name, dtype and bytes of small buffers at the last boundary, from host memory."""
        names = self._context.names
        return [(names.name_of(b, where)[0], b.dtype, data) for _, b, where, data in self.mirrored()]
