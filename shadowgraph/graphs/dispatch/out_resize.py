"""Growth of tensors whose storage has a fixed size: new memory behind the same tensor object.

Called by the dispatch modes in the thread of the operator; no lock.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._ops import OpOverload

from shadowgraph.graphs.dispatch.rehoming import rehome
from shadowgraph.graphs.dispatch.tensors import Allocate, Rehomed, is_plain, map_tensors, tensors_in


def call_with_outs(
    func: OpOverload, names: tuple[str, ...], args: Any, kwargs: Any, allocate: Allocate, take_empty: bool
) -> Any:
    """Run an operator with ``out=`` tensors; tensors that have to grow get memory from `allocate`.

    Where one of them has no memory that an address describes (a sparse tensor), the operator runs unchanged.

    Parameters
    ----------
    names
        The operator's ``out=`` arguments.
    take_empty
        Also give memory from `allocate` to empty tensors, which could grow by themselves.
    """
    outs = {name: kwargs[name] for name in names if name in kwargs}
    given = list(tensors_in(outs))
    if not all(is_plain(t, t.device.type) for t in given):
        return func(*args, **kwargs)
    if not take_empty or all(t.numel() for t in given):
        before = _sizes(given)
        with _growing_refused() as refused:
            results = func(*args, **kwargs)
        if not refused:
            if take_empty:
                _settle_resized(given, before, allocate)
            return results
    return _call_with_blank_outs(func, args, kwargs, outs, allocate)


def _call_with_blank_outs(func: OpOverload, args: Any, kwargs: Any, outs: dict[str, Any], allocate: Allocate) -> Any:
    """Run an operator with empty ``out=`` tensors that can grow, and move their contents to the program's tensors."""
    blank = map_tensors(outs, lambda t: torch.empty(0, dtype=t.dtype, device=t.device))
    returned = func(*args, **{**kwargs, **blank})
    for tensor, result in zip(tensors_in(outs), tensors_in(blank), strict=True):
        _settle(tensor, result, allocate)
    results = tuple(outs.values())
    return None if returned is None else results[0] if len(results) == 1 else results


def _sizes(tensors: list[torch.Tensor]) -> list[int]:
    return [tensor.untyped_storage().nbytes() for tensor in tensors]


def _settle_resized(tensors: list[torch.Tensor], before: list[int], allocate: Allocate) -> None:
    """Move the tensors whose storages were resized to memory from `allocate`."""
    for tensor, nbytes in zip(tensors, before, strict=True):
        if tensor.untyped_storage().nbytes() != nbytes:
            _settle(tensor, tensor, allocate)


@contextmanager
def _growing_refused() -> Iterator[list[RuntimeError]]:
    """Holds torch's refusal to resize memory of ours, once it has come; every other error passes."""
    refused: list[RuntimeError] = []
    try:
        yield refused
    except RuntimeError as error:
        if "not resizable" not in str(error):
            raise
        refused.append(error)


def grow(tensor: torch.Tensor, size: torch.Size, allocate: Allocate) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Before a resize to `size`: give a tensor, and those that share its memory, new memory if its own is too small and
    `allocate` has some.

    Returns
    -------
    tuple or None
        The new and the old bytes as far as both reach, already copied; None where there were no bytes to copy.
    """
    old = tensor.untyped_storage()
    wanted = tensor.itemsize * (math.prod(size) + int(tensor.storage_offset()))
    new = allocate(wanted, tensor.dtype, tuple(size)) if wanted > old.nbytes() else None
    if new is None:
        return None
    rehome(tensor, old, new)
    if not old.nbytes():
        return None
    target, source = bytes_of(new)[: old.nbytes()], bytes_of(old)
    target.copy_(source)
    return target, source


def wanted_size(argument: Any) -> torch.Size:
    """The size argument of a resizing operator: a list of numbers, or the size of a template tensor."""
    return argument.size() if isinstance(argument, torch.Tensor) else torch.Size(argument)


def bytes_of(storage: torch.UntypedStorage) -> torch.Tensor:
    """A storage as a flat uint8 tensor that keeps it alive."""
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)


def _settle(tensor: torch.Tensor, result: torch.Tensor, allocate: Allocate) -> None:
    """Point a tensor object at the contents of `result`, in memory from `allocate` if that succeeds."""
    made = Rehomed(result, set(), allocate, result.device.type).fresh[0]
    made = result if made is None else made
    old, new = tensor.untyped_storage(), made.untyped_storage()
    if not tensor.storage_offset() and old.nbytes() and old._cdata != new._cdata and old.nbytes() <= new.nbytes():
        rehome(tensor, old, new)  # the result has all bytes of the old memory
    tensor.set_(made.untyped_storage(), made.storage_offset(), made.size(), made.stride())
