"""Integer values of a kernel as numpy arrays with a known-mask per lane, and integer arithmetic with device semantics.

A lane is known only if it follows from the copied bytes: an overflow where the device would wrap, a division by zero
and a non-integer make it unknown rather than wrong.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Integers: TypeAlias = npt.NDArray[np.int64]
Known: TypeAlias = npt.NDArray[np.bool_]

OTHER = "other"  # floats, and integers too wide for the arrays here: never known
LANES = 1 << 18  # most lanes of one array
_SIGNED, _UNSIGNED = (8, 16, 32, 64), (8, 16, 32)
_RANGES = {
    "int1": (0, 1),
    **{f"int{bits}": (-(1 << bits - 1), (1 << bits - 1) - 1) for bits in _SIGNED},
    **{f"uint{bits}": (0, (1 << bits) - 1) for bits in _UNSIGNED},
}
DTYPES = frozenset(_RANGES)
# Bytes of an element that a pointer leads to.
SIZES = {
    "bool": 1, "int8": 1, "int16": 2, "int32": 4, "int64": 8, "uint8": 1, "uint16": 2, "uint32": 4, "uint64": 8,
    "float16": 2, "bfloat16": 2, "float32": 4, "float64": 8, "complex64": 8, "complex128": 16,
}  # fmt: skip


class BeyondError(Exception):
    """The kernel uses an unsupported construct, or needs too much work: no conclusion is possible."""


class Dtype(str):
    """A dtype as a value of the kernel's own code."""


@dataclass(frozen=True, slots=True)
class Value:
    """Lanes of one dtype; `pointer` is the dtype that they point at, empty where they are no pointers."""

    data: Integers
    known: Known
    dtype: str
    pointer: str = ""

    @property
    def scalar(self) -> int | None:
        """The value of a single known lane."""
        return int(self.data.reshape(-1)[0]) if self.data.size == 1 and self.known.all() else None


def value_of(data: npt.ArrayLike, dtype: str, pointer: str = "") -> Value:
    """Known lanes."""
    array = np.asarray(data, dtype=np.int64)
    return Value(array, np.broadcast_to(np.True_, array.shape), dtype, pointer)


def unknown(shape: tuple[int, ...] = (), dtype: str = OTHER, pointer: str = "") -> Value:
    """Unknown lanes."""
    return Value(np.broadcast_to(np.int64(0), shape), np.broadcast_to(np.False_, shape), dtype, pointer)


def joint_shape(*shapes: tuple[int, ...]) -> tuple[int, ...]:
    """The shape that shapes broadcast to."""
    shape = np.broadcast_shapes(*shapes)
    if math.prod(shape) > LANES:
        raise BeyondError("too many lanes")
    return shape


def lifted(operand: object, like: str = OTHER) -> Value:
    """A value, or a literal converted to the dtype of the other operand; a float is unknown."""
    if isinstance(operand, Value):
        return operand
    if isinstance(operand, bool):
        return value_of(int(operand), "int1")
    if not isinstance(operand, int):
        return unknown()
    if like in (OTHER, "int1"):
        like = "int32" if -(1 << 31) <= operand < 1 << 31 else "int64"
    return value_of(operand, like)


def promoted(one: str, other: str) -> str:
    """The dtype that arithmetic between two dtypes is done in."""
    if one == other or OTHER in (one, other):
        return one if one == other else OTHER
    widths = {dtype: int(dtype.lstrip("uint")) for dtype in (one, other)}
    if widths[one] == widths[other]:
        return one if one.startswith("u") else other
    return max(widths, key=lambda dtype: widths[dtype])


def fitted(value: Value, dtype: str) -> Value:
    """The same values in another dtype; lanes out of its range become unknown."""
    if dtype not in _RANGES:
        return unknown(value.data.shape)
    low, high = _RANGES[dtype]
    known = value.known if dtype == "int64" else value.known & (value.data >= low) & (value.data <= high)
    return Value(value.data, known, dtype)


def cast(value: Value, dtype: str) -> Value:
    """An explicit conversion, with wrap-around."""
    if dtype not in _RANGES or value.dtype not in _RANGES or value.pointer:
        return unknown(value.data.shape, dtype if dtype in _RANGES else OTHER, value.pointer)
    if dtype == "int1":
        return Value((value.data != 0).astype(np.int64), value.known, dtype)
    low, high = _RANGES[dtype]
    data = value.data if dtype == "int64" else (value.data - low) % (high - low + 1) + low
    return Value(data, value.known, dtype)


def pair(one: object, other: object) -> tuple[Value, Value, str]:
    """Two operands in the dtype of their arithmetic, and that dtype."""
    a = lifted(one, other.dtype if isinstance(other, Value) else OTHER)
    b = lifted(other, a.dtype)
    dtype = promoted(a.dtype, b.dtype)
    joint_shape(a.data.shape, b.data.shape)
    return fitted(a, dtype), fitted(b, dtype), dtype


def binary(operator: str, one: object, other: object) -> Value:
    """``one operator other``, as on the device; unknown for an operator that is not listed here."""
    if any(isinstance(operand, Value) and operand.pointer for operand in (one, other)):
        return _moved(operator, one, other)
    a, b, dtype = pair(one, other)
    known = a.known & b.known
    if dtype == OTHER:
        return unknown(known.shape, "int1" if operator in _COMPARED else OTHER)
    if operator in _COMPARED:
        return Value(_COMPARED[operator](a.data, b.data).astype(np.int64), known, "int1")
    compute = _COMPUTED.get(operator)
    if compute is not None:
        return compute(operator, a, b, dtype)
    if operator not in _ADDED or dtype == "int1":  # single bits wrap
        return unknown(known.shape)
    return fitted(Value(_ADDED[operator](a.data, b.data), known, dtype), dtype)


def _shifted(operator: str, a: Value, b: Value, dtype: str) -> Value:
    known = a.known & b.known & (b.data >= 0) & (b.data < int(dtype.lstrip("uint")))
    amount = np.clip(b.data, 0, 63)
    return fitted(Value(a.data << amount if operator == "<<" else a.data >> amount, known, dtype), dtype)


def _bitwise(operator: str, a: Value, b: Value, dtype: str) -> Value:
    """Of single bits one side may settle the result of ``&`` and ``|``."""
    known = a.known & b.known
    if dtype == "int1" and operator != "^":
        settles = 0 if operator == "&" else 1
        known = known | (a.known & (a.data == settles)) | (b.known & (b.data == settles))
        a, b = (Value(np.where(v.known, v.data, 1 - settles), v.known, dtype) for v in (a, b))
    return Value(_BITWISE[operator](a.data, b.data), known, dtype)


def unary(operator: str, operand: Value) -> Value:
    """``-x`` or ``~x``."""
    if operator == "~" and operand.dtype in _RANGES and not operand.pointer:
        flipped = 1 - operand.data if operand.dtype == "int1" else ~operand.data
        return fitted(Value(flipped, operand.known, operand.dtype), operand.dtype)
    return binary("-", 0, operand) if operator == "-" else unknown(operand.data.shape)


def where(condition: object, one: object, other: object) -> Value:
    """Lane-wise selection; only the selected value must be known."""
    chosen = lifted(condition)
    if any(isinstance(operand, Value) and operand.pointer for operand in (condition, one, other)):
        return unknown(pointer=OTHER)
    a, b, dtype = pair(one, other)
    joint_shape(chosen.data.shape, a.data.shape, b.data.shape)
    first = chosen.data != 0
    known = chosen.known & np.where(first, a.known, b.known)
    return Value(np.where(first, a.data, b.data), known, dtype)


def extreme(one: object, other: object, largest: bool) -> Value:
    """The elementwise maximum or minimum."""
    a, b, dtype = pair(one, other)
    return Value((np.maximum if largest else np.minimum)(a.data, b.data), a.known & b.known, dtype)


def _moved(operator: str, one: object, other: object) -> Value:
    """A pointer plus a number of elements."""
    base, offset = (one, other) if isinstance(one, Value) and one.pointer else (other, one)
    assert isinstance(base, Value)
    step = lifted(offset)
    if operator != "+" or base.pointer not in SIZES or step.pointer or step.dtype == OTHER:
        return unknown(joint_shape(base.data.shape, step.data.shape), pointer=base.pointer)
    joint_shape(base.data.shape, step.data.shape)
    data = base.data + step.data * SIZES[base.pointer]
    return Value(data, base.known & step.known, "int64", base.pointer)


def _divided(operator: str, a: Value, b: Value, dtype: str) -> Value:
    """Division as on the device, towards zero."""
    divisor = np.where(b.data == 0, 1, b.data)
    down = a.data // divisor
    remainder = a.data - down * divisor
    quotient = down + ((remainder != 0) & ((a.data < 0) != (divisor < 0)))
    data = quotient if operator == "//" else a.data - quotient * divisor
    return fitted(Value(data, a.known & b.known & (b.data != 0), dtype), dtype)


_Array = Callable[[Integers, Integers], npt.NDArray[np.generic]]
_COMPARED: dict[str, _Array] = {
    "<": np.less, "<=": np.less_equal, ">": np.greater, ">=": np.greater_equal, "==": np.equal, "!=": np.not_equal,
}  # fmt: skip
_ADDED: dict[str, Callable[[Integers, Integers], Integers]] = {"+": np.add, "-": np.subtract, "*": np.multiply}
_BITWISE: dict[str, Callable[[Integers, Integers], Integers]] = {
    "&": np.bitwise_and, "|": np.bitwise_or, "^": np.bitwise_xor,
}  # fmt: skip
_COMPUTED: dict[str, Callable[[str, Value, Value, str], Value]] = {
    "//": _divided, "%": _divided, "<<": _shifted, ">>": _shifted, "&": _bitwise, "|": _bitwise, "^": _bitwise,
}  # fmt: skip
