"""Hooks inside Triton's interpreter, active while one of our launches runs: they log its stores, and loads where these
are wanted, or confine its accesses.

Every store of a kernel, including those through block pointers and tensor descriptors, ends in one of three methods of
the interpreter's builder, with an address and a mask for each lane. The running launch is thread-local; no lock.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from types import FrameType
from typing import Any

import numpy as np
import numpy.typing as npt

from shadowgraph import tracking
from shadowgraph.common.internal_errors import error_barrier
from shadowgraph.model.ranges import ByteRange
from shadowgraph.model.stacks import Frame
from shadowgraph.tracking import fence_hits
from shadowgraph.tracking.loads import LoadLog
from shadowgraph.tracking.pool_watch import watch
from shadowgraph.tracking.stores import StoreLog

Mask = npt.NDArray[np.bool_]
_OURS = (os.path.dirname(__file__), os.path.dirname(tracking.__file__))
_FILES, _LINES = 1024, 4096  # files of which is known whether they have kernels, and lines of kernels


@dataclass(frozen=True, slots=True)
class Running:
    """The launch that runs in this thread.

    Attributes
    ----------
    log
        The log that receives its stores.
    allowed
        The only bytes that it may load and store; None for no limit.
    """

    log: StoreLog | None = None
    allowed: list[ByteRange] | None = None


class _Local(threading.local):
    running: Running | None = None


_local = _Local()


@contextmanager
def running(launch: Running) -> Iterator[None]:
    """Context in which the hooks of this thread serve a launch."""
    before, _local.running = _local.running, launch
    try:
        yield
    finally:
        _local.running = before


def wrap_load(original: Callable[..., Any]) -> Callable[..., Any]:
    def load(builder: Any, ptrs: Any, mask: Any, other: Any, *rest: Any, **named: Any) -> Any:
        launch = _local.running
        if launch is not None and launch.allowed is not None:
            itemsize = max(1, ptrs.get_element_ty().primitive_bitwidth // 8)
            mask = _confined(mask, ptrs.data, itemsize, launch.allowed)
        if launch is not None and launch.log is not None and launch.log.loads is not None:
            with error_barrier("note loads"):
                itemsize = max(1, ptrs.get_element_ty().primitive_bitwidth // 8)
                _note_loads(launch.log.loads, builder, ptrs.data, itemsize, _lanes(mask, ptrs.data))
        if launch is not None and launch.log is not None and watch.on:
            with error_barrier("note loads"):
                itemsize = max(1, ptrs.get_element_ty().primitive_bitwidth // 8)
                launch.log.note_load(ptrs.data[_lanes(mask, ptrs.data)].astype(np.uint64), itemsize)
        if fence_hits.current is not None:
            _look_at_fences(ptrs, max(1, ptrs.get_element_ty().primitive_bitwidth // 8), mask, False)
        return original(builder, ptrs, mask, other, *rest, **named)

    return load


def wrap_store(original: Callable[..., Any]) -> Callable[..., Any]:
    def store(builder: Any, ptrs: Any, value: Any, mask: Any, *rest: Any) -> Any:
        launch = _local.running
        if launch is not None and launch.allowed is not None:
            mask = _confined(mask, ptrs.data, value.data.dtype.itemsize, launch.allowed)
        if fence_hits.current is not None:
            _look_at_fences(ptrs, value.data.dtype.itemsize, mask, True)
        if launch is None:
            return original(builder, ptrs, value, mask, *rest)
        result = original(builder, ptrs, value, mask, *rest)
        if launch.log is not None:
            with error_barrier("note stores"):
                values = np.broadcast_to(value.data, ptrs.data.shape)
                _note(launch.log, builder, ptrs.data, values, _lanes(mask, ptrs.data))
        return result

    return store


def wrap_rmw(original: Callable[..., Any]) -> Callable[..., Any]:
    def rmw(builder: Any, op: Any, ptr: Any, val: Any, mask: Any, *rest: Any) -> Any:
        launch = _local.running
        if launch is not None and launch.allowed is not None:
            mask = _confined(mask, ptr.data, val.data.dtype.itemsize, launch.allowed)
        if fence_hits.current is not None:
            _look_at_fences(ptr, val.data.dtype.itemsize, mask, True)
        if launch is None:
            return original(builder, op, ptr, val, mask, *rest)
        if launch.log is not None and launch.log.loads is not None:
            with error_barrier("note loads"):
                _note_loads(launch.log.loads, builder, ptr.data, val.data.dtype.itemsize, _lanes(mask, ptr.data))
        result = original(builder, op, ptr, val, mask, *rest)
        if launch.log is not None:
            with error_barrier("note stores"):
                _note_memory(launch.log, builder, ptr.data, val.data.dtype, _lanes(mask, ptr.data))
        return result

    return rmw


def wrap_cas(original: Callable[..., Any]) -> Callable[..., Any]:
    def cas(builder: Any, ptr: Any, cmp: Any, val: Any, *rest: Any) -> Any:
        launch = _local.running
        allowed = launch.allowed if launch is not None else None
        if allowed is not None and not _inside(ptr.data, val.data.dtype.itemsize, allowed).all():
            return cmp  # as if another value had been stored first
        if fence_hits.current is not None:
            _look_at_fences(ptr, val.data.dtype.itemsize, np.ones(np.shape(ptr.data), dtype=bool), True)
        result = original(builder, ptr, cmp, val, *rest)
        if launch is not None and launch.log is not None:
            with error_barrier("note stores"):
                _note_memory(launch.log, builder, ptr.data, val.data.dtype, result.data == cmp.data)
        return result

    return cas


def _look_at_fences(pointers: Any, itemsize: int, mask: Any, writes: bool) -> None:
    """Say what is about to run into a fence, if anything is."""
    hits = fence_hits.current
    with error_barrier("fences"):
        if hits is not None:
            hits.look(pointers.data[_lanes(mask, pointers.data)].astype(np.uint64), itemsize, writes)


def _confined(mask: Any, addresses: Any, itemsize: int, allowed: list[ByteRange]) -> Any:
    from triton import language
    from triton.runtime.interpreter import TensorHandle

    return TensorHandle(_lanes(mask, addresses) & _inside(addresses, itemsize, allowed), language.int1)


def _lanes(mask: Any, addresses: Any) -> Mask:
    """A mask as an array in the addresses' shape; for block pointers the interpreter hands over a bare array."""
    lanes = mask if isinstance(mask, np.ndarray) else mask.data
    return np.broadcast_to(np.asarray(lanes, dtype=bool), np.shape(addresses))


def _inside(addresses: Any, itemsize: int, allowed: list[ByteRange]) -> Mask:
    inside = np.zeros(np.shape(addresses), dtype=bool)
    for where in allowed:
        if where.nbytes >= itemsize:
            inside |= (addresses >= np.uint64(where.start)) & (addresses <= np.uint64(where.stop - itemsize))
    return inside


def _note(
    log: StoreLog, builder: Any, addresses: Any, values: npt.NDArray[Any], lanes: Mask, atomic: bool = False
) -> None:
    size = values.dtype.itemsize
    axis = _fastest_axis(addresses, size)
    if axis is not None:  # lanes are kept in the order in which they lie in memory
        addresses, values, lanes = (np.moveaxis(each, axis, -1) for each in (addresses, values, lanes))
    log.add(builder.grid_idx, addresses[lanes].astype(np.uint64), values[lanes].copy(), size, atomic, _kernel_frame())


def _fastest_axis(addresses: Any, size: int) -> int | None:
    """The axis along which the elements of a tile lie side by side, unless that is the last one."""
    if addresses.ndim < 2 or not addresses.size:
        return None
    first = addresses.flat[0]
    for axis in reversed(range(addresses.ndim)):
        second = np.take(addresses, 1, axis=axis).flat[0] if addresses.shape[axis] > 1 else first
        if second - first == size:
            return axis if axis < addresses.ndim - 1 else None
    return None


def _note_memory(log: StoreLog, builder: Any, addresses: Any, dtype: np.dtype[Any], lanes: Mask) -> None:
    """Log an atomic's lanes with the values that it left in memory: its operand is not the stored value."""
    from triton._C.libtriton import interpreter

    lanes = np.broadcast_to(lanes, np.shape(addresses))
    left = interpreter.load(addresses, np.ascontiguousarray(lanes), np.zeros(np.shape(addresses), dtype), dtype)
    _note(log, builder, addresses, left, lanes, atomic=True)


def _note_loads(log: LoadLog, builder: Any, addresses: Any, itemsize: int, lanes: Mask) -> None:
    log.add(builder.grid_idx, addresses[lanes].astype(np.uint64), itemsize, _kernel_line)


def _kernel_line() -> int:
    """The line of the kernel that runs; 0 where it is not known."""
    frame = _kernel_frame()
    return frame.line if frame is not None else 0


def _kernel_frame() -> Frame | None:
    """The line of the kernel that runs: of the innermost function outside Triton and this package."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if code.co_filename.startswith("<"):
            return None  # source without a file, such as a kernel of plain IPython
        if _is_kernel(code.co_filename):
            return _frame(code.co_filename, frame.f_lineno, code.co_name)
        frame = frame.f_back
    return None


@lru_cache(_FILES)
def _is_kernel(file: str) -> bool:
    return not file.startswith((*_OURS, _triton_home()))


def _triton_home() -> str:
    return os.path.join(os.path.dirname(sys.modules["triton"].__file__ or ""), "")


@lru_cache(_LINES)
def _frame(file: str, line: int, function: str) -> Frame:
    return Frame(file, line, function)
