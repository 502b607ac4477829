"""Culprits among the nodes of a replayed graph that no noted launch made: kernels that C functions launched.

A write past a buffer's end cannot be told from signatures: an operator of torch's own that was given the buffer stays
within it, while a kernel's stores are not known. Until a replay is probed, which may never come, such a kernel is a
likelier culprit than the operator.

Called by `FindingPipeline`, in the thread of the event that led to the detection. The graph's nodes are read at the
first call, under the lock `Graph.reading`; takes no other.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice

from msgspec.structs import replace as changed

from shadowgraph.checks.base import Context, Detection
from shadowgraph.checks.culprits import culprit_of_node
from shadowgraph.checks.out_of_bounds import CODE
from shadowgraph.model.device_nodes import DeviceNode, NodeKind, Sureness
from shadowgraph.model.findings import Culprit, Status
from shadowgraph.model.graphs import Graph, Launch
from shadowgraph.model.launches import LaunchKind
from shadowgraph.model.phases import Phase
from shadowgraph.model.ranges import ByteRange

_MOST = 8


def with_unnoted_nodes(draft: Detection, context: Context) -> Detection:
    """An overrun by a replay with the kernels that were given the buffer and that no noted launch made, where no other
    kernel is suspected and no culprit is known."""
    graph = draft.graph
    if graph is None or draft.code != CODE or draft.phase is not Phase.REPLAY or draft.located:
        return draft
    known = any(not (write.opaque or write.hull) for write in draft.culprits)
    kernels = any(not _is_torchs(write.launch) for write in draft.culprits)
    if known or kernels or not context.engine.asynchronous:
        return draft
    found = tuple(islice(_culprits(draft, graph, context), _MOST))
    return replace(draft, unnoted=found) if found else draft


def _is_torchs(launch: Launch) -> bool:
    """Whether a launch is an operator of torch's own: those of other libraries may write anywhere."""
    return launch.kind is LaunchKind.ATEN and launch.name.startswith("aten.")


def _culprits(draft: Detection, graph: Graph, context: Context) -> Iterator[Culprit]:
    """The latest first."""
    home, damage = draft.buffer.range, ByteRange(draft.first, draft.last + 1)
    for node in reversed(graph.read_nodes or ()):
        # One without a line was not attributed at all: it may be an operator's.
        if node.launch is None and node.stack and node.kind is NodeKind.KERNEL and _is_given(node, home):
            made = culprit_of_node(graph, node.index, 0, home, damage, context.ledger, context.names)
            yield changed(made, status=Status.CANDIDATE, seen_in=None)


def _is_given(node: DeviceNode, home: ByteRange) -> bool:
    return any(word.sureness is not Sureness.LOW and home.contains(word.address) for word in node.words)
