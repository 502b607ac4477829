"""Rows of the bytes that a finding itself kept, and their values."""

from __future__ import annotations

import numpy as np
import pytest
from support.finding_samples import altered

from shadowgraph.model.findings import Finding, Window
from shadowgraph.views.byte_rows import ByteRow, Ground, Kind, window_rows


def seen(offset: int, expected: bytes, found: bytes, dtype: str = "int32") -> Finding:
    return altered(window=Window(offset, expected.hex(), found.hex()), buffer__dtype=dtype)


def damaged(offset: int, nbytes: int, changed: set[int], dtype: str = "int32") -> list[ByteRow]:
    """Rows of a window of zeros in which bytes at some offsets from the buffer's start became ones."""
    data = bytes(1 if offset + i in changed else 0 for i in range(nbytes))
    return list(window_rows(seen(offset, bytes(nbytes), data, dtype)))


def found(row: ByteRow) -> bytes:
    return bytes(cell.value for cell in row.known if cell.value is not None)


def first(row: ByteRow) -> int:
    """The offset of the first byte of a row that the window holds."""
    return row.known[0].offset


def test_without_a_window_there_is_nothing_to_show() -> None:
    assert list(window_rows(altered(window=None))) == []


def test_a_row_holds_both_values_and_marks_what_changed() -> None:
    before, after = bytes(range(16)), bytes(range(15)) + b"\xff"
    (row,) = window_rows(seen(32, before, after))
    assert (row.offset, row.kind, row.finding, found(row)) == (32, Kind.FOUND, None, after)
    assert [cell.expected for cell in row.cells] == list(before)
    assert [cell.changed for cell in row.cells] == [False] * 15 + [True]
    assert row.values == " ".join(str(v) for v in np.frombuffer(after, dtype=np.int32))


def test_a_row_is_sixteen_bytes_of_which_the_window_may_hold_a_few() -> None:
    (row,) = window_rows(seen(-3, b"\0" * 3, b"\1" * 3))
    assert (row.offset, [cell.offset for cell in row.cells]) == (-16, list(range(-16, 0)))
    assert [cell.value for cell in row.cells] == [None] * 13 + [1] * 3


def test_bytes_beside_the_buffer_are_no_part_of_it() -> None:
    rows = window_rows(seen(1536 - 8, b"\0" * 16, b"\1" * 16))  # the sample's buffer has 1,536 bytes
    grounds = {cell.offset: cell.ground for row in rows for cell in row.known}
    assert grounds == {at: Ground.OWN if at < 1536 else Ground.GUARD for at in range(1528, 1544)}


@pytest.mark.parametrize("offset", [0, 4, 5, 15, 16, 1519, -1, -4, -16, -17, -300])
def test_rows_start_at_multiples_of_sixteen_from_the_buffer(offset: int) -> None:
    rows = damaged(offset, 40, set(range(offset, offset + 40)))
    assert first(rows[0]) == offset
    assert all(row.offset % 16 == 0 for row in rows)
    assert [cell.offset for row in rows for cell in row.known] == list(range(offset, offset + 40))


def test_rows_without_a_change_are_left_out() -> None:
    rows = damaged(8, 100, {8, 50, 107})
    assert [(first(row), len(row.known)) for row in rows] == [(8, 8), (48, 16), (96, 12)]
    assert [sum(cell.changed for cell in row.cells) for row in rows] == [1, 1, 1]


def test_four_rows_at_most() -> None:
    rows = damaged(0, 256, {0, 40, 80, 120, 160, 200})
    assert [row.offset for row in rows] == [0, 32, 80, 112]


@pytest.mark.parametrize(
    ("offset", "values"),
    [
        (0, "1 2 3 4"),
        (-16, "1 2 3 4"),
        (4, "1 2 3"),  # the row ends where the next multiple of 16 begins
        (-4, "1"),
    ],
)
def test_values_are_decoded_where_the_buffers_elements_start(offset: int, values: str) -> None:
    data = np.array([1, 2, 3, 4], dtype=np.int32).tobytes()
    rows = list(window_rows(seen(offset, b"\xa1" * 16, data)))
    assert rows[0].values == values
    assert " ".join(row.values for row in rows) == "1 2 3 4"


@pytest.mark.parametrize("offset", [1, 2, 3, -1, -2, -3, -13, 1519])
def test_a_window_that_starts_inside_an_element_skips_to_the_next(offset: int) -> None:
    data = bytes([9] * (-offset % 4)) + np.array([7, 8], dtype=np.int32).tobytes()
    rows = list(window_rows(seen(offset, b"\xa1" * len(data), data)))
    assert " ".join(row.values for row in rows if row.values) == "7 8"
    assert b"".join(found(row) for row in rows) == data


@pytest.mark.parametrize(
    ("dtype", "values"),
    [
        ("int8", "0 0 -128 63 0 0 0 64"),
        ("int16", "0 16256 0 16384"),
        ("int64", "4611686019492741120"),
        ("float32", "1.0 2.0"),
        ("float16", "0.0 1.875 0.0 2.0"),
        ("bool", "False False True True False False False True"),
        ("bfloat16", "0.0 1.0 0.0 2.0"),
        ("float8_e4m3fn", "0 0 -0 1.875 0 0 0 2"),
        ("complex32", ""),
        ("complex64", "(1+2j)"),
    ],
)
def test_values_by_type(dtype: str, values: str) -> None:
    data = np.array([1.0, 2.0], dtype=np.float32).tobytes()
    (row,) = window_rows(seen(0, b"\xa1" * 8, data, dtype))
    assert row.values == values


def test_too_little_for_one_element_shows_none() -> None:
    (row,) = window_rows(seen(8, b"\xa1" * 4, b"\x01" * 4, "int64"))
    assert (row.values, found(row)) == ("", b"\x01" * 4)
