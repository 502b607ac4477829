"""Liveness of the buffers that a graph did not allocate: read before they are written (live-in), or only written.

Buffers that the graph allocated itself are *internal*: they may be freed while the graph lives, and are skipped here.
Pure functions over the model.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import groupby

from shadowgraph.model.buffers import Buffer, Role
from shadowgraph.model.graphs import Access, Graph, Node, Pointer
from shadowgraph.model.ranges import ByteRange, RangeIndex, RangeSet
from shadowgraph.tracking.writes import extent


@dataclass(frozen=True, slots=True, eq=False)
class Use:
    """A graph's use of a buffer that it did not allocate.

    Attributes
    ----------
    node, pointer
        The first node that reads bytes that no node has written before; for a buffer that is only written, the first
        writer.
    live_in
        Whether the graph reads the buffer before it writes it; else it is *external-out*.
    """

    buffer: Buffer
    node: Node
    pointer: Pointer
    live_in: bool


@dataclass(slots=True)
class _Written:
    node: Node
    pointer: Pointer
    ranges: RangeSet


def uses_of(graph: Graph) -> list[Use]:
    """Uses of the buffers in `Graph.inputs`, in order of allocation.

    A pointer that may be read counts as read, also where that is not known. Bytes count as written before only where an
    operator certainly overwrites them.
    """
    index = RangeIndex((buffer.range, buffer) for buffer in _outside(graph))

    @cache
    def stored_in(start: int, nbytes: int) -> list[Buffer]:
        return [buffer for _, buffer in index.overlapping(start, start + nbytes)]

    found: dict[int, Use] = {}
    written: dict[int, _Written] = {}
    for node, pointer in _reads_first(graph):
        view = pointer.view
        for buffer in stored_in(view.storage_address, view.storage_nbytes):
            if buffer.serial not in found and buffer.range.overlaps(view.hull):
                _note(node, pointer, buffer, found, written)
    for serial, first in written.items():
        if serial not in found:
            found[serial] = Use(graph.inputs[serial], first.node, first.pointer, False)
    return sorted(found.values(), key=lambda use: use.buffer.serial)


def _outside(graph: Graph) -> list[Buffer]:
    """Buffers that a graph was given and did not allocate, and of whose end something is known."""
    given = (buffer for buffer in graph.inputs.values() if buffer.nbytes and not buffer.alias)
    return [buffer for buffer in given if not (buffer.role is Role.POOL and buffer.graph == graph.serial)]


def _note(node: Node, pointer: Pointer, buffer: Buffer, found: dict[int, Use], written: dict[int, _Written]) -> None:
    """Enter what a pointer does to a buffer whose first use is not known yet."""
    before = written.get(buffer.serial)
    if pointer.may_read and not _is_covered(pointer, buffer, before):
        found[buffer.serial] = Use(buffer, node, pointer, True)
    elif pointer.may_write and before is None:
        written[buffer.serial] = before = _Written(node, pointer, RangeSet())
    if before is not None and pointer.access is Access.WRITE:
        _add(before.ranges, pointer)


def captured_bytes(graph: Graph, buffer: Buffer) -> ByteRange:
    """From the first to the last byte of a buffer that the graph was given."""
    hulls = [hull for _, p in graph.pointing_into(buffer.range) if (hull := p.view.hull.intersect(buffer.range))]
    return ByteRange(min(hull.start for hull in hulls), max(hull.stop for hull in hulls)) if hulls else buffer.range


def _reads_first(graph: Graph) -> Iterator[tuple[Node, Pointer]]:
    """Every pointer in launch order; within a node, reads before writes."""
    for _, pairs in groupby(graph.pointers(), key=lambda pair: pair[0].index):
        yield from sorted(pairs, key=lambda pair: not pair[1].may_read)


def _is_covered(pointer: Pointer, buffer: Buffer, before: _Written | None) -> bool:
    """Whether all bytes that a pointer may read were written in the graph before."""
    if before is None or not before.ranges:
        return False
    read = [part for each in extent(pointer.view)[0] if (part := each.intersect(buffer.range))]
    return not (RangeSet.of(read) - before.ranges)


def _add(written: RangeSet, pointer: Pointer) -> None:
    ranges, gaps = extent(pointer.view)
    for part in ranges if not gaps else ():
        written.add(part)
