"""A dump when somebody asks for one by a signal, where the program has no use for that signal itself."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType


def on_signal(name: str, action: Callable[[], None]) -> bool:
    """Call `action` in a thread of its own at each signal ``name`` (``USR2``); False where that cannot be.

    A handler that the program has, or sets later, stands. The action has its own thread since a signal may come in the
    middle of a check, whose locks this thread holds.
    """
    number = getattr(signal, f"SIG{name}")
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(number) is not signal.SIG_DFL:
        return False

    def handle(_number: int, _frame: FrameType | None) -> None:
        threading.Thread(target=action, name="shadowgraph dump", daemon=True).start()

    signal.signal(number, handle)
    signal.siginterrupt(number, False)  # what the program is waiting for goes on
    return True
