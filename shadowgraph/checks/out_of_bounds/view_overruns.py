"""Nodes that changed bytes of a buffer outside the views that they were given, and whether that is an error.

A kernel gets a pointer, not a view: a kernel given ``table[0]`` and a stride may intend to write every row. An operator
of torch writes only its outputs. A kernel's write is an error only where it continued over the end of its view, without
a gap, into the range that another launch of the same kernel was given in the same place and wrote as its own. Pure
functions, used by `GivenViews`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from shadowgraph.checks.culprits import node_at
from shadowgraph.checks.out_of_bounds.view_partition import given, writable
from shadowgraph.checks.probed import CellChange, disturbed_parts
from shadowgraph.model.buffers import Buffer
from shadowgraph.model.device_nodes import DeviceNode, NodeKind
from shadowgraph.model.findings import Severity
from shadowgraph.model.graphs import Graph
from shadowgraph.model.launches import Launch, LaunchKind, Pointer
from shadowgraph.model.ranges import ByteRange, RangeSet

_OPEN = (NodeKind.HOST, NodeKind.CONDITIONAL, NodeKind.CHILD, NodeKind.OTHER)  # node kinds whose targets are unknown


@dataclass(frozen=True, slots=True)
class ViewOverrun:
    """Changes that one node made in one buffer outside the views it was given.

    Attributes
    ----------
    name
        Name of the launch.
    own
        The pointers into the buffer that it was given.
    outside
        Its changes in cells outside these views.
    theirs
        Changes in these cells by launches that were given them, by cell.
    by_signature
        Whether its signature says that it writes nowhere else.
    """

    node: int
    name: str
    buffer: Buffer
    own: tuple[Pointer, ...]
    outside: tuple[CellChange, ...]
    theirs: dict[ByteRange, tuple[CellChange, ...]]
    severity: Severity
    by_signature: bool = False


@dataclass(frozen=True, slots=True)
class _Writer:
    """A node that changed a buffer of which its launch was given a part."""

    node: int
    launch: Launch
    own: tuple[Pointer, ...]
    covered: RangeSet
    changes: tuple[CellChange, ...]

    @property
    def outside(self) -> tuple[CellChange, ...]:
        return tuple(change for change in self.changes if not self.covered.overlaps(change.cell))

    @property
    def inside(self) -> tuple[CellChange, ...]:
        return tuple(change for change in self.changes if self.covered.overlaps(change.cell))


def view_overruns(graph: Graph, cells: Sequence[CellChange]) -> Iterator[ViewOverrun]:
    """Changes outside the given views, in order of nodes; changes that seem intended are left out."""
    nodes = partial(node_at, graph)
    disturbed = disturbed_parts(nodes, (change.hit for change in cells))
    by_buffer: dict[int, list[CellChange]] = {}
    for change in cells:
        if change.hit.part not in disturbed:
            by_buffer.setdefault(change.buffer.serial, []).append(change)
    for changes in by_buffer.values():
        writers = list(_writers(graph, nodes, changes))
        for writer in writers:
            if writer.outside:
                yield from _judged(changes[0].buffer, writer, writers)


def _writers(
    graph: Graph, nodes: Callable[[int], DeviceNode | None], changes: Iterable[CellChange]
) -> Iterator[_Writer]:
    by_node: dict[int, list[CellChange]] = {}
    for change in changes:
        by_node.setdefault(change.hit.node, []).append(change)
    for index in sorted(by_node):
        node, made = nodes(index), by_node[index]
        launch = graph.launch_of(node) if node is not None and node.kind not in _OPEN else None
        own = given(launch, made[0].buffer) if launch is not None else ()
        if launch is not None and own and launch.kind is not LaunchKind.CALLABLE:
            yield _Writer(index, launch, own, writable(launch, own, made[0].buffer), tuple(made))


def _judged(buffer: Buffer, writer: _Writer, writers: Sequence[_Writer]) -> Iterator[ViewOverrun]:
    node, name = writer.node, writer.launch.name
    if is_of_torch(writer.launch):
        yield ViewOverrun(node, name, buffer, writer.own, writer.outside, {}, Severity.ERROR, by_signature=True)
        return
    run = _gone_on(writer)
    theirs = {change.cell: _as_their_own(writer, writers, change.cell) for change in run}
    lost = tuple(change for change in run if theirs[change.cell])
    if lost:
        yield ViewOverrun(node, name, buffer, writer.own, lost, theirs, Severity.ERROR)
    elif not _looks_meant(writer, run, buffer):
        yield ViewOverrun(node, name, buffer, writer.own, writer.outside, {}, Severity.NOTE)


def is_of_torch(launch: Launch) -> bool:
    """Whether a launch is an operator of torch, whose signature tells all its writes."""
    return launch.kind is LaunchKind.ATEN and launch.name.startswith("aten.")


def _gone_on(writer: _Writer) -> tuple[CellChange, ...]:
    """Changes outside that continue, without a gap, changes inside, over one cell's end into the next."""
    size = max(pointer.view.itemsize for pointer in writer.own)  # of a stored value perhaps only one byte changes
    known, found = list(writer.inside), list[CellChange]()
    left = list(writer.outside)
    while known:
        last = known.pop()
        for change in [one for one in left if _adjoins(last, one, size)]:
            left.remove(change)
            known.append(change)
            found.append(change)
    return tuple(sorted(found, key=lambda change: change.cell.start))


def _adjoins(one: CellChange, other: CellChange, size: int) -> bool:
    low, high = sorted((one, other), key=lambda change: change.cell.start)
    edge = high.cell.start
    return low.cell.stop == edge and low.hit.last >= edge - size and high.hit.first < edge + size


def _as_their_own(writer: _Writer, writers: Sequence[_Writer], cell: ByteRange) -> tuple[CellChange, ...]:
    """Changes in a cell by other launches of the same kernel that were given it in the same place."""
    found = []
    for other in writers:
        alike = other.node != writer.node and other.launch.name == writer.launch.name
        if alike and other.covered.overlaps(cell) and _same_place(writer, other):
            found += [change for change in other.changes if change.cell == cell]
    return tuple(found)


def _same_place(writer: _Writer, other: _Writer) -> bool:
    """Whether two launches were given different parts of one table, cut the same way, as the same arguments."""

    def forms(which: _Writer) -> list[tuple[object, ...]]:
        return [(p.argument, p.view.shape, p.view.stride, p.view.dtype) for p in which.own]

    apart = not any(other.covered.overlaps(run) for run in writer.covered)
    return apart and forms(writer) == forms(other)


def _looks_meant(writer: _Writer, run: Sequence[CellChange], buffer: Buffer) -> bool:
    """Whether a kernel may have been given a base pointer, with strides to walk on from there.

    Not if its view has as many dimensions as the buffer and is a part of it, nor if it continued from its view and
    ended inside the next one.
    """
    if any(len(pointer.view.shape) == len(buffer.shape) for pointer in writer.own):
        return False
    size = max(pointer.view.itemsize for pointer in writer.own)
    highest = max(writer.inside, key=lambda change: change.cell.start, default=None)
    for change in run:
        above = highest is not None and change.cell.start > highest.cell.start
        whole = change.hit.last >= change.cell.stop - size if above else change.hit.first < change.cell.start + size
        if not whole:
            return False
    return True
