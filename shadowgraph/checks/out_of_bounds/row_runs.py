"""Assigns the stores of a launch to rows by what was written, whichever program wrote which row.

A run is a stretch of elements that one store wrote one after another. It belongs to the row that it begins in, or,
where it goes on from the end of another run, to the row of that one; so a run may cross the end of its row. That the
kernel's rows end there, too, is told by other runs: those of two neighbouring rows begin in the same column, and the
one of the later row wrote elements that the one of the earlier row has crossed into. Pure functions, used by `rows`.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from shadowgraph.checks.out_of_bounds.table_stores import Ints, Lanes, Table, in_dispute, overlap_in_a_row

_RUNS = 1 << 15  # of a launch; one with more is not judged
_STEP = 4  # elements from one of a run to the next, at most


@dataclass(frozen=True, slots=True, eq=False)
class _Runs:
    """Runs in execution order.

    Attributes
    ----------
    of_lane
        Number of each lane's run.
    starts, stops
        Offset of the first element, and of the one that would come next.
    last
        Row of the last element.
    programs
        Number of each run's program.
    """

    of_lane: Ints
    starts: Ints
    stops: Ints
    last: Ints
    programs: Ints


def rows_by_runs(lanes: Lanes, disputed: Ints, table: Table) -> Ints | None:
    """The row of each lane, or None where no row is seen to have run into the next one.

    Launches with atomics are not judged: their programs may wait for each other. Nor are rows that overlap, or that
    several programs write in overlapping pieces, as sliding windows do.

    Parameters
    ----------
    disputed
        Lanes of elements that got different values, by element.
    """
    if table.stride < table.width or not disputed.size:
        return None
    runs = _runs_of(lanes, table)
    if runs is None:
        return None
    rows, starts = _rows_of(runs, table)[runs.of_lane], runs.starts[runs.of_lane]
    if overlap_in_a_row(lanes, rows, starts, disputed):
        return None
    return rows if _end_with_their_row(lanes, starts, rows, disputed, table) else None


def _runs_of(lanes: Lanes, table: Table) -> _Runs | None:
    steps = np.diff(lanes.offsets)
    within = lanes.stores[1:] == lanes.stores[:-1]
    usual = np.full(len(lanes.grid), np.iinfo(np.int64).max)  # the shortest step up of each store
    up = within & (steps > 0)
    np.minimum.at(usual, lanes.stores[1:][up], steps[up])
    usual[usual > _STEP * table.itemsize] = table.itemsize
    begins = np.ones(lanes.offsets.size, bool)
    begins[1:] = ~within | (steps != usual[lanes.stores[1:]])
    first = np.flatnonzero(begins)
    if first.size > _RUNS:
        return None
    last = np.append(first[1:], lanes.offsets.size) - 1
    stores = lanes.stores[first]
    return _Runs(
        of_lane=np.cumsum(begins) - 1,
        starts=lanes.offsets[first],
        stops=lanes.offsets[last] + usual[stores],
        last=lanes.offsets[last] // table.stride,
        programs=lanes.programs[stores],
    )


def _rows_of(runs: _Runs, table: Table) -> Ints:
    """The row of each run."""
    starts, stops, programs = runs.starts.tolist(), runs.stops.tolist(), runs.programs.tolist()
    rows: list[int] = (runs.starts // table.stride).tolist()
    columns = {start % table.stride for start, row in zip(starts, rows, strict=True) if row == min(rows)}
    before = _continued(starts, stops, programs)
    anew: dict[int, set[int]] = defaultdict(set)  # programs that begin at an offset, going on from nothing
    for run, previous in enumerate(before):
        if previous is None:
            anew[starts[run]].add(programs[run])
    crossed: dict[int, int] = {}  # where a run ended that has crossed the end of its row, and that row
    for run in sorted(range(len(rows)), key=starts.__getitem__):
        start, previous = starts[run], before[run]
        within_a_row = start % table.stride not in columns
        if previous is not None and (start % table.stride or anew[start] - {programs[run]}):
            rows[run] = rows[previous]  # at the start of a row only if another program has begun that row
        elif previous is None and within_a_row and start in crossed:
            rows[run] = crossed[start]
        if rows[run] < runs.last[run]:
            crossed[stops[run]] = rows[run]
    return np.array(rows, np.int64)


def _continued(starts: list[int], stops: list[int], programs: list[int]) -> list[int | None]:
    """The run of the same program that each run goes on from, the last one before it, if any."""
    ended: dict[tuple[int, int], int] = {}
    found: list[int | None] = []
    for run, (start, stop, program) in enumerate(zip(starts, stops, programs, strict=True)):
        found.append(ended.get((program, start)))
        ended[program, stop] = run
    return found


def _end_with_their_row(lanes: Lanes, starts: Ints, rows: Ints, disputed: Ints, table: Table) -> bool:
    """Whether a run wrote over the end of its row what a run of the next row, which begins in the same column, wrote as
    its own, given the start of each lane's run."""
    one, other = in_dispute(lanes, rows, disputed)
    inside = (rows[one] >= 0) & (rows[other] < table.rows)
    own = lanes.offsets[other] // table.stride == rows[other]
    next_row = rows[other] == rows[one] + 1
    alike = np.isin(starts[other] - table.stride, starts)
    return bool((inside & own & next_row & alike).any())
