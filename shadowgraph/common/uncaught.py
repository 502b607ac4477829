"""Detects the uncaught exception that ended the program, as far as the interpreter's shutdown state shows it.

Called in the main thread at the interpreter's end, and in a child of multiprocessing by its last finalizer. No lock.
"""

from __future__ import annotations

import dis
import sys
from types import TracebackType

_RERAISE = dis.opmap["RERAISE"]  # the end of `finally` and `with`
_RAISE = dis.opmap["RAISE_VARARGS"]  # with an argument of 0 a bare `raise`


def uncaught() -> BaseException | None:
    """The exception that ended the main thread, or, in a child of multiprocessing, is about to end it.

    `sys.last_value` alone is not enough: pytest, IPython and `code` set it for exceptions that they caught.
    """
    error: BaseException | None = getattr(sys, "last_value", None)
    if error is not None and _ended_by(getattr(sys, "last_traceback", None)):
        return error
    passing = sys.exc_info()[1]
    return passing if isinstance(passing, Exception) else None


def is_crash(error: BaseException) -> bool:
    """Whether an exception is a failure of the program: neither Ctrl-C nor a closed pipe."""
    return not isinstance(error, (KeyboardInterrupt, BrokenPipeError))


def _ended_by(trace: TracebackType | None) -> bool:
    """Whether an exception left the program's outermost frame, and that frame ran no further."""
    if trace is None or trace.tb_frame.f_back is not None:
        return False
    last, code = trace.tb_frame.f_lasti, trace.tb_frame.f_code.co_code
    return last == trace.tb_lasti or code[last] == _RERAISE or tuple(code[last : last + 2]) == (_RAISE, 0)
