"""Validation of a graph's device nodes in a manifest, beyond field types."""

from __future__ import annotations

from collections.abc import Sequence

from shadowgraph.dumps.schema import DEPTH, GraphRecord
from shadowgraph.model.device_nodes import DeviceNode

_MOST = 1 << 64  # upper bound of addresses and program counts
_AXES = 3


def require_nodes(graph: GraphRecord) -> None:
    """Check every index of a graph's device nodes against its list, and every number against its bounds.

    Raises
    ------
    ValueError
        At the first violation.
    """
    if graph.device is not None:
        _require(graph.device, len(graph.nodes), f"graph {graph.serial}", DEPTH)


def _require(nodes: Sequence[DeviceNode], launches: int, where: str, deeper: int) -> None:
    for node in nodes:
        wrong = _wrong(node, len(nodes), launches)
        if wrong is not None:
            raise ValueError(f"device node {node.index} of {where} {wrong}")
        if node.inner:
            if not deeper:
                raise ValueError(f"device nodes of {where} lie deeper inside one another than any")
            _require(node.inner, launches, where, deeper - 1)
    if any(node.index <= before for node in nodes for before in node.after) and _circular(nodes):
        raise ValueError(f"device nodes of {where} wait for one another in a circle")


def _wrong(node: DeviceNode, nodes: int, launches: int) -> str | None:
    """What is wrong with one node, those inside it aside; None where nothing is."""
    if node.launch is not None and not 0 <= node.launch < launches:
        return "names a launch that is not there"
    if not (_is_extent(node.grid) and _is_extent(node.block) and _in_memory(node)):
        return "has numbers that cannot be"
    return None if _within(node.after, nodes) else "waits for a node that is not there"


def _is_extent(numbers: tuple[int, ...] | None) -> bool:
    return numbers is None or (len(numbers) <= _AXES and _within(numbers, _MOST))


def _in_memory(node: DeviceNode) -> bool:
    words = all(_within((word.argument, word.offset, word.address), _MOST) for word in node.words)
    return words and all(each.stop < _MOST for each in (*node.reads, *node.writes))


def _within(numbers: Sequence[int], stop: int) -> bool:
    return min(numbers, default=0) >= 0 and max(numbers, default=-1) < stop


def _circular(nodes: Sequence[DeviceNode]) -> bool:
    """Whether the dependencies of nodes contain a cycle."""
    waits = [len(node.after) for node in nodes]
    followers: list[list[int]] = [[] for _ in nodes]
    for node in nodes:
        for before in node.after:
            followers[before].append(node.index)
    ready = [place for place, count in enumerate(waits) if not count]
    done = 0
    while ready:
        done += 1
        for place in followers[ready.pop()]:
            waits[place] -= 1
            if not waits[place]:
                ready.append(place)
    return done < len(nodes)
