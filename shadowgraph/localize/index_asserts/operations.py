"""Functions of the Triton language, and of the helpers that inductor's kernels call, on evaluator values."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from shadowgraph.localize.index_asserts.values import (
    LANES,
    OTHER,
    BeyondError,
    Dtype,
    Value,
    binary,
    cast,
    extreme,
    fitted,
    lifted,
    unknown,
    value_of,
    where,
)


def scalar(operand: object) -> int:
    """A number that must be known.

    Raises
    ------
    ValueError
        The number is unknown.
    """
    number = operand.scalar if isinstance(operand, Value) else operand
    if not isinstance(number, int):
        raise ValueError("not a known number")
    return number


def shape_of(sizes: object) -> tuple[int, ...]:
    """A shape as given in the kernel's code."""
    shape = tuple(scalar(size) for size in sizes) if isinstance(sizes, tuple) else (scalar(sizes),)
    if math.prod(shape) > LANES:
        raise BeyondError("too many lanes")
    return shape


def integral(operand: object) -> object:
    """A float literal without a fraction as an integer, for a place that converts it."""
    return int(operand) if isinstance(operand, float) and operand.is_integer() else operand


def reshaped(value: Value, change: Callable[[Any], Any]) -> Value:
    """The same lanes in another form."""
    return Value(change(value.data), change(value.known), value.dtype, value.pointer)


def arange(first: object, last: object) -> Value:
    low, high = scalar(first), scalar(last)
    shape_of((high - low,))
    return value_of(np.arange(low, high), "int32")


def full(shape: object, filling: object, dtype: Dtype) -> Value:
    sizes = shape_of(shape)
    return reshaped(cast(lifted(integral(filling)), str(dtype)), lambda array: np.broadcast_to(array, sizes))


def zeros(shape: object, dtype: Dtype) -> Value:
    return full(shape, 0, dtype)


def broadcast_to(operand: object, *shape: object) -> Value:
    sizes = shape_of(shape[0] if len(shape) == 1 else shape)
    return reshaped(lifted(operand), lambda array: np.broadcast_to(array, sizes))


def reshape(value: Value, *shape: object) -> Value:
    sizes = shape_of(shape[0] if len(shape) == 1 else shape)
    return reshaped(value, lambda array: array.reshape(sizes))


def expand_dims(value: Value, axis: object) -> Value:
    return reshaped(value, lambda array: np.expand_dims(array, scalar(axis)))


def to(operand: object, dtype: Dtype, *, bitcast: bool = False) -> Value:
    value = lifted(integral(operand))
    if bitcast and value.dtype != dtype:
        return unknown(value.data.shape)
    return cast(value, str(dtype))


def minimum(one: object, other: object) -> Value:
    return extreme(one, other, largest=False)


def maximum(one: object, other: object) -> Value:
    return extreme(one, other, largest=True)


def same(operand: object, *_: object) -> Value:
    return lifted(operand)


def total(value: Value, axis: object, keep_dims: bool = False) -> Value:
    wide = _wide(value)
    return _reduced(wide, wide.data.sum(scalar(axis)), axis, keep_dims)


def largest(value: Value, axis: object, *, keep_dims: bool = False) -> Value:
    return _reduced(value, value.data.max(scalar(axis)), axis, keep_dims)


def smallest(value: Value, axis: object, *, keep_dims: bool = False) -> Value:
    return _reduced(value, value.data.min(scalar(axis)), axis, keep_dims)


def any_of(value: Value, axis: object) -> Value:
    return _reduced(value, np.bitwise_or.reduce(value.data, scalar(axis)), axis, False)


def cumsum(value: Value, axis: object = 0) -> Value:
    wide, along = _wide(value), scalar(axis)
    known = np.logical_and.accumulate(wide.known, along)
    return fitted(Value(wide.data.cumsum(along), known, wide.dtype), wide.dtype)


def select_one(value: Value, mask: object, dim: object, keep_dims: bool = False) -> Value:
    return fitted(total(where(mask, value, 0), dim, keep_dims), value.dtype)


def div_floor_integer(one: object, other: object) -> Value:
    quotient, remainder = binary("//", one, other), binary("%", one, other)
    apart = binary("!=", binary("<", one, 0), binary("<", other, 0))
    return where(binary("&", apart, binary("!=", remainder, 0)), binary("-", quotient, 1), quotient)


def remainder_integer(one: object, other: object) -> Value:
    remainder = binary("%", one, other)
    apart = binary("!=", binary("<", one, 0), binary("<", other, 0))
    return where(binary("&", apart, binary("!=", remainder, 0)), binary("+", remainder, other), remainder)


def folded(
    values: Sequence[Value],
    axis: int,
    combine: Callable[..., tuple[Value, ...]],
    running: bool,
    keep_dims: bool = False,
) -> tuple[Value, ...]:
    """A scan, or with `running` off a reduction, one place along the axis at a time."""
    pieces = [
        tuple(Value(_at(v.data, place, axis), _at(v.known, place, axis), v.dtype, v.pointer) for v in values)
        for place in range(values[0].data.shape[axis])
    ]
    sums = [pieces[0]]
    for piece in pieces[1:]:
        sums.append(combine(*sums[-1], *piece))
    chosen = sums if running else sums[-1:]
    found = tuple(_stacked([each[number] for each in chosen], axis) for number in range(len(values)))
    if running or keep_dims:
        return found
    return tuple(reshaped(value, lambda array: array.squeeze(axis)) for value in found)


def _stacked(places: Sequence[Value], axis: int) -> Value:
    data = np.stack([np.asarray(each.data) for each in places], axis)
    known = np.stack([np.asarray(each.known) for each in places], axis)
    return Value(data, known, places[-1].dtype)


def _at(array: Any, place: int, axis: int) -> Any:
    return np.asarray(array.take(place, axis))


def _wide(value: Value) -> Value:
    """The value in the dtype that a sum is computed in."""
    narrow = value.dtype not in ("int32", "int64", "uint32", OTHER)
    return fitted(value, "uint32" if value.dtype.startswith("u") else "int32") if narrow else fitted(value, value.dtype)


def _reduced(value: Value, data: Any, axis: object, keep_dims: object) -> Value:
    along = scalar(axis)
    known = np.asarray(value.known.all(along))
    found = fitted(Value(np.asarray(data), known, value.dtype), value.dtype)
    return expand_dims(found, along) if keep_dims else found


# By module name as in the kernel's code, then by function; keywords as in Triton.
FUNCTIONS: dict[str, dict[str, Callable[..., Value]]] = {
    "tl": {
        "arange": arange, "full": full, "zeros": zeros, "broadcast_to": broadcast_to, "reshape": reshape,
        "view": reshape, "expand_dims": expand_dims, "cast": to, "where": where, "minimum": minimum,
        "maximum": maximum, "sum": total, "max": largest, "min": smallest, "cumsum": cumsum, "multiple_of": same,
        "max_contiguous": same,
    },
    "triton_helpers": {
        "minimum": minimum, "maximum": maximum, "max2": largest, "min2": smallest, "any": any_of,
        "select_one": select_one, "promote_to_tensor": same, "div_floor_integer": div_floor_integer,
        "remainder_integer": remainder_integer, "device_assert_then": lambda _, __, result: lifted(result),
    },
}  # fmt: skip
METHODS: dict[str, Callable[..., Value]] = {"to": to, "reshape": reshape, "view": reshape, "broadcast_to": broadcast_to}
