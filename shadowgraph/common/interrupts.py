"""What a signal handler raises in the middle of our own code goes on to the program.

Python runs a signal's handler between two instructions of whatever its main thread executes. What the handler raises
in a finalizer, or in a callback of the garbage collector, Python prints and drops, and elsewhere we would take it for
a fault of ours: a SIGTERM, a timeout or a Ctrl-C would be lost because we watch. So such an exception is raised once
more, in the main thread, a moment later.
"""

from __future__ import annotations

import _thread
import ctypes
import inspect
import signal
import sys
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise
from types import FrameType, TracebackType
from typing import Any

from shadowgraph.common.internal_errors import internal_errors

_MOMENT = 0.0005  # seconds: the finalizer has ended by then, mostly; if not, it is tried again
_TRIES = 8
_WEAK = {"weakref", "_weakrefset"}
_AGAIN = "_shadowgraph_raised_again"
_PACKAGE = __name__.partition(".")[0]
_NUMBERS = frozenset(signal.valid_signals())


class _Hook:
    """Our `sys.unraisablehook`, above another one. Does nothing while nobody watches, so that it may stay where
    somebody has hung another above it."""

    def __init__(self, before: Callable[[Any], object]) -> None:
        self.before = before

    def __call__(self, dropped: Any) -> None:
        error, watched = dropped.exc_value, internal_errors.theirs is not None
        if not (watched and error is not None and _may_be_ours(dropped.object) and _goes_on_from_here(error)):
            self.before(dropped)


def install() -> None:
    """Look at what Python is about to drop. Does nothing while ours is the hook; if another is, it may have replaced
    ours for good, as what pytest sets around each test does."""
    internal_errors.theirs = goes_on
    if not isinstance(sys.unraisablehook, _Hook):
        sys.unraisablehook = _Hook(sys.unraisablehook)


def uninstall() -> None:
    """Undo it, unless somebody has hung another hook above ours; that stays."""
    internal_errors.theirs = None
    while isinstance(sys.unraisablehook, _Hook):
        sys.unraisablehook = sys.unraisablehook.before


def goes_on(error: BaseException) -> bool:
    """Whether a signal handler raised an exception; then it is raised once more. That may be before this returns."""
    try:
        if threading.get_ident() != threading.main_thread().ident or not _is_of_a_handler(error):
            return False  # handlers run in the main thread only
        _thread.start_new_thread(_raise, (_again(error),))
        return True
    except Exception as fault:
        if _is_of_a_handler(fault):
            raise
        return False  # its class allows no other like it, or there are no more threads: it is told as a fault


def _goes_on_from_here(error: BaseException) -> bool:
    """`goes_on` where Python drops what is raised."""
    for _ in range(_TRIES):
        try:
            return goes_on(error)
        except BaseException as late:
            error = late
    return False


def _may_be_ours(where: object) -> bool:
    """Whether what was running is ours, or belongs to a container of weak references, of which we have many."""
    module = str(getattr(where, "__module__", ""))
    return isinstance(where, weakref.finalize) or module in _WEAK or module.partition(".")[0] == _PACKAGE


def _is_of_a_handler(error: BaseException) -> bool:
    """Whether a handler of a signal raised it, the one for Ctrl-C that is no Python function included."""
    if isinstance(error, KeyboardInterrupt) or getattr(type(error), _AGAIN, False):
        return True
    handlers = {signal.getsignal(number) for number in _NUMBERS}
    codes = {getattr(getattr(handler, "__func__", handler), "__code__", None) for handler in handlers} - {None}
    at: TracebackType | None = error.__traceback__
    while at is not None:
        if at.tb_frame.f_code in codes or _was_interrupting(at.tb_frame):
            return True
        at = at.tb_next
    return False


def _was_interrupting(frame: FrameType) -> bool:
    """Whether a function was given the number of a signal and the frame that called it, as Python alone does: it may
    stand behind an object, and be no handler any more."""
    code, caller = frame.f_code, frame.f_back
    count = code.co_argcount + bool(code.co_flags & inspect.CO_VARARGS)
    names = code.co_varnames[: code.co_argcount] + code.co_varnames[code.co_argcount + code.co_kwonlyargcount :][:1]
    given: list[object] = []
    for name in names[:count]:
        value = frame.f_locals.get(name)
        given += value if isinstance(value, tuple) else [value]
    pairs = pairwise(given)
    return caller is not None and any(second is caller and isinstance(first, int) for first, second in pairs)


def _again(error: BaseException) -> type[BaseException]:
    """A class whose instance, made without arguments as an asynchronous exception is, is like an exception. No code of
    the program's runs for it: what its class wants to be given is not known any more."""
    kind: type[BaseException] = type(error)
    kind = kind.__bases__[0] if _AGAIN in vars(kind) else kind
    known = next(base for base in kind.__mro__ if base.__module__ == "builtins")
    set_up: Callable[..., None] = vars(known).get("__init__", BaseException.__init__)

    def __new__(cls: type[BaseException]) -> BaseException:
        made: BaseException = known.__new__(cls, *error.args)
        return made

    def __init__(self: BaseException) -> None:
        with suppress(TypeError):
            set_up(self, *error.args)  # which sets what is in no dictionary, such as an exit code
        self.args = error.args
        vars(self).update(vars(error))

    names = {"__new__": __new__, "__init__": __init__, "__module__": kind.__module__, "__qualname__": kind.__qualname__}
    return type(kind.__name__, (kind,), {**names, _AGAIN: True})


def _raise(kind: type[BaseException]) -> None:
    time.sleep(_MOMENT)
    main = ctypes.c_ulong(threading.main_thread().ident or 0)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(main, ctypes.py_object(kind))
