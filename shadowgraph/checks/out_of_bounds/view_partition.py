"""Partition of a buffer into cells, cut where the views begin and end that a graph's launches may write.

Pure functions, used by the locator to select ranges, and by the checks of write sets.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from shadowgraph.model.buffers import Buffer
from shadowgraph.model.graphs import Graph
from shadowgraph.model.launches import RESULT, Launch, Pointer
from shadowgraph.model.ranges import ByteRange, RangeSet
from shadowgraph.model.views import TensorView

CELLS = 256  # most cells of a buffer; a buffer with more is not cut
_RUNS = 64  # most runs of one view; a view with more counts with its gaps


def given(launch: Launch, buffer: Buffer) -> tuple[Pointer, ...]:
    """The pointers of a launch into a buffer that it may write.

    Only views of the buffer's own allocation: bytes that belonged to another one then may be reused by now.
    """
    return tuple(pointer for pointer in launch.pointers if _is_of(pointer, buffer))


def runs_of(view: TensorView) -> list[ByteRange]:
    """The bytes of a view without the gaps between them."""
    return view.ranges(_RUNS) or [view.hull]


def cells_of(graph: Graph, buffer: Buffer) -> list[ByteRange]:
    """The pieces of a buffer that no view of a launch ends inside of; empty where every launch was given the whole
    buffer."""
    views = {p.view for _, p in graph.pointing_into(buffer.range) if _is_of(p, buffer)}
    edges = {edge for view in views for run in runs_of(view) for edge in (run.start, run.stop)}
    if not edges - {buffer.start, buffer.stop} or len(edges) > CELLS:
        return []
    cuts = sorted({buffer.start, buffer.stop, *edges})
    return [ByteRange(start, stop) for start, stop in pairwise(cuts)]


def own_of(pointers: tuple[Pointer, ...]) -> RangeSet:
    """Every byte of some views."""
    return RangeSet.of(_runs(pointers))


def writable(launch: Launch, pointers: tuple[Pointer, ...], buffer: Buffer) -> RangeSet:
    """Every byte that a launch may write through the given pointers into a buffer.

    An operator that allocated its result may have written the whole allocation before it cut the result out of it:
    losses are computed element by element, then reduced and shrunk to one.
    """
    if any(pointer.argument == RESULT and _is_fresh(launch, pointer) for pointer in pointers):
        return RangeSet.of([buffer.range])
    return own_of(pointers)


def _is_fresh(launch: Launch, result: Pointer) -> bool:
    """Whether no argument of a launch has the storage of its result."""
    storage = result.view.storage_address
    return all(p.argument == RESULT or p.view.storage_address != storage for p in launch.pointers)


def _runs(pointers: tuple[Pointer, ...]) -> Iterator[ByteRange]:
    for pointer in pointers:
        yield from runs_of(pointer.view)


def _is_of(pointer: Pointer, buffer: Buffer) -> bool:
    view = pointer.view
    alike = view.storage_address == buffer.start and view.storage_nbytes == buffer.nbytes
    return alike and pointer.may_write and view.nbytes > 0 and view.device == buffer.device
