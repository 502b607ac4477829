"""Re-raises exceptions of signal handlers that interrupt shadowgraph's own code, so that they reach the program.

Python runs a signal handler between two instructions of the main thread. An exception that the handler raises in a
finalizer or in a callback of the garbage collector is printed and dropped by Python, and elsewhere it would count as an
internal error: a SIGTERM, a timeout or a Ctrl-C would be lost because of the debugger. So such an exception is raised
once more in the main thread, a moment later. The debugger installs the hook at its start; takes no lock.
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

_MOMENT = 0.0005  # seconds: the finalizer has mostly ended by then; if not, it is tried again
_TRIES = 8
_WEAK = {"weakref", "_weakrefset"}
_AGAIN = "_shadowgraph_raised_again"
_PACKAGE = __name__.partition(".")[0]
_NUMBERS = frozenset(signal.valid_signals())


class _Hook:
    """The `sys.unraisablehook` of shadowgraph, above another hook. Does nothing while no debugger runs, so that it may
    stay below a hook that the program installs later."""

    def __init__(self, before: Callable[[Any], object]) -> None:
        self.before = before

    def __call__(self, dropped: Any) -> None:
        error, watched = dropped.exc_value, internal_errors.theirs is not None
        if not (watched and error is not None and _may_be_ours(dropped.object) and _goes_on_from_here(error)):
            self.before(dropped)


def install() -> None:
    """Install the `sys.unraisablehook`, unless it is the current one. Another current hook may have replaced it for
    good, as the one that pytest sets around each test does."""
    internal_errors.theirs = goes_on
    if not isinstance(sys.unraisablehook, _Hook):
        sys.unraisablehook = _Hook(sys.unraisablehook)


def uninstall() -> None:
    """Restore the previous hook, unless another hook was installed above; then this one stays."""
    internal_errors.theirs = None
    while isinstance(sys.unraisablehook, _Hook):
        sys.unraisablehook = sys.unraisablehook.before


def goes_on(error: BaseException) -> bool:
    """Whether a signal handler raised the exception; then it is raised once more, possibly before this returns."""
    try:
        if threading.get_ident() != threading.main_thread().ident or not _is_of_a_handler(error):
            return False  # handlers run in the main thread only
        _thread.start_new_thread(_raise, (_again(error),))
        return True
    except Exception as fault:
        if _is_of_a_handler(fault):
            raise
        return False  # its class cannot be copied, or no thread can start: it counts as an internal error


def _goes_on_from_here(error: BaseException) -> bool:
    """`goes_on` for an exception that Python drops."""
    for _ in range(_TRIES):
        try:
            return goes_on(error)
        except BaseException as late:
            error = late
    return False


def _may_be_ours(where: object) -> bool:
    """Whether the interrupted code is shadowgraph's, or a container of weak references, which shadowgraph uses a
    lot."""
    module = str(getattr(where, "__module__", ""))
    return isinstance(where, weakref.finalize) or module in _WEAK or module.partition(".")[0] == _PACKAGE


def _is_of_a_handler(error: BaseException) -> bool:
    """Whether a signal handler raised the exception, the built-in handler of Ctrl-C included."""
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
    """Whether a function was given a signal number and the frame that called it, as only Python does: the handler may
    be behind an object, and may no longer be installed."""
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
    """A class whose instance, made without arguments as an asynchronous exception is, equals the given exception. Runs
    no code of the program: the arguments that its class expects are no longer known."""
    kind: type[BaseException] = type(error)
    kind = kind.__bases__[0] if _AGAIN in vars(kind) else kind
    known = next(base for base in kind.__mro__ if base.__module__ == "builtins")
    set_up: Callable[..., None] = vars(known).get("__init__", BaseException.__init__)

    def __new__(cls: type[BaseException]) -> BaseException:
        made: BaseException = known.__new__(cls, *error.args)
        return made

    def __init__(self: BaseException) -> None:
        with suppress(TypeError):
            set_up(self, *error.args)  # sets fields outside the dictionary, such as an exit code
        self.args = error.args
        vars(self).update(vars(error))

    names = {"__new__": __new__, "__init__": __init__, "__module__": kind.__module__, "__qualname__": kind.__qualname__}
    return type(kind.__name__, (kind,), {**names, _AGAIN: True})


def _raise(kind: type[BaseException]) -> None:
    time.sleep(_MOMENT)
    main = ctypes.c_ulong(threading.main_thread().ident or 0)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(main, ctypes.py_object(kind))
