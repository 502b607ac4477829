"""Details of a host write in flight: the copy's line, and its target under a name.

Called by the finding pipeline, in the thread of the event that reports.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from shadowgraph.checks.base import Context, Detection
from shadowgraph.checks.culprits import node_at
from shadowgraph.checks.host_write.facts import HostWriteDetail
from shadowgraph.checks.successors import memory_at
from shadowgraph.model.graphs import Graph
from shadowgraph.model.host_copies import HostCopy, QueuedCopy
from shadowgraph.model.launches import Launch
from shadowgraph.model.ranges import ByteRange
from shadowgraph.model.stacks import Stack


@dataclass(frozen=True)
class InFlight:
    """The copy that a write was too early for.

    Attributes
    ----------
    compared
        Bytes of it that were compared.
    written_by_torch
        Whether operators were seen to write all bytes that arrived wrong.
    """

    copy: QueuedCopy | HostCopy
    target: ByteRange
    compared: int
    written_by_torch: bool

    @cached_property
    def launch(self) -> Launch | None:
        """The copy of host code."""
        return self.copy.launch() if isinstance(self.copy, QueuedCopy) else None

    @property
    def place(self) -> str:
        """The line of a copy of host code, or the node; one for all sightings of a cause."""
        if isinstance(self.copy, HostCopy):
            return f"node {self.copy.node}"
        stack = self.launch.stack if self.launch is not None else ()
        return f"{stack[0].file}:{stack[0].line}" if stack else ""


def copy_of_node(graph: Graph | None, copy: HostCopy) -> tuple[str, Stack]:
    """The name of a copy node, or of the operator that made it, and the stack where that was."""
    read = graph is not None and graph.read_nodes is not None
    node = node_at(graph, copy.node) if graph is not None and read else None
    if graph is None or node is None:
        return f"node {copy.node}", ()
    launch = graph.launch_of(node)
    return (launch.name, launch.stack) if launch is not None else (node.name, node.stack)


def copy_in_flight(draft: Detection, context: Context) -> HostWriteDetail | None:
    """The details of a detection about a host write in flight, with names; None for any other detection."""
    facts = draft.facts
    if not isinstance(facts, InFlight):
        return None
    copy = facts.copy
    if isinstance(copy, HostCopy):
        name, stack = copy_of_node(draft.graph, copy)
        node, nbytes, view = copy.node, copy.host.nbytes, None
    else:
        launch = copy.launch()
        name, stack, node, nbytes, view = launch.name, launch.stack, None, copy.source.nbytes, copy.target
    return HostWriteDetail(
        copy=name,
        copied_at=stack,
        node=node,
        target=memory_at(facts.target, view, context),
        nbytes=nbytes,
        compared=facts.compared,
        written_by_torch=facts.written_by_torch,
    )
