"""Write maps as text and JSON: one line for a buffer with the nodes that write it, the strongest evidence first."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
from rich.text import Text

from shadowgraph.checks.row_epochs import stretches
from shadowgraph.common.words import form, plural, size
from shadowgraph.render.text.shown import Reporter, said
from shadowgraph.views.map_places import by, reach
from shadowgraph.views.map_rows import Fold, rows_of
from shadowgraph.views.memory_map import MapBuffer, MapDamage
from shadowgraph.views.write_map import Sure, WriteMap

SCHEMA = "shadowgraph.writes/1"
_MOST = 12  # stretches of nodes on one line
_SAID = {Sure.SEEN: "seen to write it", Sure.SIGNATURE: "write it by signature", Sure.GIVEN: "given it"}


class DumpedWrites(msgspec.Struct, frozen=True):
    """The write map of one process."""

    pid: int
    dump: str
    map: WriteMap


class WritesReport(Reporter):
    """Write maps, ready to be shown. Holds data only.

    Parameters
    ----------
    limit
        Buffers with lines of their own; damaged ones keep theirs beyond it.
    """

    schema = SCHEMA

    def __init__(self, maps: Sequence[DumpedWrites], limit: int) -> None:
        self.maps, self.limit = tuple(maps), limit

    def document(self) -> dict[str, Any]:
        return {"maps": self.maps}

    def lines(self, width: int | None = None) -> Iterator[Text]:
        """Every line."""
        for place, each in enumerate(self.maps):
            if place:
                yield Text()
            yield from _map(each, self.limit)


def _map(each: DumpedWrites, limit: int) -> Iterator[Text]:
    map = each.map
    buffers = map.memory.buffers
    counts = f"{plural(len(map.nodes), 'node')}, {plural(len(buffers), 'buffer')}; {map.counted}"
    yield said(f"writes of {map.graph} of process {each.pid}: {counts}", "bold")
    if map.unread:
        yield said(f"  launches, since the nodes are not known: {map.unread}", "dim")
    nodes = _nodes_by_buffer(map)
    for row in rows_of(map.memory, limit):
        if isinstance(row, Fold):
            yield said(f"  ... {plural(row.count, 'buffer')}, {size(row.nbytes)}", "dim")
            continue
        buffer = buffers[row.index]
        yield said(f"  {buffer.name}  {form(buffer.dtype, buffer.shape)}  {size(buffer.nbytes)}{_fate(buffer)}", "bold")
        for sure in Sure:
            known = nodes.get((row.index, sure))
            if known:
                yield said(f"      {_SAID[sure]}: {_nodes(map, known)}")
        for mark in map.marks:
            damage = map.memory.damages[mark.damage]
            if damage.buffer == row.index:
                yield said(f"      {_damage(damage, buffer, mark.sure)}", "red")


def _nodes_by_buffer(map: WriteMap) -> Mapping[tuple[int, Sure], set[int]]:
    nodes: dict[tuple[int, Sure], set[int]] = defaultdict(set)
    for write in map.writes:
        nodes[write.buffer, write.sure].add(write.node)
    return nodes


def _damage(damage: MapDamage, buffer: MapBuffer, sure: bool) -> str:
    perhaps = "" if sure else ", perhaps"
    return f"#{damage.finding} {damage.code}: {reach(damage, buffer)}{by(damage)}{perhaps} {damage.when}"


def _fate(buffer: MapBuffer) -> str:
    return "" if buffer.alive else ", freed"


def _nodes(map: WriteMap, known: Iterable[int]) -> str:
    """``nodes 0, 2 to 5``; a single node with its name and line."""
    spans = list(stretches(sorted(known)))
    if len(spans) == 1 and spans[0][0] == spans[0][1]:
        node = map.nodes[spans[0][0]]
        at = f" at {node.where}" if node.where else ""
        return f"node {node.place} {node.name}{at}"
    parts = [
        map.nodes[first].place if first == last else f"{map.nodes[first].place} to {map.nodes[last].place}"
        for first, last in spans
    ]
    more = f" and {len(parts) - _MOST:,} more stretches" if len(parts) > _MOST else ""
    return f"nodes {', '.join(parts[:_MOST])}{more}"
