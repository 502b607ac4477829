"""Fills and comparisons of SG107, by dtype; and its bisection over graphs that are played."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from shadowgraph.checks.undefined.trial import _ends
from shadowgraph.checks.undefined.values import canonical, different, finite, patterns, shown, small

FLOATS = ["float64", "float32", "bfloat16", "float16", "float8_e4m3fn", "float8_e5m2", "complex64"]
INTEGERS = ["int64", "int32", "int16", "int8", "uint8", "bool"]


def tensor(data: bytes, dtype: str) -> torch.Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8).view(getattr(torch, dtype))


def raw(*values: float, dtype: str = "float32") -> np.ndarray:
    return np.asarray(torch.tensor(values).to(getattr(torch, dtype)).view(torch.uint8).numpy())


def size_of(dtype: str) -> int:
    return int(getattr(torch, dtype).itemsize)


@pytest.mark.parametrize("dtype", FLOATS)
def test_floats_are_finite_and_of_either_sign(dtype: str) -> None:
    for make in (patterns, small):
        one, other = (tensor(data, dtype) for data in make(dtype, size_of(dtype)))
        values = [torch.view_as_real(each) if each.is_complex() else each.double() for each in (one, other)]
        assert torch.isfinite(torch.stack(values)).all()
        assert (values[0] > 0).all()
        assert (values[1] < 0).all()
        assert (values[0] != -values[1]).all(), "their squares differ"
    large, little = (
        abs(tensor(make(dtype, size_of(dtype))[0], dtype).to(torch.complex128)) for make in (patterns, small)
    )
    assert little < large


@pytest.mark.parametrize("dtype", INTEGERS)
def test_integers_are_0_and_1(dtype: str) -> None:
    assert [tensor(data, dtype).item() for data in patterns(dtype, size_of(dtype))] == [0, 1]
    assert small(dtype, size_of(dtype)) == patterns(dtype, size_of(dtype))


@pytest.mark.parametrize("dtype", FLOATS[:-1])
def test_zeros_and_nans_are_equal(dtype: str) -> None:
    nan = raw(float("nan"), dtype=dtype)
    negative = nan.copy()
    negative[-1] ^= 0x80
    one = np.concatenate([raw(0.0, 1.0, 2.0, dtype=dtype), nan])
    other = np.concatenate([raw(-0.0, 1.0, 3.0, dtype=dtype), negative])
    assert different(one, other, dtype, size_of(dtype)).tolist() == [2]
    assert different(one, one.copy(), dtype, size_of(dtype)).tolist() == []


def test_elements_that_do_not_fit_are_compared_as_bytes() -> None:
    one, other = np.zeros(6, np.uint8), np.array([0, 0, 0, 128, 0, 7], np.uint8)
    assert different(one, other, "float32", 4).tolist() == [3, 5]


def test_equal_values_have_one_form() -> None:
    assert canonical(raw(0.0, 1.0), "float32", 4) == canonical(raw(-0.0, 1.0), "float32", 4)
    assert canonical(raw(0.0, 1.0), "float32", 4) != canonical(raw(0.0, 2.0), "float32", 4)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_infinities_and_nans_are_told(dtype: str) -> None:
    size = size_of(dtype)
    rows = [raw(value, dtype=dtype).reshape(-1, size) for value in (1.0, float("inf"), float("nan"))]
    assert finite(rows[0], rows[0], dtype)
    assert not finite(rows[0], rows[1], dtype)
    assert not finite(rows[2], rows[0], dtype)
    assert finite(rows[1], rows[1], "int32")


def test_values_in_words() -> None:
    assert [shown(raw(1.5, dtype=each).tobytes(), each) for each in ("float32", "bfloat16")] == ["1.5", "1.5"]
    assert shown(b"\xff\xff", "int16") == "-1"
    assert shown(b"\x01", "bool") == "True"
    assert shown(b"\x38", "float8_e4m3fn") == "0x38"


@pytest.mark.parametrize("culprits", [{0}, {6}, {3}, {2, 5}, {0, 6}])
def test_the_first_and_the_last_that_matter(culprits: set[int]) -> None:
    asked: list[tuple[int, int]] = []

    def matters(first: int, stop: int) -> bool:
        asked.append((first, stop))
        return any(first <= place < stop for place in culprits)

    assert _ends(7, matters) == (min(culprits), max(culprits))
    assert len(asked) <= 6


def test_where_all_are_needed_none_shows() -> None:
    assert _ends(4, lambda first, stop: (first, stop) == (0, 4)) is None
