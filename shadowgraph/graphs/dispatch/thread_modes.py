"""A dispatch mode in every thread, from the import of torch, or the thread's start, to the thread's end.

Installed by ``wrap`` and the pytest plugin before a debugger exists. Runs in the thread of each operator; no lock.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch.utils._python_dispatch import _get_current_dispatch_mode

from shadowgraph.graphs.dispatch import tracing
from shadowgraph.graphs.dispatch.calling import call
from shadowgraph.graphs.dispatch.observer_mode import ObserverMode

if TYPE_CHECKING:
    from shadowgraph.graphs.dispatch.eager import EagerMode

Target = Callable[[Any, Any], "EagerMode | None"]  # called with an operator's positional and keyword arguments


class ThreadMode(ObserverMode):
    """Hands operators to a debugger's `EagerMode` as soon as there is one.

    A mode cannot be put into another thread, nor below the modes that a program has entered meanwhile. So this one is
    there from the beginning, and costs little until there is a debugger.

    Parameters
    ----------
    target
        Returns the mode that gets the operators now, or None; may start a debugger.
    """

    def __init__(self, target: Target) -> None:
        super().__init__()
        self._target = target

    steps_aside = True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        target = self._target(args, kwargs)
        if target is None:
            return call(func, args, kwargs)
        return target.dispatch(func, args, kwargs or {})


def enter(target: Target) -> ThreadMode:
    """Enter a mode in this thread."""
    tracing.install()
    mode = ThreadMode(target)
    mode.home = threading.get_ident()
    mode.__enter__()  # type: ignore[no-untyped-call]
    return mode


def leave(mode: ThreadMode) -> None:
    """Take a mode off this thread's stack, unless the program has put another mode on top and left it there."""
    tracing.uninstall()
    if _get_current_dispatch_mode() is mode:
        mode.__exit__(None, None, None)  # type: ignore[no-untyped-call]


def install_in_new_threads(target: Target) -> Callable[[], None]:
    """Enter a mode in every thread that `threading` starts from here on; the returned function undoes that."""
    original = threading.Thread._bootstrap_inner  # type: ignore[attr-defined]  # subclasses override `run`

    def bootstrap(thread: threading.Thread) -> None:
        mode = enter(target)
        try:
            original(thread)
        finally:
            leave(mode)

    def undo() -> None:
        if threading.Thread._bootstrap_inner is bootstrap:  # type: ignore[attr-defined]
            threading.Thread._bootstrap_inner = original  # type: ignore[attr-defined]

    threading.Thread._bootstrap_inner = bootstrap  # type: ignore[attr-defined]
    return undo
