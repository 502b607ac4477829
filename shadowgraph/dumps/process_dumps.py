"""Dumps of a wrapped process, written into the run folder beside its findings, and the signal that asks for one.

Called in the thread of the event, in the signal's own thread, or at exit; background dumps are written by another
thread.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from shadowgraph.common.errors import FindingsError
from shadowgraph.common.internal_errors import internal_errors
from shadowgraph.dumps.taking import take_dump

if TYPE_CHECKING:
    from shadowgraph.dumps.live import LiveDebugger

_CHECKED = ("exception", "exit")


def dump_to(
    folder: Path,
    debugger: LiveDebugger,
    stem: str,
    reason: str,
    redact: bool,
    background: bool = False,
    written: Callable[[Path], None] = lambda path: None,
    room: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> Path | None:
    """Write a dump into a run folder; None, and an internal error, when that fails.

    Parameters
    ----------
    stem
        First part of the file's name.
    reason
        ``finding``, ``exception``, ``signal`` or ``exit``. No check runs first for a finding, which arrives in the
        middle of an event, nor for a signal, whose thread has streams of its own.
    background
        Return once the bytes are copied.
    written
        Called when the file is complete, by the thread that wrote it.
    room
        Returns a context in which a few files can be opened; entered by the background thread that writes.
    """
    try:
        path = folder / f"{stem}-{reason}.dump"
        if reason in _CHECKED and debugger.started and debugger.monitor.lost is None:
            with suppress(FindingsError):  # it is stored all the same
                debugger.check()
        return take_dump(
            debugger.monitor,
            debugger.facts,
            path,
            reason=reason,
            limit=debugger.settings.dump_limit,
            redact=redact,
            background=background,
            written=written,
            room=room,
        )
    except Exception as error:  # expected errors too: the program did not request the dump
        internal_errors.note("dump", error)
        return None


def dump_on_signal(name: str, dump: Callable[[], None]) -> bool:
    """Call `dump` in a new thread at each signal ``name`` (``USR2``); returns False when that is not possible.

    A handler that the program has, or sets later, takes precedence. The dump runs in its own thread because a signal
    may arrive during a check, whose locks the interrupted thread holds.
    """
    number = getattr(signal, f"SIG{name}")
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(number) is not signal.SIG_DFL:
        return False

    def handle(_number: int, _frame: FrameType | None) -> None:
        threading.Thread(target=dump, name="shadowgraph dump", daemon=True).start()

    signal.signal(number, handle)
    signal.siginterrupt(number, False)  # system calls of the program are restarted
    return True
