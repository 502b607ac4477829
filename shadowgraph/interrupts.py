"""What a signal handler raises in the middle of our own code goes on to the program.

Python runs a signal's handler between two instructions of whatever its main thread executes. What the handler raises
in a finalizer, or in a callback of the garbage collector, Python prints and drops, and elsewhere we would take it for
a fault of ours: a SIGTERM, a timeout or a Ctrl-C would be lost because we watch. So such an exception is raised once
more, in the main thread, a moment later.
"""

from __future__ import annotations

import _thread
import ctypes
import signal
import sys
import threading
import time
import weakref
from collections.abc import Callable
from types import TracebackType
from typing import Any

from shadowgraph.faults import faults

_MOMENT = 0.0005  # seconds: the finalizer has ended by then, mostly; if not, it is tried again
_AGAIN = "_shadowgraph_raised_again"
_PACKAGE = __name__.partition(".")[0]
_before: Callable[[Any], object] | None = None


def install() -> None:
    """Look at what Python is about to drop. Does nothing the second time."""
    global _before
    if _before is None:
        _before = sys.unraisablehook
        sys.unraisablehook, faults.theirs = _hook, goes_on


def uninstall() -> None:
    """Undo it, unless somebody has hung another hook before ours."""
    global _before
    if _before is not None and sys.unraisablehook is _hook:
        sys.unraisablehook, _before, faults.theirs = _before, None, None


def goes_on(error: BaseException) -> bool:
    """Whether a signal handler raised an exception; then it is raised once more."""
    if not _is_of_a_handler(error):
        return False
    _thread.start_new_thread(_raise, (_again(error),))
    return True


def _hook(dropped: Any) -> None:
    error = dropped.exc_value
    try:
        if error is not None and _may_be_ours(dropped.object) and goes_on(error):
            return
    except Exception as fault:
        faults.note("exception of a signal handler", fault)
    (_before or sys.__unraisablehook__)(dropped)


def _may_be_ours(where: object) -> bool:
    return isinstance(where, weakref.finalize) or str(getattr(where, "__module__", "")).partition(".")[0] == _PACKAGE


def _is_of_a_handler(error: BaseException) -> bool:
    """Whether a handler of a signal raised it, the one for Ctrl-C that is no Python function included."""
    if isinstance(error, KeyboardInterrupt) or getattr(type(error), _AGAIN, False):
        return True
    handlers = {signal.getsignal(number) for number in signal.valid_signals()}
    codes = {getattr(getattr(handler, "__func__", handler), "__code__", None) for handler in handlers} - {None}
    at: TracebackType | None = error.__traceback__
    while at is not None:
        if at.tb_frame.f_code in codes:
            return True
        at = at.tb_next
    return False


def _again(error: BaseException) -> type[BaseException]:
    """A class whose instance, made without arguments as an asynchronous exception is, is like an exception."""
    kind: type[BaseException] = type(error)
    kind = kind.__bases__[0] if _AGAIN in vars(kind) else kind

    def __init__(self: BaseException) -> None:
        kind.__init__(self, *error.args)
        vars(self).update(vars(error))

    names = {"__init__": __init__, "__module__": kind.__module__, "__qualname__": kind.__qualname__, _AGAIN: True}
    return type(kind.__name__, (kind,), names)


def _raise(kind: type[BaseException]) -> None:
    time.sleep(_MOMENT)
    main = ctypes.c_ulong(threading.main_thread().ident or 0)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(main, ctypes.py_object(kind))
