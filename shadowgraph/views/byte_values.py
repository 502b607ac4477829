"""Bytes as values of a dtype, for hex dumps and byte maps. numpy has no 8-bit floats: each dtype of them has a table of
256 values, made on first use.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import groupby

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class _Form:
    """Exponent bits and bias; the rest below the sign is mantissa.

    Attributes
    ----------
    infinite
        Whether the largest exponent means infinities and NaN, as in IEEE 754; else only its last mantissa is NaN.
    zero_once
        There is no negative zero: its code is the only NaN.
    """

    exponent: int
    bias: int
    infinite: bool = False
    zero_once: bool = False


_FORMS = {
    "float8_e4m3fn": _Form(4, 7),
    "float8_e5m2": _Form(5, 15, infinite=True),
    "float8_e4m3fnuz": _Form(4, 8, zero_once=True),
    "float8_e5m2fnuz": _Form(5, 16, zero_once=True),
}
_SCALE = "float8_e8m0fnu"  # powers of two without a sign
SMALL_FLOATS = (*_FORMS, _SCALE)
DTYPES = (
    *("bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"),
    *("float16", "bfloat16", "float32", "float64", "complex64", "complex128"),
    *SMALL_FLOATS,
)


def decoded(data: bytes, dtype: str, offset: int = 0) -> str:
    """Bytes as values of a dtype; `offset` counts from the start of an element. Empty for an unknown dtype."""
    if dtype in SMALL_FLOATS:
        return " ".join(f"{value:g}" for value in _table(dtype)[np.frombuffer(data, dtype=np.uint8)])
    halves = dtype == "bfloat16"  # the upper halves of float32; numpy has no bfloat16
    try:
        kind = np.dtype(np.uint16 if halves else dtype)
    except TypeError:
        return ""
    skip = -offset % kind.itemsize
    usable = (len(data) - skip) // kind.itemsize * kind.itemsize
    if usable <= 0:
        return ""
    values = np.frombuffer(data[skip : skip + usable], dtype=kind)
    if halves:
        values = (values.astype(np.uint32) << 16).view(np.float32)
    return " ".join(str(value) for value in values)


def decoded_runs(row: Sequence[int | None], dtype: str, offset: int) -> str:
    """The same for bytes of which some are not known: the whole elements of each run of known bytes."""
    texts, at = [], offset
    for known, group in groupby(row, key=lambda value: value is not None):
        run = list(group)
        if known:
            texts.append(decoded(bytes(value for value in run if value is not None), dtype, at))
        at += len(run)
    return " .. ".join(filter(None, texts))


@cache
def _table(dtype: str) -> NDArray[np.float64]:
    """The value of each of the 256 codes of one of `SMALL_FLOATS`."""
    if dtype == _SCALE:
        return np.array([*(2.0 ** (code - 127) for code in range(255)), math.nan])
    return np.array([_value(code, _FORMS[dtype]) for code in range(256)])


def _value(code: int, form: _Form) -> float:
    mantissa_bits = 7 - form.exponent
    largest, last = (1 << form.exponent) - 1, (1 << mantissa_bits) - 1
    sign, exponent, mantissa = code >> 7, (code >> mantissa_bits) & largest, code & last
    if form.zero_once:
        if code == 0x80:
            return math.nan
    elif exponent == largest and form.infinite:
        return math.nan if mantissa else math.copysign(math.inf, -sign)
    elif exponent == largest and mantissa == last:
        return math.nan
    lead = 1 if exponent else 0
    size = math.ldexp(lead + mantissa / (last + 1), max(exponent, 1) - form.bias)
    return -size if sign else size
