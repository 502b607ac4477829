from __future__ import annotations

from itertools import product
from operator import mul

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shadowgraph.model.launches import Access, Launch, LaunchKind, Pointer
from shadowgraph.model.ranges import ByteRange, RangeSet
from shadowgraph.model.views import TensorView
from shadowgraph.tracking import writes as writes_module
from shadowgraph.tracking.stores import StoreLog
from shadowgraph.tracking.writes import Write, WriteLog, write_of


def pointer(start: int, count: int, access: Access, stride: int = 1) -> Pointer:
    view = TensorView(start, start, 4 * count * stride, (count,), (stride,), "int32", 4, "cpu")
    return Pointer("x", view, access)


def launch(*pointers: Pointer, name: str = "kernel", kind: LaunchKind = LaunchKind.TRITON) -> Launch:
    return Launch(kind, name, pointers)


def write(*spans: tuple[int, int], name: str = "kernel", opaque: bool = False) -> Write:
    return Write(launch(name=name), RangeSet.of(ByteRange(*span) for span in spans), opaque=opaque)


def names(found: list[Write]) -> list[str]:
    return [one.launch.name for one in found]


# -- what a launch wrote ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("access", list(Access))
def test_without_stores_the_arguments_that_may_be_written_count(access: Access) -> None:
    made = write_of(launch(pointer(1000, 4, access), pointer(2000, 2, Access.WRITE)), None, node=3)
    written = [ByteRange(2000, 2008)] if access is Access.READ else [ByteRange(1000, 1016), ByteRange(2000, 2008)]
    assert (list(made.ranges), made.stores, made.node, made.opaque) == (written, None, 3, False)


def test_stores_are_believed_and_arguments_are_not() -> None:
    log = StoreLog()
    log.add((0, 0, 0), np.array([5000, 5004], dtype=np.uint64), np.zeros(2, dtype=np.int32), 4)
    made = write_of(launch(pointer(1000, 4, Access.UNKNOWN)), log)
    assert (list(made.ranges), made.stores, made.node, made.opaque) == ([ByteRange(5000, 5008)], log, None, False)
    assert list(write_of(launch(pointer(1000, 4, Access.UNKNOWN)), StoreLog()).ranges) == []


def test_a_callable_is_opaque_for_its_declarations_do_not_bind_it() -> None:
    silent = write_of(launch(kind=LaunchKind.CALLABLE), None)
    honest = write_of(launch(pointer(1000, 4, Access.WRITE), kind=LaunchKind.CALLABLE), None)
    assert (silent.opaque, list(silent.ranges)) == (True, [])
    assert (honest.opaque, list(honest.ranges)) == (True, [ByteRange(1000, 1016)])
    assert not write_of(launch(kind=LaunchKind.ATEN), None).opaque


def column(start: int, rows: int) -> Pointer:
    return Pointer("x", TensorView(start, start, 16 * rows, (rows,), (4,), "int32", 4, "cpu"), Access.WRITE)


def test_an_operator_leaves_the_gaps_of_a_strided_view_alone() -> None:
    made = write_of(launch(column(1000, 3), column(1004, 2), kind=LaunchKind.ATEN), None)
    assert list(made.ranges) == [ByteRange(1000, 1008), ByteRange(1016, 1024), ByteRange(1032, 1036)]
    assert not made.hull


def test_too_many_rows_to_tell_apart_are_one_hull(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writes_module, "ROWS", 3)
    fits, made = (write_of(launch(column(1000, rows), kind=LaunchKind.ATEN), None) for rows in (3, 4))
    assert (len(fits.ranges), fits.hull) == (3, False)
    assert (list(made.ranges), made.hull) == ([ByteRange(1000, 1052)], True)


def test_a_kernel_may_write_the_gaps_of_what_it_is_given() -> None:
    made = write_of(launch(column(1000, 3)), None)
    assert (list(made.ranges), made.hull) == ([ByteRange(1000, 1036)], True)
    assert not write_of(launch(pointer(1000, 4, Access.UNKNOWN)), None).hull


@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 6)), max_size=3),
    st.integers(1, 64),
)
def test_ranges_of_a_view_are_its_elements(dims: list[tuple[int, int]], limit: int) -> None:
    shape, stride = tuple(size for size, _ in dims), tuple(step for _, step in dims)
    view = TensorView(4096, 4096, 256, shape, stride, "int16", 2, "cpu")
    starts = [4096 + 2 * sum(map(mul, index, stride)) for index in product(*map(range, shape))]
    found = view.ranges(limit)
    if found is None:
        assert len(starts) > limit
    else:
        assert len(found) <= limit
        assert RangeSet.of(found) == RangeSet.of(ByteRange(start, start + 2) for start in starts)


# -- the journal -----------------------------------------------------------------------------------------------------


def test_culprits_are_those_that_hit_the_bytes_in_order() -> None:
    log = WriteLog()
    for one in (
        write((0, 8), name="before"),
        write((100, 108), name="first"),
        write((90, 101), (200, 300), name="edge"),
        write((108, 120), name="beside"),
        write((104, 105), name="last"),
    ):
        log.add(one)
    assert names(log.culprits(ByteRange(100, 108))) == ["first", "edge", "last"]
    assert log.culprits(ByteRange(300, 400)) == []


def test_between_changed_bytes_there_is_no_culprit() -> None:
    log = WriteLog()
    log.add(write((100, 104), (196, 200), name="did it"))
    log.add(write((140, 150), name="wrote between"))
    assert names(log.culprits(ByteRange(100, 104), ByteRange(196, 200))) == ["did it"]


def test_who_wrote_unseen_is_asked_only_when_nobody_else_did() -> None:
    log = WriteLog()
    log.add(write(name="unseen", opaque=True))
    log.add(write((100, 108), name="seen"))
    assert names(log.culprits(ByteRange(100, 101))) == ["seen"]
    assert names(log.culprits(ByteRange(500, 501))) == ["unseen"]


def test_the_journal_is_bounded_and_counts_what_it_forgot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writes_module, "LIMIT", 3)
    log = WriteLog()
    for index in range(5):
        log.add(write((index, index + 1), name=str(index)))
    assert names(list(log)) == ["2", "3", "4"]
    assert (len(log), log.dropped) == (3, 2)
    log.clear()
    assert (len(log), list(log), log.dropped) == (0, [], 2)


def test_iterating_does_not_mind_writes_that_come_meanwhile() -> None:
    log = WriteLog()
    log.add(write(name="a"))
    for one in log:
        log.add(write(name="b"))
        assert one.launch.name == "a"
    assert len(log) == 2
