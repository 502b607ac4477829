"""Calls back to an owner that do not keep it: a part that held its owner would make a cycle, and what the owner has on
a device would go with a collection, at any time, in the middle of somebody's capture too."""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar
from weakref import WeakMethod

_P = ParamSpec("_P")
_T = TypeVar("_T")


def weak_callback(method: Callable[_P, _T]) -> Callable[_P, _T]:
    """A bound method of an owner, for a part that lives no longer than it.

    Raises
    ------
    ReferenceError
        From the call, when the owner is gone.
    """
    found = WeakMethod(method)
    name = getattr(method, "__qualname__", "a method")

    def call(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        alive = found()
        if alive is None:
            raise ReferenceError(f"{name} was called after its owner had gone")
        return alive(*args, **kwargs)

    return call
