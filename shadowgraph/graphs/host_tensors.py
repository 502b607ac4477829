"""Integers of tensors on the host, read at the least cost: hooks of adapters read some in every step.

Functions in C++ take the place of those here once the observer's library is loaded (`observer/host_tensors.cpp`). A
hook runs once a step, with cold caches: of ten calls of torch, each touches memory of its own. Any thread; no lock.
"""

from __future__ import annotations

import ctypes
import sys
from typing import Any, NamedTuple

import torch

from shadowgraph.graphs import launch_rows
from shadowgraph.graphs.observer.library import Library
from shadowgraph.graphs.observer.observer import observer

_PLAIN = torch.Tensor, torch.nn.Parameter
_INTEGERS = torch.int32, torch.int64


class _Facts(NamedTuple):
    given: torch.dtype
    address: int
    elements: int
    dtype: torch.dtype


class _Reader:
    """The functions, in Python."""

    def facts(self, given: Any, into: Any, /) -> object | None:
        """What `taken` compares: the type of the integers that a planner is given, and where the wrapper keeps its own.
        None for what are no plain tensors."""
        if type(given) not in _PLAIN or type(into) not in _PLAIN:
            return None
        try:
            return _Facts(given.dtype, into.data_ptr(), into.numel(), into.dtype)
        except RuntimeError:  # without memory of its own
            return None

    def taken(self, facts: Any, given: Any, into: Any, most: int, /) -> tuple[bytes, int, int] | None:
        """The integers that a planner is given, at most so many bytes of them; how many there are; the last one, or 0.
        None where the facts hold no longer, or for other tensors than contiguous ones of the host."""
        if facts is None or self.facts(given, into) != facts or not _readable(given):
            return None
        count, width = given.numel(), given.itemsize
        if not count:
            return b"", 0, 0
        address = given.data_ptr()
        last = ctypes.string_at(address + (count - 1) * width, width)
        return (
            ctypes.string_at(address, min(count * width, most)),
            count,
            int.from_bytes(last, sys.byteorder, signed=True),
        )

    def numbers(self, tensor: Any, most: int, /) -> list[int] | None:
        """The integers of a tensor of one dimension and at most so many elements; None for others."""
        if type(tensor) not in _PLAIN or not _readable(tensor) or tensor.dim() != 1 or tensor.numel() > most:
            return None
        found: list[int] = _values(tensor)
        return found


def _readable(tensor: torch.Tensor) -> bool:
    """Whether these are integers of the host, one behind the other, in memory that is there."""
    if not tensor.is_cpu or tensor.dtype not in _INTEGERS:
        return False
    try:
        if not tensor.is_contiguous() or tensor.is_neg():
            return False
        end = (tensor.storage_offset() + tensor.numel()) * tensor.itemsize
        storage = tensor.untyped_storage()
        return not tensor.numel() or (storage.data_ptr() != 0 and storage.nbytes() >= end)
    except RuntimeError:  # without memory of its own
        return False


_values = torch._C.TensorBase.tolist  # torch's own: checks would see `tolist` of a tensor as a read by the program
_reader = _Reader()
facts, taken, numbers = _reader.facts, _reader.taken, _reader.numbers


def _use(library: Library) -> None:
    global facts, taken, numbers
    if launch_rows.note is not launch_rows.note_in_python:
        facts, taken, numbers = library.host_tensors(launch_rows.note)


observer.when_loaded(_use)
