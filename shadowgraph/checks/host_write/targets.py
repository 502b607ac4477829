"""The memory that copies write: which graphs read it, and what else of a graph may write it.

Called by the check, under the debugger's lock.
"""

from __future__ import annotations

from shadowgraph.checks.base import Context
from shadowgraph.model.device_nodes import BLIND, DeviceNode, NodeKind
from shadowgraph.model.graphs import Graph
from shadowgraph.model.host_copies import HostCopy
from shadowgraph.model.ranges import ByteRange

_KNOWN = 256  # ranges whose readers are remembered
_COPIES = "aten.copy_", "aten._to_copy"


class Readers:
    """The graphs that were given a view of a range, remembered until a graph is captured or dropped."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._of: frozenset[int] = frozenset()
        self._known: dict[ByteRange, tuple[Graph, ...]] = {}

    def of(self, where: ByteRange) -> tuple[Graph, ...]:
        """The graphs."""
        graphs = frozenset(self._context.graphs)
        if graphs != self._of or len(self._known) >= _KNOWN:
            self._of, self._known = graphs, {}
        found = self._known.get(where)
        if found is None:
            found = self._known[where] = tuple(self._context.graphs_on(where))
        return found


def only_written_by(copy: HostCopy, graph: Graph, context: Context) -> bool:
    """Whether nothing else of a graph can have written the target of its copy, and nothing of it the source; False
    where that is not known. Reads the executable graph at the first call."""
    target, source = copy.device, copy.host
    writers = graph.writers(target)
    if len(writers) > 1 or any(not node.launch.name.startswith(_COPIES) for node in writers):
        return False
    for each in graph.host_copies:
        if each is not copy and (each.host.overlaps(source) if each.to_host else each.device.overlaps(target)):
            return False
    nodes = graph.read_nodes
    owner = context.ledger.owner(target.start, target.stop)
    home = owner.range if owner is not None else target
    return nodes is not None and not any(_may_write(node, copy, home) for node in nodes)


def _may_write(node: DeviceNode, copy: HostCopy, home: ByteRange) -> bool:
    """Whether a node may write the source, or one that no launch made the target: it was given a pointer into its
    buffer, or its pointers are not known."""
    if node.index == copy.node:
        return False
    if node.kind is NodeKind.HOST or any(copy.host.contains(word.address) for word in node.words):
        return True
    if node.launch is not None:
        return False
    if node.inner or node.note.startswith(BLIND):
        return True
    if node.kind is NodeKind.KERNEL:
        return any(home.contains(word.address) for word in node.words)
    return any(where.overlaps(copy.device) for where in node.writes)
