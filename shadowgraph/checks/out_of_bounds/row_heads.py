"""Rows of a table whose heads were stored twice, where blocks of a row begin in the columns in which rows end.

If rows are a whole number of blocks wide, a block too many is stored exactly where the next row's first block is, and
no run of elements crosses a row's end. What shows it is where elements were stored twice: at the heads of rows that
follow a row which is filled to its end, and nowhere else, so not in the first row, which follows none. Pure functions,
used by `rows`.
"""

from __future__ import annotations

import numpy as np

from shadowgraph.checks.out_of_bounds.table_stores import Ints, Lanes, Table

_ROWS = 2  # with such a head, at least: one row may be written by several programs for another reason


def overrun_heads(lanes: Lanes, disputed: Ints, table: Table) -> list[Ints]:
    """Offsets of the lost elements at the head of each row that was run into, by row; empty where anything else was
    stored twice.

    Parameters
    ----------
    disputed
        Lanes of elements that got different values.
    """
    offsets, times = np.unique(lanes.offsets, return_counts=True)
    twice = offsets[times > 1]
    rows = np.unique(twice // table.stride)
    if table.stride < table.width or times.max() > 2 or rows[0] <= max(0, offsets[0] // table.stride):
        return []
    if rows[-1] >= table.rows or not all(_is_head(row, twice, offsets, table) for row in rows.tolist()):
        return []
    found = [_lost(lanes, disputed, row, table) for row in rows.tolist()]
    found = [each for each in found if each.size]
    return found if len(found) >= _ROWS else []


def _is_head(row: int, twice: Ints, offsets: Ints, table: Table) -> bool:
    """Whether what was stored twice in a row begins it, without gaps or its end, and the row before is filled."""
    start = row * table.stride
    columns = twice[twice // table.stride == row] - start
    head = columns[-1] + table.itemsize
    return bool(columns.size * table.itemsize == head < table.width and np.isin(_end_before(row, table), offsets))


def _lost(lanes: Lanes, disputed: Ints, row: int, table: Table) -> Ints:
    """The elements at a row's head of which one value or the other is lost, but not what a program overwrote in passing
    from the row before to this one."""
    here = disputed[lanes.offsets[disputed] // table.stride == row]
    order = here[np.lexsort((here, lanes.offsets[here]))]
    one, other = order[::2], order[1::2]
    end = np.flatnonzero(lanes.offsets == _end_before(row, table))[-1]
    alone = (lanes.program_of(one) == lanes.program_of(other)) & (lanes.stores[one] != lanes.stores[other])
    passing = alone & (lanes.program_of(one) == lanes.programs[lanes.stores[end]]) & (end < one)
    lost: Ints = lanes.offsets[one[~passing]]
    return lost


def _end_before(row: int, table: Table) -> int:
    """Offset of the last element of the row before."""
    return (row - 1) * table.stride + table.width - table.itemsize
