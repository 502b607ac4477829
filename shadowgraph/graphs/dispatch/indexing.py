"""Operators that take indices, and the range that each accepts. A kernel on a device stops the context at any other
index.

Pure functions of an operator's name and arguments.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from shadowgraph.model.launches import IndexRule
from shadowgraph.model.views import TensorView

# Operators with `self`, `dim` and `index`; those in which a negative index counts from the end.
_ALONG = {
    "scatter", "scatter_", "scatter_add", "scatter_add_", "scatter_reduce", "scatter_reduce_", "gather",
    "index_select", "index_add", "index_add_", "index_copy", "index_copy_", "index_reduce", "index_reduce_",
    "index_fill", "index_fill_",
}  # fmt: skip
_ALONG_WRAPS = {"index_fill", "index_fill_"}
_ADVANCED = {"index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index", "_unsafe_index_put"}
_FLAT = {"take", "put", "put_"}


@dataclass(frozen=True, slots=True)
class IndexUse:
    """One index tensor of a call.

    Attributes
    ----------
    argument
        Its name in the operator's schema; members of a list as ``indices[i]``.
    target
        The tensor that is indexed.
    dim, low, high
        Dimension, None for a flattened tensor; values from `low` up to, but not including, `high` are valid.
    """

    argument: str
    index: torch.Tensor
    target: torch.Tensor
    dim: int | None
    low: int
    high: int

    def rule(self) -> IndexRule:
        """The same facts without the tensors."""
        views = TensorView.of(self.index), TensorView.of(self.target)
        return IndexRule(self.argument, *views, self.dim, self.low, self.high)


def takes_indices(name: str) -> bool:
    """Whether an operator, ``aten.gather.default`` for instance, is known to take indices."""
    return _operator(name) in _KNOWN


_KNOWN = _ALONG | _ADVANCED | _FLAT | {"embedding"}


def index_uses(name: str, given: Mapping[str, Any]) -> Iterator[IndexUse]:
    """The index tensors of a call of operator `name` with these arguments; empty ones and masks are left out."""
    operator = _operator(name)
    if operator in _ALONG:
        yield from _along(operator, given)
    elif operator in _ADVANCED:
        yield from _advanced(given)
    elif operator in _FLAT:
        size = given["self"].numel()
        yield from _use("index", given["index"], given["self"], None, -size, size)
    elif operator == "embedding":
        yield from _use("indices", given["indices"], given["weight"], 0, 0, given["weight"].shape[0])


def _operator(name: str) -> str:
    parts = name.split(".")
    return parts[1] if len(parts) > 1 and parts[0] == "aten" else ""


def _along(operator: str, given: Mapping[str, Any]) -> Iterator[IndexUse]:
    target, dim = given["self"], given["dim"]
    if not target.dim():
        return
    size = target.shape[dim]
    low = -size if operator in _ALONG_WRAPS else 0
    yield from _use("index", given["index"], target, dim % target.dim(), low, size)


def _advanced(given: Mapping[str, Any]) -> Iterator[IndexUse]:
    dim = 0
    for position, index in enumerate(given["indices"]):
        if index is None:
            dim += 1
        elif index.dtype in (torch.bool, torch.uint8):
            dim += max(1, index.dim())
        else:
            size = given["self"].shape[dim]
            yield from _use(f"indices[{position}]", index, given["self"], dim, -size, size)
            dim += 1


def _use(
    argument: str, index: torch.Tensor, target: torch.Tensor, dim: int | None, low: int, high: int
) -> Iterator[IndexUse]:
    if isinstance(index, torch.Tensor) and index.numel():
        yield IndexUse(argument, index, target, dim, low, high)
