"""Values of 8-bit floats, for which numpy has no dtypes: one table of 256 values for each dtype, made on first use."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

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


@cache
def table(dtype: str) -> NDArray[np.float64]:
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
