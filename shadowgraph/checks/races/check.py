"""SG112: two nodes without an edge between them changed the same bytes, so that the final value is undefined.

The locator calls it after a probed replay, under the debugger's lock.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

from shadowgraph.checks.base import Context
from shadowgraph.checks.culprits import node_at
from shadowgraph.checks.probed import Probed, ProbedCheck, disturbed_parts, draft_of, report_all
from shadowgraph.checks.races import CODE
from shadowgraph.model.buffers import Buffer
from shadowgraph.model.device_nodes import DeviceNode
from shadowgraph.model.graphs import Graph
from shadowgraph.model.probes import Hit
from shadowgraph.model.ranges import ByteRange, RangeSet

_ROUNDS = 3  # probed replays spent on one dispute

_Pair = tuple[int, int, int]  # two nodes, and the serial of a buffer


@dataclass(frozen=True, slots=True)
class Clash:
    """Two hits of nodes that no edge orders, the earlier node first.

    Attributes
    ----------
    where
        The bytes between the extremes of both hits.
    sure
        Whether at least one byte is in both; else their bytes may interleave, like columns of one table.
    """

    first: Hit
    second: Hit
    where: ByteRange
    sure: bool


_Edge = tuple[int, int]  # a node, and one that depends on it


def orders_of(nodes: Sequence[DeviceNode], early: Collection[_Edge] = ()) -> dict[int, int]:
    """For each node, by index, all nodes that certainly have ended before it begins: a set of bits.

    Parameters
    ----------
    early
        Edges whose second node begins once the first one has begun. It still ends after the first one.
    """
    before: dict[int, int] = {}
    ended: dict[int, int] = {}  # with each node's end
    for node in sorted(nodes, key=lambda node: node.index):  # a topological order
        known = over = 0
        for index in node.after:
            first = ended.get(index, 0) | 1 << index
            over |= first
            known |= before.get(index, 0) if (index, node.index) in early else first
        before[node.index], ended[node.index] = known, over
    return before


def early_edges(graph: Graph) -> set[_Edge]:
    """The programmatic edges of a graph that order nothing: the second kernel is known not to wait for the first one,
    which is known to let it begin, by its code or because all blocks of it have begun."""
    nodes = {node.index: node for node in graph.device_nodes}
    found: set[_Edge] = set()
    for node in nodes.values():
        if (node.triggered_by or node.begun_after) and _says(graph, node, "waits") is False:
            released = [index for index in node.triggered_by if _says(graph, nodes.get(index), "releases")]
            found |= {(index, node.index) for index in (*released, *node.begun_after)}
    return found


def _says(graph: Graph, node: DeviceNode | None, what: Literal["waits", "releases"]) -> bool | None:
    """What the code of a node's kernel says; None where it is not known."""
    launch = graph.launch_of(node) if node is not None else None
    code = launch.code if launch is not None else None
    said: bool | None = getattr(code, what) if code is not None else None
    return said


def clashes(nodes: Sequence[DeviceNode], hits: Iterable[Hit], early: Collection[_Edge] = ()) -> Iterator[Clash]:
    """Pairs of hits on one part by nodes with no path between them; `early` as in `orders_of`."""
    by_part: dict[int, list[Hit]] = {}
    for hit in sorted(hits, key=lambda hit: hit.node):
        by_part.setdefault(hit.part, []).append(hit)
    shared = [group for group in by_part.values() if len(group) > 1]
    if not shared:
        return
    before = orders_of(nodes, early)
    for group in shared:
        yield from _clashes_in_part(group, before)


def _clashes_in_part(hits: Sequence[Hit], before: dict[int, int]) -> Iterator[Clash]:
    """Clashes among the hits on one part, which ascend by node."""
    writers = 0
    for place, hit in enumerate(hits):
        free = writers & ~before.get(hit.node, 0)
        writers |= 1 << hit.node
        for earlier in hits[:place] if free else ():
            where = _extent(earlier).intersect(_extent(hit))
            if free >> earlier.node & 1 and earlier.node != hit.node and where is not None:
                yield Clash(earlier, hit, where, _share(earlier, hit))


def _extent(hit: Hit) -> ByteRange:
    return ByteRange(hit.first, hit.last + 1)


def _share(one: Hit, other: Hit) -> bool:
    """Whether two hits certainly have a byte in common, whichever bytes between their extremes they changed."""
    spread = max(one.last, other.last) + 1 - min(one.first, other.first)
    if one.count + other.count > spread or {one.first, one.last} & {other.first, other.last}:
        return True
    for dense, loose in ((one, other), (other, one)):
        full = dense.count == dense.last + 1 - dense.first
        if full and any(dense.first <= edge <= dense.last for edge in (loose.first, loose.last)):
            return True
    return False


def _clashes_seen(seen: Probed) -> Iterator[tuple[Clash, Buffer]]:
    """Clashes in a probed replay with their buffers, the sure ones first; none where other code wrote meanwhile."""
    disturbed = disturbed_parts(partial(node_at, seen.graph), (change.hit for change in seen.changes))
    by_hit = {change.hit: change.buffer for change in seen.changes if change.hit.part not in disturbed}
    found = clashes(seen.graph.device_nodes, by_hit, early_edges(seen.graph))
    for clash in sorted(found, key=lambda c: (not c.sure, c.where.nbytes)):
        if not seen.meanwhile.overlaps(clash.where):
            yield clash, by_hit[clash.second]


@dataclass(slots=True)
class _Dispute:
    """Bytes to compare piece by piece in another replay; `rounds` of these are done."""

    buffer: Buffer
    where: ByteRange
    rounds: int


class Races(ProbedCheck):
    """Checks probed replays for races. Where two write sets may interleave, it requests a probe in pieces."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.disputes: dict[int, dict[_Pair, _Dispute]] = {}  # by graph
        self.pending = self.disputes

    def probed(self, seen: Probed) -> None:
        """Memory was compared after every node of a replay, as a whole or piece by piece."""
        before = self.disputes.pop(seen.graph.serial, {})
        disputes: dict[_Pair, _Dispute] = {}
        shared: dict[_Pair, RangeSet] = {}
        buffers: dict[int, Buffer] = {}
        for clash, buffer in _clashes_seen(seen):
            pair = clash.first.node, clash.second.node, buffer.serial
            if clash.sure:
                buffers[buffer.serial] = buffer
                shared.setdefault(pair, RangeSet()).add(clash.where)
            elif pair not in shared and pair not in disputes:
                rounds = before[pair].rounds + 1 if pair in before else 0
                if rounds < _ROUNDS:
                    disputes[pair] = _Dispute(buffer, clash.where, rounds)
        if disputes:
            self.disputes[seen.graph.serial] = disputes
        sure = "medium" if self.context.engine.asynchronous else "high"  # other streams ran meanwhile
        report_all(  # the later node as culprit, the other as candidate
            self.context,
            (
                draft_of(CODE, self.context, seen, buffers[serial], (second, first), where, where.nbytes, sure)
                for (first, second, serial), where in shared.items()
            ),
        )

    def pieces_wanted(self, graph: int) -> list[tuple[Buffer, ByteRange]]:
        """The bytes to compare piece by piece in a graph's next replay; each once, whatever the number of disputes."""
        merged: dict[int, tuple[Buffer, RangeSet]] = {}
        for dispute in self.disputes.get(graph, {}).values():
            merged.setdefault(dispute.buffer.serial, (dispute.buffer, RangeSet()))[1].add(dispute.where)
        return [(buffer, where) for buffer, ranges in merged.values() for where in ranges]
