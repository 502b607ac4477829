"""Eager operators on watched memory of graph pools.

Called by the eager mode in the thread of each operator, without a lock; `note_operator` only while there is watched
memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch._ops import OpOverload

from shadowgraph.common.internal_errors import internal_errors
from shadowgraph.graphs.dispatch import host_reads
from shadowgraph.graphs.dispatch.op_filter import path_of
from shadowgraph.graphs.dispatch.schemas import Schema
from shadowgraph.graphs.dispatch.tensors import is_lazy_copy, is_plain, named_tensors
from shadowgraph.graphs.events import events
from shadowgraph.model.launches import Access
from shadowgraph.model.views import TensorView
from shadowgraph.tracking.pool_watch import watch

_ORDINARY = (torch.Tensor, torch.nn.Parameter)
# Operators that write parts of an argument in place and keep the rest: no read of it, though their schemas allow one.
# So do those of libraries, which may fill an output that they are given.
_PARTIAL = ("aten.index_", "aten._index_put", "aten.scatter", "aten.masked_", "aten.put_", "aten.slice_scatter")


def note_operator(func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Report the tensors in watched memory that an operator is about to read, or to write."""
    try:
        if any(map(_is_watched, args)) or (kwargs and any(map(_is_watched, kwargs.values()))):
            for name, tensor, access in list(_touched(func, args, kwargs)):
                if access is not Access.WRITE:
                    events.pool_read(tensor, TensorView.of(tensor), name)
                if access is not Access.READ:
                    events.pool_written(tensor, TensorView.of(tensor), name)
    except Exception as error:
        internal_errors.note("operator on pool memory", error)


def _is_watched(value: Any) -> bool:
    if type(value) in _ORDINARY:
        try:
            return not is_lazy_copy(value) and watch.covers(value.data_ptr())
        except RuntimeError:  # no memory of its own
            return False
    return isinstance(value, list | tuple) and any(map(_is_watched, value))


def _touched(
    func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Iterator[tuple[str, torch.Tensor, Access]]:
    if func.is_view or host_reads.reading():
        return
    path = path_of(func, args)
    if path.schema.host_read or path.schema.pure_view or path.schema.borrows:
        return
    for argument, tensor in named_tensors(path.schema.names, args, kwargs):
        if _is_watched(tensor) and _is_here(tensor):
            yield path.schema.name, tensor, _access(path.schema, argument)


def _access(schema: Schema, argument: str) -> Access:
    access = schema.access(argument)
    if access is Access.READ_WRITE and (schema.name.startswith(_PARTIAL) or not schema.name.startswith("aten.")):
        return Access.WRITE
    return access


def _is_here(tensor: torch.Tensor) -> bool:
    return is_plain(tensor, "cuda" if tensor.is_cuda else "cpu")
