"""Dumps of a wrapped process, written beside its findings."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from shadowgraph.faults import faults

if TYPE_CHECKING:
    from shadowgraph.debugger import Debugger

_CHECKED = ("exception", "exit")


def dump_to(folder: Path, debugger: Debugger, stem: str, reason: str, redact: bool) -> Path | None:
    """Let a debugger write a dump into a run folder; None, and a fault of ours, where that fails.

    Parameters
    ----------
    stem
        First part of the file's name.
    reason
        Why: ``finding``, ``exception``, ``signal`` or ``exit``. Nothing is checked first for a finding, which is told
        of in the middle of a check, nor for a signal, whose thread has streams of its own.
    """
    try:
        path = folder / f"{stem}-{reason}.dump"
        return debugger.dump(path, reason=reason, redact=redact, check=reason in _CHECKED)
    except Exception as error:  # deliberate ones too: nobody in the program asked for a dump
        faults.note("dump", error)
        return None
