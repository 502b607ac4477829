"""Calls of an operator with what a dispatch mode or a kernel written in Python was handed for it.

C++ code may make a tensor of a number, and Python is handed the number: TorchScript compares its constants so. Called
from Python, most operators take none. Then nothing has run yet, and the number is made a tensor again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._ops import OpOverload


def call(func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Call an operator from a mode."""
    try:
        return func(*args, **kwargs) if kwargs else func(*args)
    except RuntimeError as error:
        if not _refused(error) or not (numbers := _numbers(func, args)):
            raise
    return func(*_as_tensors(args, numbers), **(kwargs or {}))


def redispatch(operator: OpOverload, keys: torch._C.DispatchKeySet, args: Any, kwargs: Any) -> Any:
    """Go on from a kernel to the next one."""
    try:
        return operator.redispatch(keys, *args, **kwargs)
    except RuntimeError as error:
        if not _refused(error) or not (numbers := _numbers(operator, args)):
            raise
    return operator.redispatch(keys, *_as_tensors(args, numbers), **kwargs)


def _refused(error: RuntimeError) -> bool:
    return "Expected a value of type 'Tensor'" in str(error)


def _numbers(func: Callable[..., Any], args: Any) -> set[int]:
    """Positions of numbers where an operator's schema has tensors."""
    known = func._schema.arguments if isinstance(func, OpOverload) else ()
    tensors = {at for at, argument in enumerate(known) if str(argument.type) == "Tensor"}
    return {at for at, value in enumerate(args) if at in tensors and isinstance(value, int | float | complex)}


def _as_tensors(args: Any, numbers: set[int]) -> list[Any]:
    return [torch.tensor(value) if at in numbers else value for at, value in enumerate(args)]
