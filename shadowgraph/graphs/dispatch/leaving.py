"""Removal of a mode from its thread's stack while it handles an operator, and its return in the main thread.

torch takes a mode off the stack during its ``__torch_dispatch__`` and puts it back afterwards in any case, so that the
mode cannot leave inside. A profile function can remove it, at the first call or return after the operator. It is set
for this thread only, if the program has set none, and removes itself after a few events, or as the thread ends: Python
3.12 slows down every thread for good where one ends with a profile function. Any thread; no lock.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

from torch._C import _len_torch_dispatch_stack
from torch.utils._python_dispatch import _get_current_dispatch_mode

from shadowgraph.common.internal_errors import error_barrier
from shadowgraph.graphs.dispatch import eager
from shadowgraph.graphs.dispatch.observer_mode import ObserverMode


class _UntilThreadEnds:
    """Removes a profile function as the thread that set it ends; kept in a `threading.local`."""

    def __init__(self, look: Callable[[FrameType, str, Any], object]) -> None:
        self._look = look

    def __del__(self, current: Callable[[], object] = sys.getprofile, set_: Any = sys.setprofile) -> None:
        if current() is self._look:
            set_(None)


class _Local(threading.local):
    until: _UntilThreadEnds | None = None


_local = _Local()
_PATIENCE, _OUTSIDE = 64_000, 1000  # given up after 64 events outside of operators: another mode is above ours


def leave_soon(idle: Callable[[], bool]) -> None:
    """Take this thread's mode off its stack once the operator is over, if operators still pass unseen then.

    Not in a thread that runs with the modes of another one, as autograd's threads do: those modes are restored there.
    """
    if sys.getprofile() is not None:
        return
    here, left, within = threading.get_ident(), _PATIENCE, _len_torch_dispatch_stack()

    def look(frame: FrameType, event: str, given: Any) -> None:
        nonlocal left
        left -= 1 if _len_torch_dispatch_stack() <= within else _OUTSIDE  # a loop may call only operators
        with error_barrier("mode that leaves"):
            mode = _get_current_dispatch_mode()
            stands = isinstance(mode, ObserverMode) and mode.steps_aside and mode.home == here
            if stands or left <= 0:
                sys.setprofile(None)
                _local.until = None
            if stands and idle():
                eager.follow(True)

    _local.until = _UntilThreadEnds(look)
    sys.setprofile(look)


def _come_back(_: object) -> int:
    with error_barrier("mode that comes back"):
        eager.follow(False)
    return 0


_pending = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(_come_back)


def call_main_back() -> None:
    """Let the main thread put its mode back at its next bytecode check; other threads do so at their next observed
    event."""
    if eager.rests:
        ctypes.pythonapi.Py_AddPendingCall(_pending, None)
