"""How a mode leaves its thread's stack while it is handling an operator, and how the main thread gets its own back.

torch takes a mode off the stack for the time of its ``__torch_dispatch__`` and puts it back afterwards, whatever the
mode does meanwhile: in there it cannot leave. A profile function can take it off, at the first call or return after the
operator. It is set for this one thread, where the program has set none, and is gone after a few events.
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

_PATIENCE, _OUTSIDE = 64_000, 1000  # it is given up after 64 events outside of operators: a mode stands above ours


def leave_soon(idle: Callable[[], bool]) -> None:
    """Take this thread's mode off its stack once the operator is over, if operators still pass unseen then.

    Not in a thread that runs with the modes of another one, as autograd's threads do: those are put back there.
    """
    if sys.getprofile() is not None:
        return
    here, left, within = threading.get_ident(), _PATIENCE, _len_torch_dispatch_stack()

    def look(frame: FrameType, event: str, given: Any) -> None:
        nonlocal left
        left -= 1 if _len_torch_dispatch_stack() <= within else _OUTSIDE  # a loop of operators calls nothing else
        with error_barrier("mode that leaves"):
            mode = _get_current_dispatch_mode()
            stands = isinstance(mode, ObserverMode) and mode.steps_aside and mode.home == here
            if stands or left <= 0:
                sys.setprofile(None)
            if stands and idle():
                eager.follow(True)

    sys.setprofile(look)


def _come_back(_: object) -> int:
    with error_barrier("mode that comes back"):
        eager.follow(False)
    return 0


_pending = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(_come_back)


def call_main_back() -> None:
    """Let the main thread put its mode back before it goes on, wherever it is; others do it when they are next seen."""
    if eager.rests:
        ctypes.pythonapi.Py_AddPendingCall(_pending, None)
