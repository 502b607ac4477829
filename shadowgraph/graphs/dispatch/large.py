"""Large allocations: which operators' results get a guard where they are made, as a move would hold them twice.

Only operators that allocate their result, fill it with one value or not at all, and do nothing else. `EagerMode` calls
`LargeResults.make` in the thread of the operator, without a lock, where `EagerGuard` wants its results guarded.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch._ops import OpOverload

from shadowgraph.graphs.dispatch.calling import call
from shadowgraph.graphs.dispatch.eager_guard import LARGEST, EagerGuard
from shadowgraph.graphs.dispatch.schemas import Schema
from shadowgraph.graphs.dispatch.stepping_aside import LARGE, stepped_aside
from shadowgraph.graphs.dispatch.tensors import is_plain, view_of
from shadowgraph.tracking.allocator import HostAllocator
from shadowgraph.tracking.large_buffers import Request
from shadowgraph.tracking.torch_segments import FILLED, fills_fresh_memory

OTHER_MODE = "another dispatch mode was active"

_GIVEN = "fill_value"
# What the result is filled with: a number, the argument of that name, or nothing.
_FILLS: dict[str, float | str | None] = {
    **{f"aten.{name}": None for name in ("empty.memory_format", "empty_strided.default", "empty_permuted.default")},
    **{f"aten.{name}.default": None for name in ("empty_like", "new_empty", "new_empty_strided")},
    **{f"aten.{name}.default": 0 for name in ("zeros", "zeros_like", "new_zeros")},
    **{f"aten.{name}.default": 1 for name in ("ones", "ones_like", "new_ones")},
    **{f"aten.{name}.default": _GIVEN for name in ("full", "full_like", "new_full")},
}
_WIDEST = 16  # bytes of an element
_depth: Callable[[], int] = torch._C._len_torch_dispatch_stack


class LargeResults:
    """Makes large results of one device with guards.

    Parameters
    ----------
    rule
        Selects the allocations that are guarded.
    device, index
        Type and number of the device.
    """

    def __init__(self, allocator: HostAllocator, rule: EagerGuard, device: str, index: int) -> None:
        self._allocator, self._rule, self._device, self._index = allocator, rule, device, index

    def make(self, operator: OpOverload, schema: Schema, args: Any, kwargs: Any) -> torch.Tensor | None:
        """The result of an operator if it is large, and may have been given a guard; None where the operator has not
        run. Why a large result has no guard is counted."""
        if schema.name not in _FILLS or _most_bytes(schema, args, kwargs) <= LARGEST:
            return None
        if self._rule.limit() is None or not self._is_here(args, kwargs) or not self._rule.wants_large():
            return None
        blank = _geometry(operator, args, kwargs)
        if blank is None or blank.untyped_storage().nbytes() <= LARGEST:
            return None
        made, reason = None, self._refusal(_FILLS[schema.name])
        if reason is None:
            made, reason = self._allocator.make_large(self._request(operator, schema, args, kwargs, blank))
        if reason is not None:
            stepped_aside(LARGE + reason)
        return made

    def _refusal(self, fill: float | str | None) -> str | None:
        if _depth():  # it must see the program's operator, and may hold no memory
            return OTHER_MODE
        return FILLED if self._device == "cpu" and fill is None and fills_fresh_memory() else None

    def _is_here(self, args: Any, kwargs: Any) -> bool:
        """Whether an operator allocates ordinary memory on this device."""
        like = args[0] if args and isinstance(args[0], torch.Tensor) else None
        if kwargs.get("pin_memory") or kwargs.get("layout") not in (None, torch.strided):
            return False
        device = kwargs.get("device")
        if like is not None and device is None:
            return is_plain(like, self._device) and like.get_device() == self._index
        place = torch.device("cpu" if device is None else device)
        if place.type != self._device or (like is not None and like.layout is not torch.strided):
            return False
        return place.type == "cpu" or self._index == (
            torch.cuda.current_device() if place.index is None else place.index
        )

    def _request(self, operator: OpOverload, schema: Schema, args: Any, kwargs: Any, blank: torch.Tensor) -> Request:
        fill = _FILLS[schema.name]
        value = _given(schema, args, kwargs)[fill] if isinstance(fill, str) else fill
        return Request(
            run=partial(call, operator, args, kwargs),
            build=lambda storage: _filled(view_of(storage, blank), value),
            nbytes=blank.untyped_storage().nbytes(),
            dtype=blank.dtype,
            shape=tuple(blank.shape),
        )


def _filled(tensor: torch.Tensor, value: Any) -> torch.Tensor:
    return tensor if value is None else tensor.fill_(value)


def _given(schema: Schema, args: Any, kwargs: Any) -> dict[str, Any]:
    return {**dict(zip(schema.names, args, strict=False)), **kwargs}


def _most_bytes(schema: Schema, args: Any, kwargs: Any) -> int:
    """Bytes of a result if its elements were the widest; 0 where its size is not given in numbers."""
    size = _given(schema, args, kwargs).get("size")
    if size is None:
        return args[0].numel() * _WIDEST if args and isinstance(args[0], torch.Tensor) else 0
    return math.prod(size) * _WIDEST if all(type(n) is int for n in size) else 0


def _geometry(operator: OpOverload, args: Any, kwargs: Any) -> torch.Tensor | None:
    """The operator's result without memory; None where it raises."""
    try:
        with torch._C._DisableTorchDispatch():
            made: torch.Tensor = operator(*args, **{**kwargs, "device": torch.device("meta")})
    except Exception:  # the program's own, which it gets from its own call
        return None
    return made
