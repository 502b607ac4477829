"""Keeps torch's own code from importing inductor into a program that has not: a second or more, hundreds of modules.

``torch.__getattr__`` imports it when it is looked for, and torch looks for it each time it symbolizes stacks. The
thread inside of `inductor_stays_out` does not find it; others import it as ever. Any thread; a lock serialises
beginnings and ends.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch

from shadowgraph.common.fork_safety import fork_safe

_NAME, _HOOK = "_inductor", "__getattr__"
_Getter = Callable[[str], Any]
_inside = threading.local()


class _Hook:
    """Stands in for ``torch.__getattr__`` while any thread is in a block."""

    def __init__(self) -> None:
        self._lock = fork_safe(threading.Lock())
        self._blocks = 0
        self._original: _Getter | None = None
        self._ours: _Getter | None = None

    def begin(self) -> None:
        with self._lock:
            self._blocks += 1
            found = vars(torch).get(_HOOK)
            if self._blocks == 1 and found is not None:
                self._original, self._ours = found, partial(_attribute, found)
                setattr(torch, _HOOK, self._ours)

    def end(self) -> None:
        with self._lock:
            self._blocks -= 1
            if not self._blocks and self._ours is not None and vars(torch).get(_HOOK) is self._ours:
                setattr(torch, _HOOK, self._original)


_hook = _Hook()


@contextmanager
def inductor_stays_out() -> Iterator[None]:
    """In the block and in this thread, ``hasattr(torch, "_inductor")`` is false unless the program has imported it."""
    if _NAME in vars(torch) or getattr(_inside, "block", False):
        yield
        return
    _hook.begin()
    _inside.block = True
    try:
        yield
    finally:
        _inside.block = False
        _hook.end()


def _attribute(original: _Getter, name: str) -> Any:
    """An attribute that torch does not have yet."""
    if name == _NAME and getattr(_inside, "block", False):
        raise AttributeError(f"module 'torch' has no attribute {name!r}")
    return original(name)
