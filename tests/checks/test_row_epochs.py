"""Runs of bytes by their last writer, and what rows of them hold, from made-up views and writes."""

from __future__ import annotations

import random

import pytest

from shadowgraph.checks.row_epochs import (
    LIMIT,
    Epochs,
    Rows,
    Run,
    is_constant,
    is_sure,
    mixture,
    pads,
    rows_of,
    stretches,
)
from shadowgraph.model.launches import Access, Launch, LaunchKind, Pointer
from shadowgraph.model.ranges import ByteRange, RangeSet
from shadowgraph.model.views import TensorView
from shadowgraph.tracking.stores import StoreLog
from shadowgraph.tracking.writes import Write, write_of

BASE = 1 << 20


def view(shape: tuple[int, ...], stride: tuple[int, ...] | None = None, start: int = 0, item: int = 8) -> TensorView:
    if stride is None:
        stride, step = (), 1
        for size in reversed(shape):
            stride, step = (step, *stride), step * size
    return TensorView(BASE + start, BASE, 1 << 16, shape, stride, "int64", item, "cpu")


def rows(shape: tuple[int, ...], stride: tuple[int, ...] | None = None, start: int = 0) -> Rows:
    made = rows_of(view(shape, stride, start))
    assert made is not None
    return made


def launch(name: str, access: Access = Access.WRITE, kind: LaunchKind = LaunchKind.ATEN) -> Launch:
    return Launch(kind, name, (Pointer("self", view((4,)), access),))


def wrote(name: str = "aten.copy_.default") -> Write:
    return Write(launch(name), RangeSet())


def epochs(*runs: tuple[int, int, float, Write | None], last: float = 0, fill: str = "") -> Epochs:
    """Rows (first, last) of eight bytes each, written at a time by a write; all of it sure."""
    made = Epochs()
    for first, final, time, write in runs:
        constant = write is not None and is_constant(write)
        made.note(Run(BASE + 8 * first, BASE + 8 * final + 8, time, write, write is not None, constant))
    made.last = last
    return made


# -- rows --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "stride", "form"),
    [
        ((4,), (1,), (4, 8, 8)),
        ((4,), (3,), (4, 24, 8)),
        ((4, 2), (2, 1), (4, 16, 16)),
        ((4, 2), (5, 1), (4, 40, 16)),
        ((1, 4), (4, 1), (4, 8, 8)),
        ((4, 1, 2), (2, 2, 1), (4, 16, 16)),
    ],
)
def test_rows_of_a_view(shape: tuple[int, ...], stride: tuple[int, ...], form: tuple[int, int, int]) -> None:
    found = rows(shape, stride)
    assert (found.count, found.stride, found.nbytes) == form


@pytest.mark.parametrize(
    ("shape", "stride"),
    [((), ()), ((1,), (1,)), ((0, 4), (4, 1)), ((4, 2), (1, 4)), ((4, 2), (4, 2)), ((4,), (0,)), ((1 << 15,), (1,))],
    ids=["scalar", "one row", "empty", "transposed", "gaps in a row", "expanded", "too many"],
)
def test_what_has_no_rows(shape: tuple[int, ...], stride: tuple[int, ...]) -> None:
    assert rows_of(view(shape, stride)) is None


def test_rows_in_a_range_are_those_with_a_byte_in_it() -> None:
    chance = random.Random(103)
    for _ in range(500):
        width = chance.randint(1, 3)
        table = rows((chance.randint(2, 6), width), (width + chance.randint(0, 3), 1), start=8 * chance.randint(0, 4))
        first = BASE + chance.randint(0, 150)
        where = ByteRange(first, first + chance.randint(1, 90))
        wanted = [row for row in range(table.count) if table.span(row, row).overlaps(where)]
        assert list(table.of(where)) == wanted


# -- runs --------------------------------------------------------------------------------------------------------------


def test_the_last_writer_of_each_byte() -> None:
    chance = random.Random(3)
    for _ in range(200):
        made, bytes_by = Epochs(), {}
        for time in range(1, 12):
            start = BASE + chance.randint(0, 60)
            stop = start + chance.randint(1, 30)
            made.note(Run(start, stop, time, None, True, False))
            bytes_by.update(dict.fromkeys(range(start, stop), time))
        assert {at: run.time for run in made.runs for at in range(run.start, run.stop)} == bytes_by
        assert made.runs == sorted(made.runs, key=lambda run: run.start)


def test_a_buffer_that_is_written_in_too_many_pieces_is_not_judged() -> None:
    made = Epochs()
    for place in range(LIMIT + 1):
        made.note(Run(BASE + 16 * place, BASE + 16 * place + 8, place + 1, wrote(), True, False))
    assert [run.sure for run in made.runs] == [False]
    assert (made.runs[0].start, made.runs[0].stop) == (BASE, BASE + 16 * LIMIT + 8)


def test_mixed_rows() -> None:
    four = rows((4,))
    assert epochs((0, 3, 1, wrote()), (0, 1, 5, wrote()), last=3).mixed(four)
    assert not epochs((0, 3, 1, wrote()), (0, 1, 5, wrote()), last=0).mixed(four), "both in this step"
    assert not epochs((0, 3, 1, wrote()), (0, 1, 5, wrote()), last=6).mixed(four), "neither"
    assert not epochs((0, 3, 1, wrote("aten.zero_.default")), (0, 1, 5, wrote()), last=3).mixed(four), "padding"
    assert not epochs((4, 7, 1, wrote()), (0, 3, 5, wrote()), last=3).mixed(four), "beyond what the graph reads"
    assert not epochs((0, 3, 1, None), (0, 1, 5, wrote()), last=3).mixed(four), "by nobody knows whom"


@pytest.mark.parametrize(
    ("runs", "fresh", "stale", "cut"),
    [
        ([(0, 3, 1, wrote()), (0, 1, 5, wrote())], (0, 1), [2, 3], 2),
        ([(0, 3, 1, wrote()), (2, 3, 5, wrote())], (2, 3), [0, 1], None),
        ([(0, 3, 1, wrote()), (0, 0, 5, wrote()), (2, 2, 6, wrote())], (0, 2), [1, 3], None),
        ([(0, 1, 1, wrote()), (0, 0, 5, wrote())], (0,), [1], 1),  # the others were never written
        ([(0, 3, 1, wrote()), (0, 3, 5, wrote())], (0, 1, 2, 3), [], None),
        ([(0, 3, 1, wrote()), (0, 1, 5, None)], (), [2, 3], None),
    ],
    ids=["prefix", "suffix", "here and there", "never written", "all", "perhaps"],
)
def test_mixture(
    runs: list[tuple[int, int, float, Write | None]], fresh: tuple[int, ...], stale: list[int], cut: int | None
) -> None:
    made = epochs(*runs, last=3)
    found = mixture(made.by_row(rows((4,))), made.last)
    assert (found.fresh, list(found.stale), found.cut) == (fresh, stale, cut)


FILL, COPY, OTHER = wrote("aten.fill_.Scalar"), wrote(), wrote()


@pytest.mark.parametrize(
    ("runs", "said"),
    [
        ([(0, 3, 5, FILL), (0, 1, 6, COPY)], True),
        ([(0, 1, 5, COPY), (2, 3, 6, OTHER)], True),
        ([(0, 0, 5, COPY), (1, 1, 5, OTHER), (2, 3, 6, FILL)], True),
        ([(0, 1, 5, COPY), (2, 2, 6, FILL), (3, 3, 7, wrote("aten.fill_.Scalar"))], True),
        ([(0, 3, 6, COPY)], None),
        ([(0, 1, 5, COPY), (2, 2, 6, OTHER), (3, 3, 7, wrote())], False),  # row by row
        ([(0, 2, 5, COPY), (3, 3, 6, FILL)], False),  # cut elsewhere
        ([(0, 3, 1, FILL), (0, 1, 6, COPY)], False),  # padded in another step
        ([(0, 2, 5, FILL), (0, 1, 6, COPY)], False),  # not to the end
        ([], False),
    ],
)  # fmt: skip
def test_pads(runs: list[tuple[int, int, float, Write | None]], said: bool | None) -> None:
    made = epochs(*runs, last=3)
    assert pads(made.by_row(rows((4,))), made.last, 2) is said


# -- writes ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("made", "sure"),
    [
        (launch("aten.copy_.default"), True),
        (launch("aten._foreach_copy_.default"), True),
        (launch("aten.add_.Tensor", Access.READ_WRITE), True),
        (launch("aten.index_select.out"), True),
        (launch("aten.index_put_.default", Access.READ_WRITE), False),
        (launch("aten.scatter_.src", Access.READ_WRITE), False),
        (launch("aten.masked_fill_.Scalar", Access.READ_WRITE), False),
        (launch("mine.refresh.default"), False),
        (launch("fill", Access.UNKNOWN, LaunchKind.TRITON), False),
        (launch("callable", Access.WRITE, LaunchKind.CALLABLE), False),
    ],
    ids=lambda made: made.name if isinstance(made, Launch) else None,
)
def test_who_writes_all_that_it_may_write(made: Launch, sure: bool) -> None:
    assert is_sure(write_of(made, None)) is sure


def test_stores_are_known_for_sure() -> None:
    made = launch("fill", Access.UNKNOWN, LaunchKind.TRITON)
    assert is_sure(write_of(made, StoreLog()))
    assert not is_constant(write_of(made, StoreLog()))


def test_fills_are_told_from_copies() -> None:
    names = ["aten.fill_.Scalar", "aten.zero_.default", "aten._foreach_zero_.default", "aten.copy_.default", "fill"]
    assert [is_constant(wrote(name)) for name in names] == [True, True, True, False, False]


def test_stretches() -> None:
    assert list(stretches([0, 1, 2, 5, 7, 8])) == [(0, 2), (5, 5), (7, 8)]
    assert list(stretches([])) == []
