"""Nodes that may write memory of a pool without a launch that tells: callables, and device nodes of no noted launch.

Called by the check before a report, under the debugger's lock; reads the executable graph at the first call.
"""

from __future__ import annotations

from shadowgraph.model.device_nodes import DeviceNode, Sureness
from shadowgraph.model.graphs import Graph
from shadowgraph.model.launches import LaunchKind
from shadowgraph.model.ranges import ByteRange


def leads_unseen(graph: Graph, where: ByteRange) -> bool:
    """Whether a node may write a range of which that is not known: a callable of the program's, which may write
    anywhere, or a device node without a launch that has an argument which points there."""
    if any(node.launch.kind is LaunchKind.CALLABLE for node in graph.nodes):
        return True
    return any(node.launch is None and _leads(node, where) for node in graph.read_nodes or ())


def _leads(node: DeviceNode, where: ByteRange) -> bool:
    words = any(word.sureness is not Sureness.LOW and where.contains(word.address) for word in node.words)
    inner = any(_leads(each, where) for each in node.inner)
    return words or inner or any(where.overlaps(part) for part in node.writes)
