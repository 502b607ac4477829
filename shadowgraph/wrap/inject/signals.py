"""Dump on a signal, if the program does not use that signal itself."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType


def on_signal(name: str, action: Callable[[], None]) -> bool:
    """Call `action` in a new thread at each signal ``name`` (``USR2``); returns False when that is not possible.

    A handler that the program has, or sets later, takes precedence. The action runs in its own thread because a signal
    may arrive during a check, whose locks the interrupted thread holds.
    """
    number = getattr(signal, f"SIG{name}")
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(number) is not signal.SIG_DFL:
        return False

    def handle(_number: int, _frame: FrameType | None) -> None:
        threading.Thread(target=action, name="shadowgraph dump", daemon=True).start()

    signal.signal(number, handle)
    signal.siginterrupt(number, False)  # system calls of the program are restarted
    return True
