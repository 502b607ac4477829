"""A captured graph as pure data: nodes in launch order, each with its pointers and the line that launched it.

Nodes are built lazily, on the thread that first asks. `Graph.reading` is held while the executable graph is read,
changed or destroyed; nothing else here takes a lock.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from shadowgraph.common.exception_text import summary
from shadowgraph.common.fork_safety import fork_safe
from shadowgraph.common.html_repr import HtmlRepr
from shadowgraph.common.internal_errors import internal_errors
from shadowgraph.common.words import plural
from shadowgraph.model.buffers import Buffer
from shadowgraph.model.device_nodes import DeviceNode, Sureness, node_of_launch
from shadowgraph.model.host_copies import HostCopy
from shadowgraph.model.launches import Access, Launch, LaunchKind, Pointer
from shadowgraph.model.probes import Probe
from shadowgraph.model.ranges import ByteRange, RangeIndex, RangeSet
from shadowgraph.model.reruns import Experiment

__all__ = ["Access", "Allocation", "Graph", "Launch", "LaunchKind", "Node", "Pointer"]


@dataclass(frozen=True, slots=True)
class Node:
    """A launch at its place in a graph."""

    index: int
    launch: Launch


@dataclass(frozen=True, slots=True)
class Allocation:
    """A tensor that a capture allocated from its pool.

    Attributes
    ----------
    before
        Index of the first node that may use it.
    where
        Its requested bytes.
    serial
        The ledger's serial when it was allocated; where that is not known, when its capture ended.
    dtype, itemsize, shape
        As it was allocated.
    buffer
        Its own entry in the ledger, if there is one.
    """

    before: int
    where: ByteRange
    serial: int
    dtype: str
    itemsize: int
    shape: tuple[int, ...]
    buffer: Buffer | None = None

    @classmethod
    def of(cls, before: int, buffer: Buffer) -> Allocation:
        """The allocation that a buffer of the ledger stands for."""
        return cls(before, buffer.range, buffer.serial, buffer.dtype, buffer.itemsize, buffer.shape, buffer)


class Graph(HtmlRepr):
    """A captured graph.

    Attributes
    ----------
    serial, name
        Number of the capture in this process, and its name.
    replays
        Replays begun.
    inputs
        Buffers allocated before the capture that its launches use, by serial; noted while they lived.
    captured_at
        End of its capture by the debugger's clock; 0 where no debugger was running.
    probe, experiments
        The probe of the next replay, and the runs before it; the backend removes them.
    reading
        Held while the executable graph is read, changed or destroyed.
    unread
        Why the nodes of the executable graph could not be read; empty when they were read, and on the host.
    unlearnt
        Nodes of it that a C function launched have no line: no graph of its runner has such kernels.
    checks_itself
        Every replay is checked by the graph's own nodes, and needs no check from outside.
    check_nodes
        Handles of these nodes of an executable graph; empty on the host.
    began, ended
        The ledger's serials at the begin and at the end of its capture; 0 where that was not seen.
    borrowed
        By node index and storage address: when a storage that owns none of its memory was first seen, by the ledger's
        serials. Known on the host.
    host_copies
        Nodes that copy from or to host memory, with what the driver said of that memory at the end of the capture;
        empty on the host.
    """

    def __init__(self, serial: int, name: str, nodes: Iterable[Node] = ()) -> None:
        self.serial, self.name = serial, name
        self.replays = 0
        self.captured_at = self.began = self.ended = 0
        self.inputs: dict[int, Buffer] = {}
        self.probe: Probe | None = None
        self.experiments: list[Experiment] = []
        self.reading = fork_safe(threading.RLock())
        self.unread = ""
        self.checks_itself = self.unlearnt = False
        self.check_nodes: tuple[int, ...] = ()
        self.host_copies: tuple[HostCopy, ...] = ()
        self._nodes: list[Node] = list(nodes)
        self.borrowed: dict[tuple[int, int], int] = {}
        self._allocations: list[Allocation] = []
        self._build_allocations: Callable[[], list[Allocation]] | None = None
        self._build: Callable[[], list[Node]] | None = None
        self._device: tuple[DeviceNode, ...] | None = None
        self._build_device: Callable[[], tuple[DeviceNode, ...] | None] | None = None
        self._spans: RangeSet | None = None
        self._led: tuple[tuple[DeviceNode, ...], RangeSet] | None = None  # with the nodes that it was built from
        self._index: tuple[int, RangeIndex[tuple[Node, Pointer]]] | None = None  # with the number of nodes

    @property
    def contents(self) -> str:
        """Nodes and replays, in words; builds no nodes."""
        nodes = plural(len(self._nodes), "node") if self._build is None else "nodes not read yet"
        return f"{nodes}, {plural(self.replays, 'replay')}"

    def __repr__(self) -> str:
        return f"<Graph {self.name}: {self.contents}>"

    def note_input(self, buffer: Buffer) -> None:
        """Note a living buffer that the capture uses and did not allocate."""
        buffer.captured = True
        self.inputs[buffer.serial] = buffer

    @property
    def nodes(self) -> list[Node]:
        """Every node, in launch order."""
        if self._build is not None:
            build, self._build = self._build, None
            self._nodes = build()
        return self._nodes

    def build_later(self, build: Callable[[], list[Node]]) -> None:
        """Set the function that builds the nodes, called at their first use."""
        self._build, self._spans, self._index = build, None, None

    @property
    def allocations(self) -> list[Allocation]:
        """The tensors that its capture allocated, in order."""
        if self._build_allocations is not None:
            build, self._build_allocations = self._build_allocations, None
            self._allocations = build()
        return self._allocations

    def build_allocations_later(self, build: Callable[[], list[Allocation]]) -> None:
        """Set the function that builds the allocations, called at their first use."""
        self._build_allocations = build

    def build_device_later(self, build: Callable[[], tuple[DeviceNode, ...] | None]) -> None:
        """Set the function that reads the device nodes, called at their first use; it returns None if it cannot."""
        self._build_device, self._device = build, None

    @property
    def read_nodes(self) -> tuple[DeviceNode, ...] | None:
        """The nodes read from the executable graph, or None where each launch stands for a node."""
        if self._build_device is not None:
            with self.reading:
                if self._build_device is not None:
                    try:
                        self._device = self._build_device()
                    except Exception as error:  # the caller evaluates evidence, and can do without the nodes
                        internal_errors.note("reading of a graph", error)
                        self.unread = summary(error)
                    finally:  # other callers wait meanwhile; a failed read is not repeated
                        self._build_device = None
        return self._device

    @property
    def device_nodes(self) -> tuple[DeviceNode, ...]:
        """The nodes of the executable graph. If it was not read, a chain with one node for each launch."""
        known = self.read_nodes
        if known is not None:
            return known
        return tuple(
            node_of_launch(node.index, node.launch.kind, node.launch.name, node.launch.pointers, node.launch.grid)
            for node in self.nodes
        )

    def launch_of(self, node: DeviceNode) -> Launch | None:
        """The launch that created a device node, if it was seen.

        Parameters
        ----------
        node
            One of `device_nodes`.
        """
        return self.nodes[node.launch].launch if node.launch is not None else None

    def pointers(self) -> Iterator[tuple[Node, Pointer]]:
        """Every pointer of every node, in launch order."""
        for node in self.nodes:
            for pointer in node.launch.pointers:
                yield node, pointer

    def pointing_into(self, where: ByteRange) -> list[tuple[Node, Pointer]]:
        """Every pointer whose view has a byte in a range, in launch order.

        Parameters
        ----------
        where
            Addresses, the last one exclusive.
        """
        if self._index is None or self._index[0] != len(self.nodes):
            views = ((p.view.hull, (node, p)) for node, p in self.pointers())
            self._index = len(self.nodes), RangeIndex((span, pair) for span, pair in views if span.nbytes)
        found = [pair for _, pair in self._index[1].overlapping(where.start, where.stop)]
        return sorted(found, key=lambda pair: pair[0].index)

    @property
    def spans(self) -> RangeSet:
        """Every byte that a captured view covers."""
        if self._spans is None:
            self._spans = RangeSet.of(p.view.hull for _, p in self.pointers())
        return self._spans

    def captured(self, where: ByteRange) -> list[ByteRange]:
        """The parts of a range that captured views of this graph cover.

        Parameters
        ----------
        where
            Addresses, the last one exclusive.
        """
        return self.spans.intersection(where)

    def touches(self, where: ByteRange) -> bool:
        """Whether a captured view of any node covers a byte of a range.

        Parameters
        ----------
        where
            Addresses, the last one exclusive.
        """
        return bool(self.captured(where))

    def leads_into(self, where: ByteRange) -> bool:
        """Whether an argument of a device node points into the range: library code passes pointers that the dispatcher
        does not see. Reads the executable graph at the first call."""
        nodes = self.read_nodes
        if nodes is None:
            return False
        if self._led is None or self._led[0] is not nodes:
            self._led = nodes, RangeSet.of(part for node in nodes for part in _leads(node))
        return self._led[1].overlaps(where)

    def readers(self, where: ByteRange) -> list[Node]:
        """Nodes that may read a byte of a range, in launch order.

        Parameters
        ----------
        where
            Addresses, the last one exclusive.
        """
        return list({node.index: node for node, pointer in self.pointing_into(where) if pointer.may_read}.values())

    def writers(self, where: ByteRange) -> list[Node]:
        """Nodes that may write a byte of a range by their signature, in launch order.

        Parameters
        ----------
        where
            Addresses, the last one exclusive.
        """
        return list({node.index: node for node, pointer in self.pointing_into(where) if pointer.may_write}.values())


def _leads(node: DeviceNode) -> Iterator[ByteRange]:
    """The memory that a node's arguments point to; one byte for an address without a size."""
    yield from (ByteRange(w.address, w.address + 1) for w in node.words if w.sureness is not Sureness.LOW)
    yield from (*node.reads, *node.writes)
    for inner in node.inner:
        yield from _leads(inner)
