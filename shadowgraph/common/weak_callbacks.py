"""Callbacks that hold their owner weakly.

A component that held its owner strongly would make a reference cycle, and the owner's device memory would be freed by a
garbage collection, at any time, even in the middle of another thread's capture. Any thread; takes no lock.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar
from weakref import WeakMethod

_P = ParamSpec("_P")
_T = TypeVar("_T")


def weak_callback(method: Callable[_P, _T]) -> Callable[_P, _T]:
    """Wrap a bound method of an owner, for a component that does not outlive the owner.

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
