from __future__ import annotations

import numpy as np
import pytest
from support.finding_samples import altered

from shadowgraph.model.findings import Finding, Window
from shadowgraph.views.hexview import HexRow, hex_rows


def seen(offset: int, expected: bytes, found: bytes, dtype: str = "int32") -> Finding:
    return altered(window=Window(offset, expected.hex(), found.hex()), buffer__dtype=dtype)


def damaged(offset: int, nbytes: int, changed: set[int], dtype: str = "int32") -> list[HexRow]:
    """Rows of a window of zeros in which bytes at some offsets from the buffer's start became ones."""
    found = bytes(1 if offset + i in changed else 0 for i in range(nbytes))
    return hex_rows(seen(offset, bytes(nbytes), found, dtype))


def test_without_a_window_there_is_nothing_to_show() -> None:
    assert hex_rows(altered(window=None)) == []


def test_a_row_holds_both_values_and_marks_what_changed() -> None:
    expected, found = bytes(range(16)), bytes(range(15)) + b"\xff"
    (row,) = hex_rows(seen(32, expected, found))
    assert (row.offset, row.expected, row.found) == (32, expected, found)
    assert row.changed == (False,) * 15 + (True,)
    assert row.values == " ".join(str(v) for v in np.frombuffer(found, dtype=np.int32))


@pytest.mark.parametrize("offset", [0, 4, 5, 15, 16, 1519, -1, -4, -16, -17, -300])
def test_rows_start_at_multiples_of_sixteen_from_the_buffer(offset: int) -> None:
    rows = damaged(offset, 40, set(range(offset, offset + 40)))
    assert rows[0].offset == offset
    assert all(row.offset % 16 == 0 for row in rows[1:])
    assert [row.offset + len(row.found) for row in rows[:-1]] == [row.offset for row in rows[1:]]
    assert sum(len(row.found) for row in rows) == 40


def test_rows_without_a_change_are_left_out() -> None:
    rows = damaged(8, 100, {8, 50, 107})
    assert [(row.offset, len(row.found)) for row in rows] == [(8, 8), (48, 16), (96, 12)]
    assert [sum(row.changed) for row in rows] == [1, 1, 1]


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
    rows = hex_rows(seen(offset, b"\xa1" * 16, data))
    assert rows[0].values == values
    assert " ".join(row.values for row in rows) == "1 2 3 4"


@pytest.mark.parametrize("offset", [1, 2, 3, -1, -2, -3, -13, 1519])
def test_a_window_that_starts_inside_an_element_skips_to_the_next(offset: int) -> None:
    data = bytes([9] * (-offset % 4)) + np.array([7, 8], dtype=np.int32).tobytes()
    rows = hex_rows(seen(offset, b"\xa1" * len(data), data))
    assert " ".join(row.values for row in rows if row.values) == "7 8"
    assert b"".join(row.found for row in rows) == data


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
    (row,) = hex_rows(seen(0, b"\xa1" * 8, data, dtype))
    assert row.values == values


def test_too_little_for_one_element_shows_none() -> None:
    (row,) = hex_rows(seen(8, b"\xa1" * 4, b"\x01" * 4, "int64"))
    assert (row.values, row.found) == ("", b"\x01" * 4)
