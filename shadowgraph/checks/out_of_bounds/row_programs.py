"""Assigns the stores of a launch to rows by its grid: which index, or part of a flattened index, walks the rows.

If the programs with index k on one grid axis start in row k for every k, that axis walks the rows. In a flattened grid
a part of the index does: its remainder or its quotient by some number, if the other part gives the distance into the
row. Pure functions, used by `rows`.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from shadowgraph.checks.out_of_bounds.table_stores import Ints, Lanes, Table, overlap_in_a_row

_TRIED = 256  # numbers that the index of a flattened grid is divided by


def rows_by_axis(lanes: Lanes, table: Table) -> tuple[Ints, bool] | None:
    """The row of each lane by the grid axis that walks the rows, and whether each of its indices stands for one row
    alone; None where no axis walks them."""
    walking = [rows for rows in lanes.grid.T if _walks(lanes, rows, table)]
    if not walking:
        return None
    # Blocks as wide as a row start where rows do, so that their axis looks the same; there are more rows than blocks.
    rows = max(walking, key=lambda each: np.unique(each).size)[lanes.stores]
    return rows, _begins_in_its_row(lanes, rows, table)


def _walks(lanes: Lanes, rows: Ints, table: Table) -> bool:
    """Whether the stores of each row begin in it, the row of each store being given."""
    numbers, place = np.unique(rows, return_inverse=True)
    if numbers.size < 2 or numbers.size > table.rows:
        return False
    return bool((_lowest(lanes, place, numbers.size) // table.stride == numbers).all())


def _lowest(lanes: Lanes, place: Ints, count: int) -> Ints:
    """The lowest offset that was stored for each place, the place of each store being given."""
    lowest = np.full(count, np.iinfo(np.int64).max)
    np.minimum.at(lowest, place[lanes.stores], lanes.offsets)
    return lowest


def _begins_in_its_row(lanes: Lanes, rows: Ints, table: Table) -> bool:
    """Whether all that was stored for a row goes on from an element inside it, without a gap, and no store begins in a
    row that is none of these."""
    order = np.lexsort((lanes.offsets, rows))
    offsets, sorted_rows = lanes.offsets[order], rows[order]
    begins = np.ones(offsets.size, bool)
    begins[1:] = (sorted_rows[1:] != sorted_rows[:-1]) | (np.diff(offsets) > table.itemsize)
    inside = offsets[begins] // table.stride == sorted_rows[begins]
    every = np.arange(len(lanes.grid))
    first = _lowest(lanes, every, every.size) // table.stride
    return bool(inside.all() and np.isin(first[first < table.rows], rows).all())


def rows_by_flat_index(lanes: Lanes, disputed: Ints, table: Table) -> Ints | None:
    """The row of each lane by the way to divide the index of a grid axis that explains where all programs begin; None
    where there is none, where a program stores to several rows, or where several mean to overlap in one.

    Parameters
    ----------
    disputed
        Lanes of elements that got different values.
    """
    programs = np.unique(lanes.grid, axis=0)  # in the order of their numbers
    begin = _lowest(lanes, lanes.programs, len(programs))
    # One that explains more rows is the finer one: the others take every second row for a part of the row before it.
    for rows in sorted(_divisions(programs, begin, table), key=lambda each: -np.unique(each).size):
        of_lane, begins = (each[lanes.programs][lanes.stores] for each in (rows, begin))
        if _begins_in_its_row(lanes, of_lane, table) and not overlap_in_a_row(lanes, of_lane, begins, disputed):
            return of_lane
    return None


def _divisions(programs: Ints, begin: Ints, table: Table) -> Iterator[Ints]:
    """The row of each program, in each way that explains where they begin."""
    for axis in range(3):
        index = programs[:, axis]
        for number in range(2, min(_TRIED, int(index.max())) + 1):
            for rows, left in ((index % number, index // number), (index // number, index % number)):
                if _explains(rows, np.delete(programs, axis, axis=1), left, begin, table):
                    yield rows


def _explains(rows: Ints, others: Ints, left: Ints, begin: Ints, table: Table) -> bool:
    """Whether programs begin where their row does, plus a distance that the rest of their indices gives."""
    if not 0 < int(rows.max()) < table.rows:
        return False
    within = begin - rows * table.stride
    block = np.unique(np.column_stack((others, left)), axis=0, return_inverse=True)[1].reshape(-1)
    blocks = int(block.max()) + 1
    if not 0 <= int(within.min()) < table.stride or 4 * (rows.size - blocks) < rows.size:
        return False  # or hardly a distance is seen in two rows
    distance = np.full(blocks, np.iinfo(np.int64).max)
    np.minimum.at(distance, block, within)
    # Blocks of a row lie side by side: a distance that none leads up to is one to another row.
    near = np.diff(np.sort(distance)).max(initial=0) <= table.stride
    return bool(near and (within == distance[block]).all())
