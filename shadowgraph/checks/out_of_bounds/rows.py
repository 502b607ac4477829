"""Rows of a 2-D view that a launch's programs wrote past the end of.

A kernel that is given a whole table may run from one row into the next without leaving the allocation, where there is
no guard. Its stores show it, once it is known which row each of them belongs to: by the grid axis that walks the rows,
by a part of a flattened index, or by the stretches of elements that were written. What a row's stores wrote beyond its
declared width ran into the neighbouring row. Pure functions.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from shadowgraph.checks.out_of_bounds.facts import RowOverrun
from shadowgraph.checks.out_of_bounds.row_heads import overrun_heads
from shadowgraph.checks.out_of_bounds.row_programs import rows_by_axis, rows_by_flat_index
from shadowgraph.checks.out_of_bounds.row_runs import rows_by_runs
from shadowgraph.checks.out_of_bounds.table_stores import (
    Bools,
    Ints,
    Lanes,
    Table,
    contested,
    lanes_of,
    last_by_offset,
    table_of,
)
from shadowgraph.model.ranges import ByteRange, RangeSet
from shadowgraph.model.views import TensorView
from shadowgraph.tracking.stores import StoreLog

_DISPUTED = 1 << 18  # lanes of elements that got different values; with more, a launch takes too long to judge


@dataclass(frozen=True, slots=True)
class TableOverruns:
    """Rows of a table that were overrun in one launch.

    Attributes
    ----------
    lost
        The bytes of elements that are lost.
    """

    rows: tuple[RowOverrun, ...] = ()
    lost: RangeSet = field(default_factory=RangeSet)


_NONE = TableOverruns()


def row_overruns(log: StoreLog, view: TensorView, around: ByteRange) -> tuple[RowOverrun, ...]:
    """The rows of `table_overruns`."""
    return table_overruns(log, view, around).rows


def table_overruns(log: StoreLog, view: TensorView, around: ByteRange) -> TableOverruns:
    """Rows that were overrun in one launch; none where the stores do not show which row they belong to, or where the
    log keeps ranges only.

    Elements that any program reached by an atomic are never lost: programs that combine their values in one place do so
    intentionally.

    Parameters
    ----------
    view
        The table as the launch was given it.
    around
        Bytes that belong to the table's allocation, its guards included.
    """
    table = table_of(view)
    stores = log.within(around) if table is not None else []
    if table is None or {store.itemsize for store in stores} != {view.itemsize}:  # no stores either
        return _NONE
    lanes = lanes_of(stores, view.start)
    by_axis = rows_by_axis(lanes, table)
    if by_axis is not None and by_axis[1]:
        return _overruns(lanes, by_axis[0], table, view.start)
    found = _losses(lanes, table, log.any_atomic, view.start)
    if found.rows or by_axis is None:
        return found
    return _overruns(lanes, by_axis[0], table, view.start)


def stored_twice(log: StoreLog, where: ByteRange) -> bool:
    """Whether any element of a range was stored twice, so that one may be lost."""
    stored = sum(store.addresses.size * store.itemsize for store in log.within(where))
    return stored > sum(part.nbytes for part in log.ranges.intersection(where))


def overwritten(log: StoreLog, where: ByteRange) -> tuple[bytes, bytes] | None:
    """What a launch stored in a range before it stored another value there, and what it left there; None where some
    element of the range did not get two values.

    Parameters
    ----------
    where
        Whole elements.
    """
    before, last = dict[int, bytes](), dict[int, bytes]()
    for store in log.within(where):
        for address, value in zip(store.addresses.tolist(), store.values, strict=True):
            stored = value.tobytes()
            if last.get(address, stored) != stored:
                before[address] = last[address]
            last[address] = stored
    found = sorted(before)
    pieces = b"".join(before[at] for at in found), b"".join(last[at] for at in found)
    whole = found[:1] == [where.start] and all(len(piece) == where.nbytes for piece in pieces)
    return pieces if whole else None


def _losses(lanes: Lanes, table: Table, atomics: bool, start: int) -> TableOverruns:
    """Overruns of a launch of which no grid axis walks the rows, or each of its programs several of them: told only
    where elements are lost."""
    disputed = contested(lanes)
    if not 0 < disputed.size <= _DISPUTED:
        return _NONE
    rows = rows_by_flat_index(lanes, disputed, table)
    found = _overruns(lanes, rows, table, start) if rows is not None else _NONE
    if found.lost or atomics:  # with which programs may wait for each other
        return found if found.lost else _NONE
    rows = rows_by_runs(lanes, disputed, table)
    by_runs = _overruns(lanes, rows, table, start) if rows is not None else _NONE
    by_heads = _heads(overrun_heads(lanes, disputed, table), table, start)
    return max(_NONE, by_runs, by_heads, key=lambda each: each.lost.nbytes)


def _heads(heads: list[Ints], table: Table, start: int) -> TableOverruns:
    """Overruns of which is known only what they share with the heads of the next rows."""
    width = table.width // table.itemsize
    rows = [int(head[0]) // table.stride for head in heads]
    told = (
        RowOverrun(row - 1, width, head.size, head.size, (row,), table.rows)
        for row, head in zip(rows, heads, strict=True)
    )
    return TableOverruns(tuple(told), _ranges(heads, table, start))


def _ranges(offsets: Iterable[Ints], table: Table, start: int) -> RangeSet:
    elements = (at for some in offsets for at in some.tolist())
    return RangeSet.of(ByteRange(start + at, start + at + table.itemsize) for at in elements)


def _overruns(lanes: Lanes, rows: Ints, table: Table, start: int) -> TableOverruns:
    past = np.unique(rows[(lanes.offsets >= rows * table.stride + table.width) & (rows >= 0) & (rows < table.rows)])
    found = [_overrun(lanes, rows, row, table) for row in past.tolist()]
    return TableOverruns(tuple(row for row, _ in found), _ranges((lost for _, lost in found), table, start))


def _overrun(lanes: Lanes, rows: Ints, row: int, table: Table) -> tuple[RowOverrun, Ints]:
    """What was written past the end of a row, and the offsets of the elements that are lost."""
    past = np.flatnonzero((rows == row) & (lanes.offsets >= row * table.stride + table.width))
    there = np.flatnonzero(np.isin(lanes.offsets, lanes.offsets[past]))
    written, own = last_by_offset(lanes, past)
    met, others = last_by_offset(lanes, there[rows[there] != row])
    final = last_by_offset(lanes, there)[1]
    place = np.searchsorted(written, met)
    lost = met[_are_lost(lanes, own[place], others, final[place], table)]
    lost = np.setdiff1d(lost, lanes.offsets[there[lanes.atomic[there]]])
    into = tuple(np.unique(np.minimum(written // table.stride, table.rows)).tolist())
    told = RowOverrun(row, table.width // table.itemsize, written.size, lost.size, into, table.rows)
    return told, lost


def _are_lost(lanes: Lanes, own: Ints, others: Ints, final: Ints, table: Table) -> Bools:
    """Whether elements are lost that a row's stores wrote past its end, and others as well.

    Between programs, and in one store, one of the two rows loses inside the table, whichever ran last; past its end
    only the one that ran first. A program that stores one row after the other loses what it overwrites of a row.
    """
    one_after_other = (lanes.program_of(own) == lanes.program_of(others)) & (lanes.stores[own] != lanes.stores[others])
    survives = one_after_other & (own < others)
    inside = lanes.offsets[own] < table.nbytes
    lost: Bools = lanes.differ(own, others) & ~survives & (inside | lanes.differ(final, own))
    return lost
