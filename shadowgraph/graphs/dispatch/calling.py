"""Calls of an operator with the arguments that a dispatch mode or a Python kernel received.

C++ code may convert a number to a tensor, while Python receives the number: TorchScript compares its constants so. Most
operators refuse a number there when called from Python; no part of the operator has run then, and the number is
converted to a tensor again. Any thread; no lock.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._ops import OpOverload


def call(func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Call an operator from a dispatch mode."""
    try:
        return func(*args, **kwargs) if kwargs else func(*args)
    except RuntimeError as error:
        if not _refused(error) or not (numbers := _numbers(func, args)):
            raise
    return func(*_as_tensors(args, numbers), **(kwargs or {}))


def redispatch(operator: OpOverload, keys: torch._C.DispatchKeySet, args: Any, kwargs: Any) -> Any:
    """Call the next kernel of an operator from a kernel."""
    try:
        return operator.redispatch(keys, *args, **kwargs)
    except RuntimeError as error:
        if not _refused(error) or not (numbers := _numbers(operator, args)):
            raise
    return operator.redispatch(keys, *_as_tensors(args, numbers), **kwargs)


def _refused(error: RuntimeError) -> bool:
    return "Expected a value of type 'Tensor'" in str(error)


def _numbers(func: Callable[..., Any], args: Any) -> set[int]:
    """Positions of numbers where the operator's schema has tensors."""
    known = func._schema.arguments if isinstance(func, OpOverload) else ()
    tensors = {at for at, argument in enumerate(known) if str(argument.type) == "Tensor"}
    return {at for at, value in enumerate(args) if at in tensors and isinstance(value, int | float | complex)}


def _as_tensors(args: Any, numbers: set[int]) -> list[Any]:
    return [torch.tensor(value) if at in numbers else value for at, value in enumerate(args)]
