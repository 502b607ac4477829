"""SG106: a node changed bytes of a buffer that none of its arguments leads into, as with an index far out of range.

The locator calls it after a probed replay, under the debugger's lock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from math import prod

import numpy as np

from shadowgraph.checks.base import Context
from shadowgraph.checks.culprits import node_at
from shadowgraph.checks.foreign_writes import CODE
from shadowgraph.checks.pending_confirmation import Suspicions
from shadowgraph.checks.probed import Change, Probed, ProbedCheck, disturbed_parts, draft_of, report_all
from shadowgraph.model.buffers import Buffer, Role
from shadowgraph.model.device_nodes import DeviceNode, NodeKind
from shadowgraph.model.graphs import Graph
from shadowgraph.model.probes import Hit
from shadowgraph.model.ranges import ByteRange, RangeSet
from shadowgraph.tracking.foreign import still_there

_TABLES = 1 << 20  # largest buffer that is searched for addresses
_OPEN = (NodeKind.HOST, NodeKind.CONDITIONAL, NodeKind.OTHER)  # node kinds whose targets are unknown


def foreign_hits(
    nodes: Callable[[int], DeviceNode | None],
    parts: Mapping[int, ByteRange],
    hits: Iterable[Hit],
    kin: Callable[[ByteRange], Iterable[ByteRange]],
    tables: Callable[[DeviceNode], Iterable[int]],
) -> Iterator[Hit]:
    """The hits on parts that no argument of the node leads into.

    A node of which not all arguments are known, or that runs host code, may write anywhere and is never named. If a
    node that writes nothing, or not there, seems to have changed a part, then another writer changed it during the
    replay, and no node is named for that part.

    Parameters
    ----------
    nodes
        The node with an index.
    parts
        Buffers, by `Hit.part`.
    kin
        The buffers that share bytes with a range.
    tables
        Addresses reached indirectly: those stored in the memory that a node's arguments point at.
    """
    hits = list(hits)
    disturbed = disturbed_parts(nodes, hits)
    for hit in hits:
        node = nodes(hit.node)
        if node is None or hit.part in disturbed:
            continue
        words = addresses_of(node)
        if words is None:
            continue
        home = [parts[hit.part], *kin(parts[hit.part])]
        if not _leads(words, home) and not _leads(tables(node), home):
            yield hit


def addresses_of(node: DeviceNode) -> list[int] | None:
    """Every address among a node's arguments, inner nodes included; None where the arguments do not tell where it may
    write."""
    if node.note or node.kind in _OPEN:
        return None
    found = [word.address for word in node.words]
    found += [where.start for where in (*node.reads, *node.writes)]
    for inner in node.inner:
        more = addresses_of(inner)
        if more is None:
            return None
        found += more
    return found or None  # a kernel without a pointer finds its memory by other means


def _leads(addresses: Iterable[int], home: Sequence[ByteRange]) -> bool:
    return any(where.contains(address) for address in addresses for where in home)


def _was_given(graph: Graph, change: Change) -> bool:
    """Whether a launch was given a view of the bytes that its node changed: memory that was freed since and reused."""
    node = node_at(graph, change.hit.node)
    launch = graph.launch_of(node) if node is not None else None
    return launch is not None and any(p.may_write and p.view.hull.overlaps(change.extent) for p in launch.pointers)


def had_others(buffer: Buffer) -> bool:
    """Whether a pool's block is larger than the tensor known there: the capture also used it for other allocations,
    such as a library's workspace, whose kernels find it by addresses of their own."""
    return buffer.role is Role.POOL and prod(buffer.shape) * buffer.itemsize != buffer.nbytes


class ForeignWrites(ProbedCheck):
    """Checks probed replays for foreign writes.

    Attributes
    ----------
    suspicions
        Suspected nodes, which the next replay must confirm before they are named.
    """

    needs_whole_buffers = True

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.suspicions = Suspicions(context.engine.asynchronous)
        self.pending = self.suspicions.by_graph

    def buffers_wanted(self, graph: int) -> Iterable[Buffer]:
        return self.suspicions.buffers(graph)

    def probed(self, seen: Probed) -> None:
        """All tracked memory was compared after every node of a replay, or the buffers suspected before."""
        found = [((change.hit.node, change.buffer.serial), change) for change in self._foreign(seen)]
        sure = self.suspicions.settle(seen.graph.serial, {key: change.buffer for key, change in found})
        confidence = "medium" if self.context.engine.asynchronous else "high"
        report_all(
            self.context,
            (
                draft_of(
                    CODE, self.context, seen, change.buffer, (change.hit.node,),
                    RangeSet.of([change.extent]), change.hit.count, confidence,
                )
                for key, change in found
                if key in sure
            ),
        )  # fmt: skip

    def _foreign(self, seen: Probed) -> Iterator[Change]:
        by_hit = {change.hit: change for change in seen.changes}
        parts = {hit.part: change.buffer.range for hit, change in by_hit.items()}
        for hit in foreign_hits(partial(node_at, seen.graph), parts, by_hit, self._kin, self._tables):
            change = by_hit[hit]
            if seen.meanwhile.overlaps(change.extent) or had_others(change.buffer):
                continue
            if not _was_given(seen.graph, change):
                yield change

    def _kin(self, where: ByteRange) -> list[ByteRange]:
        return [buffer.range for buffer in self.context.ledger.overlapping(where.start, where.stop)]

    def _tables(self, node: DeviceNode) -> Iterator[int]:
        """Possible addresses in the memory that a node's arguments point at; waits for the device."""
        seen: set[int] = set()
        for address in addresses_of(node) or ():
            buffer = self.context.ledger.owner(address, address + 1)
            if buffer is None or buffer.serial in seen or buffer.nbytes > _TABLES or not still_there(buffer):
                continue
            seen.add(buffer.serial)
            data = self.context.engine.read(buffer.range)
            skip = -buffer.start % 8
            words = np.frombuffer(data[skip : skip + (len(data) - skip) // 8 * 8], dtype=np.uint64)
            yield from words[words > 4096].tolist()
