"""Stores that run out of a buffer without guards, found in a launch's own store log. Pure functions."""

from __future__ import annotations

from collections.abc import Iterator

from shadowgraph.model.buffers import Buffer, Ledger
from shadowgraph.model.guards import Side
from shadowgraph.model.ranges import ByteRange, RangeSet
from shadowgraph.tracking.writes import Write


def unguarded_stores(write: Write, ledger: Ledger) -> Iterator[tuple[Buffer, Side, ByteRange]]:
    """Bytes that a launch wrote directly before or after an unguarded buffer it was given.

    Only runs that touch the buffer's edge count, and only where neither another known buffer nor the storage of another
    argument begins: a kernel that follows addresses stored in memory may legitimately write where none of its arguments
    point, and untracked outputs may lie next to a tracked one.
    """
    unguarded = _unguarded(write, ledger) if write.stores is not None else []
    if not unguarded:
        return
    strange = write.ranges - _given(write)
    for buffer in unguarded:
        for side, edge in ((Side.AFTER, buffer.stop), (Side.BEFORE, buffer.start - 1)):
            if edge not in strange or ledger.at(edge) is not None:
                continue
            run = next(run for run in strange if run.contains(edge))
            outside = ByteRange(edge, run.stop) if side is Side.AFTER else ByteRange(run.start, buffer.start)
            yield buffer, side, outside


def _unguarded(write: Write, ledger: Ledger) -> list[Buffer]:
    """The unguarded buffers that a launch was given."""
    owners = (ledger.owner(p.view.start, p.view.stop) for p in write.launch.pointers)
    return list({b.serial: b for b in owners if b is not None and b.nbytes and not b.guarded}.values())


def _given(write: Write) -> RangeSet:
    """The storages that a launch was given."""
    views = (pointer.view for pointer in write.launch.pointers)
    return RangeSet.of(ByteRange(v.storage_address, v.storage_address + v.storage_nbytes) for v in views)
