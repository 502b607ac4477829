"""Ranges that a graph's own check nodes compare across each of its replays, observed or not, and which were left out.

Checks say which (`Check.node_parts`): declared buffers, and those that the host plans from. `Monitor` lists them as a
replay begins, and for all graphs as the steady state begins, under the debugger's lock. Only memory of the debugger's
own allocator: it stays mapped to the process's end, and a buffer is withdrawn before its bytes go to another one.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from shadowgraph.checks.base import Check, Context
from shadowgraph.common.internal_errors import error_barrier
from shadowgraph.common.words import plural
from shadowgraph.engines.base import NodePart
from shadowgraph.model.buffers import Role
from shadowgraph.model.graphs import Graph
from shadowgraph.model.ranges import ByteRange
from shadowgraph.tracking import steps

LARGEST = 64 << 10  # bytes of each buffer
MOST = 1 << 20  # bytes of all, of one graph


class NodeShadows:
    """Lists the ranges of each graph anew when checks want others. Not thread-safe.

    Parameters
    ----------
    checks
        All checks; those that have no such ranges are left alone.
    """

    def __init__(self, context: Context, checks: Sequence[Check]) -> None:
        self._context = context
        self._still = context.allocator.lock.within  # while held, no buffer ends
        self._checks = [check for check in checks if type(check).node_parts is not Check.node_parts]
        self._listed: dict[int, tuple[int, ...]] = {}  # by the graph's serial: the checks' versions
        self._left: dict[int, dict[NodePart, int]] = {}  # bytes that were left out, by the graph's serial
        self._dropped = context.engine.dropped

    def list(self, graph: Graph) -> None:
        """List a graph's ranges, if checks want others than before."""
        version = tuple([check.node_version for check in self._checks])
        if self._listed.get(graph.serial) != version:
            with error_barrier("shadows of a graph"):
                self._list(graph, version)

    def list_all(self) -> None:
        """Replays pass unobserved from here on: list the ranges of all graphs, also those that were reported, or whose
        record may be lost."""
        engine = self._context.engine
        before, self._dropped = self._dropped, engine.dropped
        for graph in list(self._context.graphs.values()):
            with error_barrier("shadows of a graph"):
                if self._dropped != before:
                    engine.list_shadows(graph.serial, ())
                self._list(graph, tuple([check.node_version for check in self._checks]))

    def _list(self, graph: Graph, version: tuple[int, ...]) -> None:
        self._listed[graph.serial] = version
        wanted = [part for check in self._checks for part in check.node_parts(graph)]
        with self._still:  # a buffer that ends after this is withdrawn
            living = [part for part in wanted if self._lives(part)]
            chosen, left = self._chosen(sorted(living, key=lambda part: part.undecided))
            self._left[graph.serial] = {part: part.where.nbytes for part in living}  # where listing fails
            with suppress(MemoryError):
                self._context.engine.list_shadows(graph.serial, chosen)
                self._left[graph.serial] = left

    def _chosen(self, wanted: Sequence[NodePart]) -> tuple[Sequence[NodePart], dict[NodePart, int]]:
        """What there is room for, and how many bytes of each range were left out."""
        chosen, left = list[NodePart](), dict[NodePart, int]()
        room, rooms = MOST, dict[int, int]()  # of all, and of each buffer
        for part in wanted:
            where, of_buffer = part.where, rooms.get(part.buffer, LARGEST)
            size = min(where.nbytes, room, of_buffer) if self._is_ours(part) else 0
            if size:
                chosen.append(part._replace(where=ByteRange(where.start, where.start + size)))
                room, rooms[part.buffer] = room - size, of_buffer - size
            if size < where.nbytes:
                left[part] = where.nbytes - size
        return chosen, left

    def _lives(self, part: NodePart) -> bool:
        buffer = self._context.ledger.get(part.buffer)
        return buffer is not None and buffer.alive

    def _is_ours(self, part: NodePart) -> bool:
        """Whether check nodes may read a range: its memory stays mapped, and the end of its buffer is told."""
        buffer = self._context.ledger.get(part.buffer)
        return buffer is not None and buffer.role is Role.STATIC and self._context.allocator.holds(part.where.start)

    @property
    def cover(self) -> bool:
        """Whether check nodes compare all that was declared, at every replay of each graph; of a piece of a step they
        may be disabled."""
        declared = not any(not part.undecided for left in list(self._left.values()) for part in left)
        return declared and not any(map(steps.in_order, list(self._context.graphs.values())))

    def dropped(self, graph: Graph) -> None:
        """A graph is gone."""
        self._left.pop(graph.serial, None)
        if self._listed.pop(graph.serial, None) is not None:
            self._context.engine.list_shadows(graph.serial, ())

    def start_over(self) -> None:
        """A debugger starts: what an earlier one listed is not compared any more."""
        self._listed.clear()
        self._left.clear()
        self._context.engine.clear_shadows()

    def sentence(self, sampled: bool) -> str | None:
        """What was left out, for the report; None where all is compared, or each replay is observed."""
        left: dict[object, tuple[int, bool]] = {}
        for each in list(self._left.values()):
            left |= {part.key: (nbytes, part.undecided) for part, nbytes in each.items()}
        if not left or not sampled:
            return None
        declared = [nbytes for nbytes, undecided in left.values() if not undecided]
        planned = [nbytes for nbytes, undecided in left.values() if undecided]
        said = []
        if declared:
            ranges = plural(len(declared), "declared range")
            said.append(f"{sum(declared):,} bytes of {ranges}, for which every replay is looked at more closely")
        if planned:
            buffers = f"{plural(len(planned), 'buffer')} that the host plans from"
            said.append(f"{sum(planned):,} bytes of {buffers}, which are compared while launches are observed")
        return (
            f"check nodes read the first {LARGEST >> 10} KiB of guarded buffers, and {MOST >> 20} MiB for each graph; "
            f"not {'; and not '.join(said)}"
        )
