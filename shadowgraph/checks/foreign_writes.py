"""SG106: a node changed bytes of a buffer that none of its arguments leads into, as an index far out of range does."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np

from shadowgraph.checks.base import Context
from shadowgraph.checks.probed import Probed, draft_of
from shadowgraph.culprits import node_at
from shadowgraph.graphs.device_nodes import DeviceNode, NodeKind
from shadowgraph.graphs.probe import Hit
from shadowgraph.tracking.foreign import still_there
from shadowgraph.tracking.ranges import ByteRange, RangeSet

_TABLES = 1 << 20  # largest buffer that is looked through for addresses
_OPEN = (NodeKind.HOST, NodeKind.CONDITIONAL, NodeKind.OTHER)  # nothing says where they may write
_EXACT = (NodeKind.MEMCPY, NodeKind.MEMSET)
_IDLE = (NodeKind.EMPTY, NodeKind.EVENT, NodeKind.ALLOC, NodeKind.FREE)


def foreign_hits(
    nodes: Callable[[int], DeviceNode | None],
    parts: Mapping[int, ByteRange],
    hits: Iterable[Hit],
    kin: Callable[[ByteRange], Iterable[ByteRange]],
    tables: Callable[[DeviceNode], Iterable[int]],
) -> Iterator[Hit]:
    """The hits on parts into which no argument of the node leads.

    A node of which not all arguments are known, or that runs host code, may write anywhere and is never named. Where a
    node that writes nothing, or not there, seems to have changed a part, somebody else wrote it during the replay, and
    no node is named for that part.

    Parameters
    ----------
    nodes
        The node with an index.
    parts
        Buffers, by `Hit.part`.
    kin
        Buffers that share bytes with a range.
    tables
        More addresses that lead on from a node's arguments: those in the memory that they point at.
    """
    hits = list(hits)
    disturbed = {hit.part for hit in hits if _is_elsewhere(nodes(hit.node), hit)}
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
    """Every address among a node's arguments, inner nodes included; None where they do not say where it may write."""
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


def _is_elsewhere(node: DeviceNode | None, hit: Hit) -> bool:
    """Whether a node cannot have changed what it seems to have changed."""
    if node is None or node.kind in _IDLE:
        return True
    written = ByteRange(hit.first, hit.last + 1)
    return node.kind in _EXACT and bool(node.writes) and not any(where.covers(written) for where in node.writes)


def _leads(addresses: Iterable[int], home: Sequence[ByteRange]) -> bool:
    return any(where.contains(address) for address in addresses for where in home)


class ForeignWrites:
    """Judges probed replays."""

    def __init__(self, context: Context) -> None:
        self.context = context

    def probed(self, seen: Probed) -> None:
        """All tracked memory was looked at after every node of a replay."""
        by_hit = {change.hit: change for change in seen.changes}
        parts = {hit.part: change.buffer.range for hit, change in by_hit.items()}
        for hit in foreign_hits(lambda index: node_at(seen.graph, index), parts, by_hit, self._kin, self._tables):
            change = by_hit[hit]
            if not seen.meanwhile.overlaps(change.extent):
                sure = "medium" if self.context.engine.asynchronous else "high"  # other streams went on meanwhile
                where = RangeSet.of([change.extent])
                self.context.report(
                    draft_of("SG106", self.context, seen, change.buffer, (hit.node,), where, hit.count, sure)
                )

    def _kin(self, where: ByteRange) -> list[ByteRange]:
        return [buffer.range for buffer in self.context.ledger.overlapping(where.start, where.stop)]

    def _tables(self, node: DeviceNode) -> Iterator[int]:
        """What could be addresses in the memory that a node's arguments point at; waits for the device."""
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
