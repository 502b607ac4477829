"""The bytes that a graph is known to read before it writes them. Pure functions over the model; any thread."""

from __future__ import annotations

from dataclasses import dataclass

from shadowgraph.graphs.dataflow import surely_reads
from shadowgraph.graphs.dispatch.indexing import takes_indices
from shadowgraph.model.graphs import Graph, Node, Pointer
from shadowgraph.model.ranges import RangeSet
from shadowgraph.tracking.writes import extent

_LOOKUPS = ("embedding", "index_select", "gather", "take", "index.")


@dataclass(frozen=True, slots=True, eq=False)
class Read:
    """A node's read of bytes that no node before it may have written.

    Attributes
    ----------
    bytes_read
        Those bytes.
    picks
        Whether the node reads some of them, by an index: which ones is not known.
    """

    node: Node
    pointer: Pointer
    bytes_read: RangeSet
    picks: bool


def sure_reads(graph: Graph) -> list[Read]:
    """Reads that operators' signatures tell, in launch order. A kernel that was only given a pointer may write the
    bytes, and is not known to read them; nor are the gaps of a view with too many rows."""
    found: list[Read] = []
    written = RangeSet()
    for node in graph.nodes:
        for pointer in node.launch.pointers:
            if surely_reads(node.launch, pointer):
                ranges, gaps = extent(pointer.view)
                first = RangeSet() if gaps else ranges - written
                if first:
                    found.append(Read(node, pointer, first, picks(node.launch.name, pointer.argument)))
        for pointer in node.launch.pointers:
            if pointer.may_write:
                for part in extent(pointer.view)[0]:
                    written.add(part)
    return found


def may_write(graph: Graph) -> RangeSet:
    """Every byte that a node may write."""
    return RangeSet.of(part for _, p in graph.pointers() if p.may_write for part in extent(p.view)[0])


def picks(operator: str, argument: str) -> bool:
    """Whether an operator reads some of an argument's bytes, by an index."""
    looks_up = takes_indices(operator) or any(name in operator for name in _LOOKUPS)
    return looks_up and argument in ("self", "weight", "input", "source")
