"""Values of dtypes, for the experiments of SG107: what undefined bytes are filled with, and whether results differ.
Pure; any thread."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from shadowgraph.model.reruns import Bytes

_WIDE = ("float64", "float32", "bfloat16", "complex128", "complex64")
_NUMPY = {"float64": "f8", "float32": "f4", "float16": "f2", "complex64": "f4", "complex128": "f8", "complex32": "f2"}
# Sign bit, and the bits below the smallest pattern of a NaN, of floats that numpy does not have.
_BITS = {"bfloat16": ("u2", 0x7FFF, 0x7F80), "float8_e4m3fn": ("u1", 0x7F, 0x7E), "float8_e5m2": ("u1", 0x7F, 0x7C)}


def patterns(dtype: str, itemsize: int) -> tuple[bytes, bytes]:
    """Two values for one element, as bytes, that lead to no address out of range and to no infinity by themselves.

    Integers are 0 and 1: an index that is read stays near the start of its table. Floats are large, finite, and of
    either sign and another magnitude, so that a maximum, a minimum, a sum, and a square differ.
    """
    if dtype in _WIDE:
        return b"\x57" * itemsize, b"\xd7" * itemsize
    if dtype.startswith(("float", "complex")):
        return b"\x73" * itemsize, (b"\xf2" if itemsize == 1 else b"\xf3" * itemsize)
    return bytes(itemsize), b"\x01" + bytes(itemsize - 1)


def small(dtype: str, itemsize: int) -> tuple[bytes, bytes]:
    """Two further values, of which no exponential overflows; those of `patterns` for integers."""
    if dtype in _WIDE and dtype not in ("float64", "complex128"):
        return b"\x42" * itemsize, b"\xc2" * itemsize
    if dtype in ("float64", "complex128"):
        return np.float64(48).tobytes() * (itemsize // 8), np.float64(-97).tobytes() * (itemsize // 8)
    if dtype.startswith(("float", "complex")):
        return b"\x42" * itemsize, (b"\xc1" if itemsize == 1 else b"\xc2" * itemsize)
    return patterns(dtype, itemsize)


def finite(one: Bytes, other: Bytes, dtype: str) -> bool:
    """Whether some element, a row of bytes each, is finite in both; always for dtypes without infinities."""
    if dtype in _NUMPY:
        values = [np.ascontiguousarray(each).view(_NUMPY[dtype]) for each in (one, other)]
        return bool((np.isfinite(values[0]) & np.isfinite(values[1])).all(axis=1).any())
    if dtype == "bfloat16":
        bits = [np.ascontiguousarray(each).view("u2").ravel() & 0x7FFF for each in (one, other)]
        return bool(((bits[0] < 0x7F80) & (bits[1] < 0x7F80)).any())
    return True


def different(one: Bytes, other: Bytes, dtype: str, itemsize: int) -> npt.NDArray[np.int64]:
    """Indices of the elements that differ: zeros of either sign are equal, and so are all NaNs."""
    if one.size % itemsize:
        itemsize, dtype = 1, "uint8"
    raw = (one != other).reshape(-1, itemsize).any(axis=1)
    if not raw.any():
        return np.empty(0, dtype=np.int64)
    places = np.flatnonzero(raw)
    same = _same_values(one.reshape(-1, itemsize)[places], other.reshape(-1, itemsize)[places], dtype)
    return places if same is None else places[~same]


def _same_values(one: Bytes, other: Bytes, dtype: str) -> npt.NDArray[np.bool_] | None:
    """Which of some elements, a row of bytes each, have equal values; None where only their bytes count."""
    if dtype in _NUMPY:
        left, right = np.ascontiguousarray(one).view(_NUMPY[dtype]), np.ascontiguousarray(other).view(_NUMPY[dtype])
        alike: npt.NDArray[np.bool_] = ((left == right) | (np.isnan(left) & np.isnan(right))).all(axis=1)
        return alike
    if dtype not in _BITS:
        return None
    form, magnitude, infinite = _BITS[dtype]
    left = np.ascontiguousarray(one).view(form).ravel() & magnitude
    right = np.ascontiguousarray(other).view(form).ravel() & magnitude
    both: npt.NDArray[np.bool_] = ((left == 0) & (right == 0)) | ((left > infinite) & (right > infinite))
    return both


def canonical(data: Bytes, dtype: str, itemsize: int) -> bytes:
    """Bytes that are equal for elements of equal values."""
    if data.size % itemsize or dtype not in _NUMPY:
        return data.tobytes()
    values = np.ascontiguousarray(data).view(_NUMPY[dtype]) + 0.0  # a negative zero becomes a positive one
    values[np.isnan(values)] = np.nan
    return values.tobytes()


def shown(data: bytes, dtype: str) -> str:
    """One element in words."""
    if dtype == "bool":
        return str(bool(data[0]))
    if dtype == "bfloat16":
        return f"{np.frombuffer(bytes(2) + data, '<f4')[0]:.6g}"
    if dtype in _NUMPY and not dtype.startswith("complex"):
        return f"{np.frombuffer(data, _NUMPY[dtype])[0]:.6g}"
    if dtype.startswith(("int", "uint")):
        return str(int.from_bytes(data, "little", signed=dtype.startswith("int")))
    return f"0x{data[::-1].hex()}"
