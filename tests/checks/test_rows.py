"""Row overruns, from store logs built by hand as a kernel's programs would have made them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np
import pytest

from shadowgraph.checks.out_of_bounds.facts import RowOverrun
from shadowgraph.checks.out_of_bounds.rows import overwritten, row_overruns, stored_twice
from shadowgraph.model.ranges import ByteRange
from shadowgraph.model.views import TensorView
from shadowgraph.tracking.stores import StoreLog

BASE, GUARD = 1 << 30, 4096
Program = tuple[int, int, int]
Values = Callable[[int], int]


def table(rows: int, width: int, stride: int | None = None, itemsize: int = 4) -> TensorView:
    step = stride or width
    return TensorView(
        BASE, BASE, rows * step * itemsize, (rows, width), (step, 1), f"int{8 * itemsize}", itemsize, "cpu"
    )


def extent(view: TensorView) -> ByteRange:
    return ByteRange(view.start - GUARD, view.storage_address + view.storage_nbytes + GUARD)


def store(log: StoreLog, program: Program, elements: Iterable[int], values: Sequence[int], itemsize: int = 4) -> None:
    """A program stores values to elements counted from the table's start."""
    addresses = np.array([BASE + itemsize * element for element in elements], dtype=np.uint64)
    log.add(program, addresses, np.array(values, dtype=f"u{itemsize}"), itemsize)


def row_writer(view: TensorView, lens: Sequence[int], axis: int = 0, order: Sequence[int] | None = None) -> StoreLog:
    """Programs along one axis of the grid; program k writes ``lens[k]`` entries from the start of row k on."""
    log = StoreLog()
    for k in order or range(len(lens)):
        program = tuple(k if axis == a else 0 for a in range(3))
        first = k * view.stride[0]
        store(log, program, range(first, first + lens[k]), [50 * k + i for i in range(lens[k])], view.itemsize)  # type: ignore[arg-type]
    return log


def overruns(log: StoreLog, view: TensorView) -> list[tuple[int, int, int, tuple[int, ...]]]:
    return [(r.row, r.written_past, r.lost, r.into) for r in row_overruns(log, view, extent(view))]


# -- what is found ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("itemsize", [1, 2, 4, 8])
def test_rows_that_run_into_the_next(axis: int, itemsize: int) -> None:
    view = table(4, 8, itemsize=itemsize)
    found = row_overruns(row_writer(view, [11, 8, 5, 10], axis), view, extent(view))
    assert found == (RowOverrun(0, 8, 3, 3, (1,), 4), RowOverrun(3, 8, 2, 0, (4,), 4))


def test_the_last_row_runs_past_the_end() -> None:
    view = table(2, 8)
    assert overruns(row_writer(view, [8, 12]), view) == [(1, 4, 0, (2,))]


def test_an_overrun_may_reach_several_rows_and_past_the_end() -> None:
    view = table(3, 4)
    # Row 0's entries 4..14 meet rows 1 and 2, which hold 4 and 3 entries of their own; the rest lies past the end.
    assert overruns(row_writer(view, [14, 4, 3]), view) == [(0, 10, 7, (1, 2, 3))]


@pytest.mark.parametrize(("order", "lost"), [((0, 1), (8, 0)), ((1, 0), (4, 4))])
def test_past_the_end_only_what_was_overwritten_is_lost(order: tuple[int, int], lost: tuple[int, int]) -> None:
    """Nobody's row lies there, so that the program that ran last lost nothing."""
    view = table(2, 4)
    assert overruns(row_writer(view, [12, 8], order=order), view) == [(0, 8, lost[0], (1, 2)), (1, 4, lost[1], (2,))]


def test_what_lies_past_the_end_is_told_by_one_number() -> None:
    view = table(2, 4)
    assert overruns(row_writer(view, [4, 40]), view) == [(1, 36, 0, (2,))]


def test_rows_that_fit_are_no_overrun() -> None:
    view = table(4, 8)
    assert overruns(row_writer(view, [8, 8, 8, 8]), view) == []
    assert overruns(row_writer(view, [1, 8, 0, 3]), view) == []


def test_rows_without_a_program_are_skipped() -> None:
    view = table(6, 8)
    log = row_writer(view, [8, 0, 10, 8, 0, 8])
    assert overruns(log, view) == [(2, 2, 2, (3,))]


# -- lost entries ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2)])
def test_entries_are_lost_whichever_program_ran_last(order: tuple[int, ...]) -> None:
    """Either the row's own entries or the neighbour's are gone; on a device the order is anybody's."""
    view = table(3, 8)
    assert overruns(row_writer(view, [10, 8, 8], order=order), view) == [(0, 2, 2, (1,))]


def test_the_same_value_twice_loses_nothing() -> None:
    view = table(2, 4)
    log = StoreLog()
    store(log, (0, 0, 0), range(6), [7] * 6)
    store(log, (1, 0, 0), range(4, 8), [7, 9, 9, 9])
    assert overruns(log, view) == [(0, 2, 1, (1,))]


def test_only_what_a_program_stored_last_counts() -> None:
    view = table(2, 4)
    log = StoreLog()
    store(log, (0, 0, 0), range(4, 6), [1, 1])  # a first pass
    store(log, (0, 0, 0), range(6), [0, 0, 0, 0, 5, 6])
    store(log, (1, 0, 0), range(4, 8), [9, 6, 0, 0])
    assert overruns(log, view) == [(0, 2, 1, (1,))], "an element stored twice is one, by its last value"


def test_an_entry_that_nobody_else_stored_is_not_lost() -> None:
    view = table(2, 8)
    assert overruns(row_writer(view, [12, 2]), view) == [(0, 4, 2, (1,))]


def test_values_are_compared_by_their_bytes() -> None:
    view = table(2, 2)
    log = StoreLog()
    nan = np.array([1, 2, np.nan], dtype=np.float32)
    log.add((0, 0, 0), np.array([BASE, BASE + 4, BASE + 8], dtype=np.uint64), nan, 4)
    log.add((1, 0, 0), np.array([BASE + 8, BASE + 12], dtype=np.uint64), nan[2:].repeat(2), 4)
    assert overruns(log, view) == [(0, 1, 0, (1,))], "the same NaN is the same value"


# -- which axis walks the rows ---------------------------------------------------------------------------------------


def blocks(view: TensorView, lens: Sequence[int], block: int, axes: tuple[int, int]) -> StoreLog:
    """A two-dimensional grid (row axis, block axis) run as the interpreter does: axis 0 outermost."""
    log = StoreLog()
    row_axis, block_axis = axes
    programs = [(r, b) for r in range(len(lens)) for b in range(-(-max(lens) // block))]
    for r, b in sorted(programs, key=lambda rb: tuple(rb[0] if a == row_axis else rb[1] for a in sorted(axes))):
        entries = range(b * block, min((b + 1) * block, lens[r]))
        program = tuple(r if a == row_axis else b if a == block_axis else 0 for a in range(3))
        store(log, program, [r * view.stride[0] + e for e in entries], [1000 * r + e for e in entries])  # type: ignore[arg-type]
    return log


@pytest.mark.parametrize("axes", [(0, 1), (1, 0), (0, 2), (2, 1)])
@pytest.mark.parametrize("block", [3, 4, 5, 8])
def test_rows_cut_in_blocks(axes: tuple[int, int], block: int) -> None:
    """Also where a block is as wide as a row, so that block k of row 0 starts where row k does."""
    view = table(5, 8)
    assert overruns(blocks(view, [12, 8, 8, 8, 3], block, axes), view) == [(0, 4, 4, (1,))]
    assert overruns(blocks(view, [8, 8, 8, 8, 8], block, axes), view) == []


@pytest.mark.parametrize("block", [1, 3, 8, 12, 16, 40])
def test_a_flat_kernel_over_the_table_is_no_overrun(block: int) -> None:
    """Programs tile the elements and pay no heed to rows."""
    view = table(5, 8)
    log = StoreLog()
    for k in range(-(-40 // block)):
        elements = range(k * block, min(40, (k + 1) * block))
        store(log, (k, 0, 0), elements, [100 * k + e for e in elements])
    assert sum(lost for _, _, lost, _ in overruns(log, view)) == 0


@pytest.mark.parametrize("tile", [(2, 4), (1, 8), (2, 8), (4, 2)])
def test_two_dimensional_tiles_are_no_overrun(tile: tuple[int, int]) -> None:
    view = table(4, 8)
    log = StoreLog()
    high, wide = tile
    for i in range(4 // high):
        for j in range(8 // wide):
            elements = [8 * (i * high + r) + j * wide + c for r in range(high) for c in range(wide)]
            store(log, (i, j, 0), elements, elements)
    assert overruns(log, view) == []


def test_a_tail_block_shifted_back_over_its_row_is_no_overrun() -> None:
    view = table(3, 10)
    log = StoreLog()
    for r in range(3):
        for b, first in enumerate((0, 6)):  # blocks of 4 and 6 of 10: the last starts early to stay inside
            elements = range(10 * r + min(first, 10 - 6), 10 * r + min(first, 10 - 6) + 6)
            store(log, (r, b, 0), elements, [e + 50 * b for e in elements])
    assert overruns(log, view) == []


def test_a_flat_tail_block_shifted_back_loses_nothing() -> None:
    """The last program repeats the values of the one before it."""
    view = table(3, 8)
    log = StoreLog()
    for k, first in enumerate((0, 9, 15)):
        store(log, (k, 0, 0), range(first, first + 9), range(first, first + 9))
    assert sum(lost for _, _, lost, _ in overruns(log, view)) == 0


@pytest.mark.parametrize(
    ("target", "found"),
    [
        ((1, 0, 2), [(0, 4, 4, (1,)), (1, 4, 4, (2,)), (2, 4, 0, (3,))]),
        ((2, 2, 3), [(2, 4, 4, (3,)), (3, 4, 0, (4,))]),
        ((3, 0, 1), [(0, 4, 4, (1,)), (1, 4, 0, (2,)), (3, 4, 0, (4,))]),
        ((0, 2, 2), []),
    ],
)
def test_a_scatter_to_rows(target: tuple[int, ...], found: list[tuple[int, int, int, tuple[int, ...]]]) -> None:
    """No axis walks the rows: what is lost between rows that follow each other shows which row a store belongs to."""
    view = table(4, 8)
    log = StoreLog()
    for k, r in enumerate(target):
        store(log, (k, 0, 0), range(8 * r, 8 * r + 12), [100 * k + i for i in range(12)])
    assert overruns(log, view) == found


def test_a_scatter_of_rows_that_fit_loses_nothing() -> None:
    """Tokens of the padding share slot 0."""
    view = table(4, 8)
    log = StoreLog()
    for k, r in enumerate((3, 0, 0, 1, 0)):
        store(log, (k, 0, 0), range(8 * r, 8 * r + 8), [100 * k + i for i in range(8)])
    assert overruns(log, view) == []


def test_atomics_may_order_the_programs() -> None:
    view = table(4, 8)
    log = StoreLog()
    for k, r in enumerate((1, 0, 2)):
        store(log, (k, 0, 0), range(8 * r, 8 * r + 12), [100 * k + i for i in range(12)])
    assert overruns(log, view)
    log.add((0, 0, 0), np.array([BASE + (1 << 20)], dtype=np.uint64), np.array([1], dtype=np.uint32), 4, atomic=True)
    assert overruns(log, view) == [], "they may wait for each other"


@pytest.mark.parametrize("step", [4, 6, 12, 16])
def test_pieces_that_overlap_by_another_step_than_the_rows(step: int) -> None:
    view = table(6, 8)
    log = StoreLog()
    for k, first in enumerate(range(0, 48 - step - 4, step)):
        store(log, (k, 0, 0), range(first, first + step + 4), [100 * k + i for i in range(step + 4)])
    assert overruns(log, view) == []


@pytest.mark.parametrize("down", [False, True])
def test_one_program_loses_what_it_overwrites(down: bool) -> None:
    """Row after row upwards, each row overwrites what the one before left in it."""
    view = table(4, 8)
    log = StoreLog()
    for r in (2, 1, 0) if down else (0, 1, 2):
        store(log, (0, 0, 0), range(8 * r, 8 * r + 11), [100 * r + i for i in range(11)])
    lost = [(0, 3, 3, (1,)), (1, 3, 3, (2,)), (2, 3, 0, (3,))] if down else []
    assert overruns(log, view) == lost


@pytest.mark.parametrize(("heads", "rows"), [((1, 2, 3), [0, 1, 2]), ((1, 3), [0, 2]), ((2,), []), ((0, 1, 2), [])])
def test_heads_stored_twice(heads: tuple[int, ...], rows: list[int]) -> None:
    """By a block too many of the row before, unless the first row has one, too, or only one row has."""
    view = table(4, 8)
    log = StoreLog()
    blocks = [8 * r + 4 * b for r in range(4) for b in range(2)]
    for k, first in enumerate([*blocks, *(8 * r for r in heads)]):  # each by a program of its own, in an odd order
        store(log, (7 * k % 11, 0, 0), range(first, first + 4), [100 * k + i for i in range(4)])
    assert [row for row, *_ in overruns(log, view)] == rows


def test_what_was_stored_twice() -> None:
    view = table(2, 4)
    log = row_writer(view, [4, 4])
    assert not stored_twice(log, view.hull)
    store(log, (0, 0, 0), [4], [7])
    assert stored_twice(log, view.hull)
    assert not stored_twice(log, ByteRange(BASE, BASE + 16))


def test_programs_that_loop_over_rows_lose_nothing() -> None:
    """A persistent kernel: program k takes rows k, k + 2 and so on."""
    view = table(6, 4)
    log = StoreLog()
    for k in range(2):
        for r in range(k, 6, 2):
            store(log, (k, 0, 0), range(4 * r, 4 * r + 4), [10 * r + i for i in range(4)])
    assert sum(lost for _, _, lost, _ in overruns(log, view)) == 0


# -- tables ----------------------------------------------------------------------------------------------------------


def test_padding_between_rows_belongs_to_no_other_row() -> None:
    view = table(3, 6, stride=8)
    assert overruns(row_writer(view, [6, 6, 6]), view) == []
    assert overruns(row_writer(view, [7, 6, 8]), view) == [(0, 1, 0, (0,)), (2, 2, 0, (2,))]
    assert overruns(row_writer(view, [10, 6, 6]), view) == [(0, 4, 2, (0, 1))]


@pytest.mark.parametrize(
    ("shape", "stride"),
    [((16,), (1,)), ((1, 16), (16, 1)), ((2, 2, 4), (8, 4, 1)), ((4, 4), (1, 4)), ((4, 4), (0, 1)), ((4, 4), (8, 2))],
    ids=["one dimension", "one row", "three dimensions", "transposed", "expanded", "gaps inside rows"],
)
def test_only_tables_of_whole_rows_are_judged(shape: tuple[int, ...], stride: tuple[int, ...]) -> None:
    view = TensorView(BASE, BASE, 256, shape, stride, "int32", 4, "cpu")
    log = StoreLog()
    for k in range(2):
        store(log, (k, 0, 0), range(4 * k, 4 * k + 6), [100 * k + i for i in range(6)])
    assert overruns(log, view) == []


def test_stores_of_another_size_than_the_tables_are_not_judged() -> None:
    view = table(2, 4)
    assert overruns(row_writer(table(2, 8, itemsize=2), [10, 8]), view) == []


def test_stores_elsewhere_do_not_count() -> None:
    view = table(2, 4)
    log = row_writer(view, [6, 4])
    store(log, (0, 0, 0), range(1 << 20, (1 << 20) + 8), range(8), itemsize=8)
    assert overruns(log, view) == [(0, 2, 2, (1,))]
    assert overruns(StoreLog(), view) == []


def test_a_program_that_starts_before_the_table() -> None:
    """Its axis does not walk the rows; what it lost shows them."""
    view = table(2, 4)
    log = row_writer(view, [6, 4])
    store(log, (0, 0, 0), [-1], [5])
    assert overruns(log, view) == [(0, 2, 2, (1,))]


# -- atomics and forgotten stores ------------------------------------------------------------------------------------


def test_what_atomics_combine_is_not_lost() -> None:
    view = table(3, 4)
    log = StoreLog()
    for k in range(3):
        for row in (k, min(k + 1, 2)):
            addresses = np.array([BASE + 4 * e for e in range(4 * row, 4 * row + 4)], dtype=np.uint64)
            log.add((k, 0, 0), addresses, np.full(4, 10 * k + row, dtype=np.int32), 4, atomic=True)
    assert overruns(log, view) == [(0, 4, 0, (1,)), (1, 4, 0, (2,))]


def test_plain_stores_beside_atomics_are_judged() -> None:
    view = table(2, 4)
    log = StoreLog()
    store(log, (0, 0, 0), range(6), [1, 1, 1, 1, 5, 6])
    store(log, (1, 0, 0), range(4, 8), [9, 9, 9, 9])
    log.add((1, 0, 0), np.array([BASE + 16], dtype=np.uint64), np.array([10], dtype=np.uint32), 4, atomic=True)
    assert overruns(log, view) == [(0, 2, 1, (1,))], "the element that met an atomic does not count"


def test_a_log_that_keeps_ranges_only_shows_no_rows() -> None:
    view = table(2, 4)
    log = row_writer(view, [6, 4])
    assert overruns(log, view) == [(0, 2, 2, (1,))]
    log.compact()
    assert overruns(log, view) == []


# -- what an element had before it was stored again --------------------------------------------------------------------


def _element(view: TensorView, row: int, column: int, count: int = 1) -> ByteRange:
    start = view.start + (row * view.stride[0] + column) * view.itemsize
    return ByteRange(start, start + count * view.itemsize)


@pytest.mark.parametrize("order", [None, [1, 0]])
def test_the_value_that_another_row_stored_over(order: list[int] | None) -> None:
    view = table(2, 8)
    log = row_writer(view, [10, 8], order=order)
    values = overwritten(log, _element(view, 1, 0, 2))
    assert values is not None
    by_program = {one.program[0]: one.values[8:10] if one.program[0] == 0 else one.values[:2] for one in log.stores}
    first, second = (by_program[k].tobytes() for k in order or [0, 1])
    assert values == (first, second)


def test_an_element_that_got_one_value_has_none_before_it() -> None:
    view = table(2, 8)
    log = row_writer(view, [10, 8])
    assert overwritten(log, _element(view, 0, 0)) is None
    assert overwritten(log, _element(view, 1, 1, 2)) is None, "only the first of the two got another value"
    assert overwritten(row_writer(view, [8, 8]), _element(view, 1, 0)) is None
