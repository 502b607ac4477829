"""Dumps of a wrapped process, written beside its findings."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
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
    """Let a debugger write a dump into a run folder; None, and a fault of ours, where that fails.

    Parameters
    ----------
    stem
        First part of the file's name.
    reason
        Why: ``finding``, ``exception``, ``signal`` or ``exit``. Nothing is checked first for a finding, which is told
        of in the middle of an event, nor for a signal, whose thread has streams of its own.
    background
        Return when the bytes are copied.
    written
        Called when the file is there, by the thread that wrote it.
    room
        Makes a context in which a few files can be opened; entered by the thread that writes in the background.
    """
    try:
        path = folder / f"{stem}-{reason}.dump"
        if reason in _CHECKED and debugger.started and debugger.monitor.lost is None:
            with suppress(FindingsError):  # it is in the book
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
    except Exception as error:  # deliberate ones too: nobody in the program asked for a dump
        internal_errors.note("dump", error)
        return None
