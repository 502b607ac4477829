"""Rows of a 2-D view that a launch's programs wrote past the end of.

A kernel that is given a whole table may run from one row into the next without leaving the allocation, where there is
no guard. The stores of each program show it: if the programs with index k on one grid axis start in row k for every k,
that axis walks the rows, and their stores beyond row k's declared width ran into the neighbouring row. Pure functions.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from shadowgraph.checks.out_of_bounds.facts import RowOverrun
from shadowgraph.model.ranges import ByteRange
from shadowgraph.model.views import TensorView
from shadowgraph.tracking.stores import Store, StoreLog

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class _Lanes:
    """Every store to the table and its surroundings, lane by lane in execution order."""

    offsets: Ints  # bytes from the table's start
    programs: Ints  # index on the grid axis under test
    values: npt.NDArray[np.void]
    atomic: npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class _Table:
    rows: int
    width: int  # bytes of a row
    stride: int  # bytes from row to row
    itemsize: int


def row_overruns(log: StoreLog, view: TensorView, around: ByteRange) -> tuple[RowOverrun, ...]:
    """Rows that were overrun in one launch; empty where no grid axis walks the view's rows, or where the log keeps
    ranges only.

    Elements that any program reached by an atomic are never lost: programs that combine their values in one place do so
    intentionally.

    Parameters
    ----------
    view
        The table as the launch was given it.
    around
        Bytes that belong to the table's allocation, its guards included.
    """
    table = _table(view)
    if table is None:
        return ()
    stores = log.within(around)
    if {store.itemsize for store in stores} != {view.itemsize}:  # no stores either
        return ()
    every = (_lanes(stores, view.start, axis) for axis in range(3))
    walking = [lanes for lanes in every if _walks_rows(lanes, table)]
    if not walking:
        return ()
    # Blocks as wide as a row start where rows do, so that their axis looks the same; there are more rows than blocks.
    return _overruns(max(walking, key=lambda lanes: np.unique(lanes.programs).size), table)


def _table(view: TensorView) -> _Table | None:
    width, stride = view.row_nbytes, view.row_stride_nbytes
    if len(view.shape) != 2 or view.shape[0] < 2 or not width or not stride:
        return None
    return _Table(view.shape[0], width, stride, view.itemsize)


def _lanes(stores: list[Store], start: int, axis: int) -> _Lanes:
    offsets = np.concatenate([store.addresses.astype(np.int64) - start for store in stores])
    programs = np.concatenate([np.full(store.addresses.size, store.program[axis], dtype=np.int64) for store in stores])
    atomic = np.concatenate([np.full(store.addresses.size, store.atomic) for store in stores])
    raw = [np.ascontiguousarray(s.values).view(np.uint8).reshape(-1, s.itemsize) for s in stores]
    joined = np.ascontiguousarray(np.concatenate(raw))
    # Opaque bytes compare alike whatever the dtypes of the stores.
    return _Lanes(offsets, programs, joined.view(np.dtype((np.void, joined.shape[1]))).reshape(-1), atomic)


def _walks_rows(lanes: _Lanes, table: _Table) -> bool:
    indices = np.unique(lanes.programs)
    if indices.size < 2 or indices.size > table.rows:
        return False
    return all(int(lanes.offsets[lanes.programs == k].min()) // table.stride == k for k in indices)


def _overruns(lanes: _Lanes, table: _Table) -> tuple[RowOverrun, ...]:
    found = (_overrun(lanes, int(row), table) for row in np.unique(lanes.programs))
    return tuple(each for each in found if each is not None)


def _overrun(lanes: _Lanes, row: int, table: _Table) -> RowOverrun | None:
    past = np.flatnonzero((lanes.programs == row) & (lanes.offsets >= row * table.stride + table.width))
    if not past.size:
        return None
    shared = np.flatnonzero((lanes.programs != row) & np.isin(lanes.offsets, lanes.offsets[past]))
    everyone = np.flatnonzero(np.isin(lanes.offsets, lanes.offsets[past]))
    own, others, final = (_last_values(lanes, chosen) for chosen in (past, shared, everyone))
    combined = set(lanes.offsets[everyone[lanes.atomic[everyone]]].tolist())
    # Inside the table one of the two rows loses, whichever ran last; past its end only the one that ran first.
    end = table.rows * table.stride
    meeting = ((at, value) for at, value in others.items() if at not in combined)
    lost = sum(1 for at, value in meeting if own[at] != value and (at < end or final[at] != own[at]))
    hit = np.minimum(np.array(sorted(own)) // table.stride, table.rows)
    into = tuple(int(r) for r in np.unique(hit))
    return RowOverrun(row, table.width // table.itemsize, len(own), lost, into, table.rows)


def _last_values(lanes: _Lanes, chosen: npt.NDArray[np.intp]) -> dict[int, bytes]:
    """The last value that the chosen lanes stored at each offset."""
    return {int(lanes.offsets[lane]): lanes.values[lane].tobytes() for lane in chosen}
