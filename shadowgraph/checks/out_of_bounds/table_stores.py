"""The stores of one launch to a table and its surroundings, lane by lane, as arrays.

Used by `rows` and the modules that assign lanes to rows. Pure, any thread.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from shadowgraph.model.views import TensorView
from shadowgraph.tracking.stores import Store

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of a 2-D view.

    Attributes
    ----------
    rows
        Number of rows.
    width, stride
        Bytes of a row, and bytes from row to row.
    """

    rows: int
    width: int
    stride: int
    itemsize: int

    @property
    def nbytes(self) -> int:
        """Bytes up to the end of the last row's stride."""
        return self.rows * self.stride


def table_of(view: TensorView) -> Table | None:
    """A view's rows, or None where it is no table of whole rows."""
    width, stride = view.row_nbytes, view.row_stride_nbytes
    if len(view.shape) != 2 or view.shape[0] < 2 or not width or not stride:
        return None
    return Table(view.shape[0], width, stride, view.itemsize)


@dataclass(frozen=True, slots=True, eq=False)
class Lanes:
    """Every lane in execution order, by the number of its store.

    Attributes
    ----------
    offsets
        Bytes from the table's start, negative before it.
    stores
        Number of each lane's store.
    raw
        The stored values, a row of bytes for each lane.
    atomic
        Whether the store combined its operand with the old value.
    grid, programs
        Of each store: its program's three indices, and one number in their place.
    """

    offsets: Ints
    stores: Ints
    raw: npt.NDArray[np.uint8]
    atomic: Bools
    grid: Ints
    programs: Ints

    def differ(self, one: Ints, other: Ints) -> Bools:
        """Whether lanes stored another value than others, by their bytes."""
        found: Bools = (self.raw[one] != self.raw[other]).any(axis=1)
        return found

    def program_of(self, lanes: Ints) -> Ints:
        """The numbers of the programs of lanes."""
        return self.programs[self.stores[lanes]]


def lanes_of(stores: list[Store], start: int) -> Lanes:
    """The lanes of at least one store, all with values of one size."""
    sizes = [store.addresses.size for store in stores]
    grid = np.array([store.program for store in stores], np.int64).reshape(-1, 3)
    raw = [np.ascontiguousarray(s.values).view(np.uint8).reshape(-1, s.itemsize) for s in stores]
    return Lanes(
        offsets=np.concatenate([store.addresses.astype(np.int64) - start for store in stores]),
        stores=np.repeat(np.arange(len(stores)), sizes),
        raw=np.concatenate(raw),
        atomic=np.repeat([store.atomic for store in stores], sizes),
        grid=grid,
        programs=np.unique(grid, axis=0, return_inverse=True)[1].reshape(-1),
    )


def contested(lanes: Lanes) -> Ints:
    """Lanes of elements that got different values and no atomic, by element and then in execution order."""
    order = np.argsort(lanes.offsets, kind="stable")
    offsets = lanes.offsets[order]
    again = np.flatnonzero(offsets[1:] == offsets[:-1])
    other = again[lanes.differ(order[again], order[again + 1])]
    chosen = np.setdiff1d(offsets[other], lanes.offsets[lanes.atomic])
    return order[np.isin(offsets, chosen)]


def last_by_offset(lanes: Lanes, chosen: Ints) -> tuple[Ints, Ints]:
    """The elements that some lanes stored, ascending, and the last of these lanes at each."""
    backwards = chosen[::-1]
    offsets, place = np.unique(lanes.offsets[backwards], return_index=True)
    return offsets, backwards[place]


def in_dispute(lanes: Lanes, rows: Ints, disputed: Ints) -> tuple[Ints, Ints]:
    """Pairs of lanes that stored different values to one element, the one of the lower row first."""
    at = disputed[np.lexsort((disputed, rows[disputed], lanes.offsets[disputed]))]
    one, other = at[:-1], at[1:]
    pairs = (lanes.offsets[one] == lanes.offsets[other]) & lanes.differ(one, other)
    return one[pairs], other[pairs]


def overlap_in_a_row(lanes: Lanes, rows: Ints, begins: Ints, disputed: Ints) -> bool:
    """Whether programs wrote pieces of one row over each other that begin at different offsets, as sliding windows do:
    such a kernel means what it stores twice.

    Parameters
    ----------
    begins
        Offset of the first element of each lane's piece.
    """
    one, other = in_dispute(lanes, rows, disputed)
    apart = lanes.program_of(one) != lanes.program_of(other)
    return bool(((rows[one] == rows[other]) & apart & (begins[one] != begins[other])).any())
