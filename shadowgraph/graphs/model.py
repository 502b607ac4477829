"""What a graph is, as pure data: nodes in launch order, what each points at, and the line that launched it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from shadowgraph.tracking.launches import Access, Launch, LaunchKind, Pointer
from shadowgraph.tracking.ranges import ByteRange, RangeSet

__all__ = ["Access", "Graph", "Launch", "LaunchKind", "Node", "Pointer"]


@dataclass(frozen=True, slots=True)
class Node:
    """A launch at its place in a graph."""

    index: int
    launch: Launch


class Graph:
    """A captured graph. Edges are implicit on the host backend: each node follows the one before it.

    Attributes
    ----------
    serial, name
        Number of the capture in this process, and what to call it.
    replays
        Replays begun so far.
    """

    def __init__(self, serial: int, name: str, nodes: Iterable[Node] = ()) -> None:
        self.serial, self.name = serial, name
        self.replays = 0
        self._nodes: list[Node] = list(nodes)
        self._build: Callable[[], list[Node]] | None = None
        self._spans: RangeSet | None = None

    @property
    def nodes(self) -> list[Node]:
        """Every node, in launch order."""
        if self._build is not None:
            build, self._build = self._build, None
            self._nodes = build()
        return self._nodes

    def build_later(self, build: Callable[[], list[Node]]) -> None:
        """Give a function that makes the nodes, called when they are first asked for."""
        self._build, self._spans = build, None

    def pointers(self) -> Iterator[tuple[Node, Pointer]]:
        """Every pointer of every node, in launch order."""
        for node in self.nodes:
            for pointer in node.launch.pointers:
                yield node, pointer

    @property
    def spans(self) -> RangeSet:
        """Every byte that some node was given a view of."""
        if self._spans is None:
            self._spans = RangeSet.of(ByteRange(p.view.start, p.view.stop) for _, p in self.pointers())
        return self._spans

    def captured(self, where: ByteRange) -> list[ByteRange]:
        """The parts of a range that this graph captured views of."""
        return self.spans.intersection(where)

    def touches(self, where: ByteRange) -> bool:
        """Whether any node was given a view of a byte of the range."""
        return bool(self.captured(where))

    def readers(self, where: ByteRange) -> list[Node]:
        """Nodes that may read a byte of the range, in launch order."""
        return self._with(where, lambda pointer: pointer.may_read)

    def writers(self, where: ByteRange) -> list[Node]:
        """Nodes that may write a byte of the range by their signature, in launch order."""
        return self._with(where, lambda pointer: pointer.may_write)

    def _with(self, where: ByteRange, wanted: Callable[[Pointer], bool]) -> list[Node]:
        return [
            node
            for node in self.nodes
            if any(wanted(p) and p.view.start < where.stop and where.start < p.view.stop for p in node.launch.pointers)
        ]
