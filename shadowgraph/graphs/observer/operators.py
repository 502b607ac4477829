"""Rows of the compiled observer as launches: names, arguments and accesses come from the schemas of the operators.

Pure functions, called where evidence is looked at; any thread, no lock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch

from shadowgraph.graphs.dispatch.schemas import Schema, schema_of
from shadowgraph.graphs.observer.library import ALONE, HOST, Rows
from shadowgraph.model.launches import Access, Launch, LaunchKind, Pointer
from shadowgraph.model.ranges import ByteRange
from shadowgraph.model.views import TensorView

# Torch's numbers of dtypes (`c10::ScalarType`), which files of tensors hold too: they do not change.
_DTYPES = [
    "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64", "complex32", "complex64", "complex128",
    "bool", "qint8", "quint8", "qint32", "bfloat16", "quint4x2", "quint2x4", "bits1x8", "bits2x4", "bits4x2", "bits8",
    "bits16", "float8_e5m2", "float8_e4m3fn", "float8_e5m2fnuz", "float8_e4m3fnuz", "uint16", "uint32", "uint64",
    *(f"uint{bits}" for bits in range(1, 8)), *(f"int{bits}" for bits in range(1, 8)),
    "float8_e8m0fnu", "float4_e2m1fn_x2",
]  # fmt: skip


class ObservedOperator(NamedTuple):
    """An operator that had begun to run, and wrote tensors with memory of their own.

    Attributes
    ----------
    sequence
        Its number among the rows of all threads, in the order in which they began.
    time
        In seconds, as `time.time`.
    thread
        As `threading.get_ident`.
    stream
        Torch's number of the stream that was current on the device of the first tensor there; None for host memory.
    launch
        Without a stack. Views are flat: from the first to the last byte that a tensor's elements have.
    complete
        Whether `launch` has all of its tensors. Wrappers of other tensors have no memory.
    """

    sequence: int
    time: float
    thread: int
    stream: int | None
    launch: Launch
    complete: bool


def touching(rows: Rows, ranges: Iterable[ByteRange]) -> Rows:
    """The rows of calls that may write bytes of one of the ranges."""
    places = rows["places"]
    given = (np.arange(places.shape[1]) < rows["count"][:, None]) & (places["writes"] != 0)
    starts, stops = places["address"], places["address"] + places["nbytes"]
    hit = np.zeros(len(rows), bool)
    for each in ranges:
        hit |= (given & (starts < each.stop) & (stops > each.start)).any(axis=1)
    return rows[np.isin(rows["first"], rows["first"][hit])]  # with the other rows of the same calls


def operators_in(rows: Rows, name_of: Callable[[int], tuple[str, str]]) -> list[ObservedOperator]:
    """The operators that rows, in order, tell of; those that change no bytes are left out."""
    found: list[ObservedOperator] = []
    for call in _calls(rows):
        name, overload = name_of(int(call[0]["operator"]))
        schema = schema_named(name, overload)
        if schema is None or not schema.pure_view:
            found.append(_observed(call, text_of(name, overload), schema))
    return found


def _calls(rows: Rows) -> Iterator[Rows]:
    """The rows of each call, in the order in which they began. One that a dispatch mode has handed on comes once."""
    if not len(rows):
        return
    together = rows[np.argsort(rows["first"], kind="stable")]
    latest: dict[int, Rows] = {}  # by thread
    for call in np.split(together, np.flatnonzero(np.diff(together["first"])) + 1):
        thread = int(call[0]["thread"])
        before = latest.get(thread)
        if before is None or not _hands_on(before, call):
            latest[thread] = call
            yield call


def _hands_on(outer: Rows, inner: Rows) -> bool:
    """Whether two calls are of one operator that writes the same tensors, and the second was made by the first."""
    same = len(outer) == len(inner) and bool(inner[0]["depth"] > outer[0]["depth"])
    return same and all(
        a["operator"] == b["operator"] and a["count"] == b["count"] and _places(a) == _places(b)
        for a, b in zip(outer, inner, strict=True)
    )


def _places(row: Any) -> list[Any]:
    """The tensors that a row's call writes. A number becomes another tensor each time it is handed on."""
    places = row["places"][: row["count"]]
    written: list[Any] = places[places["writes"] != 0].tolist()
    return written


def _observed(call: Rows, name: str, schema: Schema | None) -> ObservedOperator:
    first = call[0]
    places = [place for row in call for place in row["places"][: row["count"]]]
    here = any(place["device"] != HOST for place in places)
    return ObservedOperator(
        int(first["sequence"]),
        int(first["time"]) / 1e9,
        int(first["thread"]),
        int(first["stream"]) if here else None,
        Launch(LaunchKind.ATEN, name, tuple(_pointer(place, schema) for place in places)),
        bool(first["part"] == 0 and not call["omitted"].any() and not call["opaque"].any()),
    )


def _pointer(place: Any, schema: Schema | None) -> Pointer:
    at, address, nbytes = int(place["argument"]), int(place["address"]), int(place["nbytes"])
    known = schema is not None and at < len(schema.names)
    argument = schema.names[at] if schema is not None and known else f"argument {at}"
    if place["member"] != ALONE:
        argument = f"{argument}[{place['member']}]"
    dtype, itemsize = dtype_of(int(place["dtype"]))
    device = "cpu" if place["device"] == HOST else f"cuda:{place['device']}"
    count = nbytes // itemsize
    view = TensorView(address, address, nbytes, (count,), (1,), dtype, itemsize, device)
    if not place["writes"]:
        return Pointer(argument, view, Access.READ)
    return Pointer(argument, view, Access.WRITE if schema is not None and schema.overwrites else Access.READ_WRITE)


@cache
def dtype_of(number: int) -> tuple[str, int]:
    """Name and size of a dtype by torch's number."""
    name = _DTYPES[number] if 0 <= number < len(_DTYPES) else f"dtype {number}"
    known = getattr(torch, name, None)
    return name, known.itemsize if isinstance(known, torch.dtype) else 1


def text_of(name: str, overload: str) -> str:
    """As dispatch modes name an operator: ``aten.copy_.default``."""
    return f"{name.replace('::', '.', 1)}.{overload or 'default'}"


@cache
def schema_named(name: str, overload: str) -> Schema | None:
    """The facts of an operator, or None where it is no longer registered."""
    namespace, _, operator = name.partition("::")
    try:
        return schema_of(getattr(getattr(getattr(torch.ops, namespace), operator), overload or "default"))
    except (AttributeError, RuntimeError):
        return None
