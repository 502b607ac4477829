"""Dumps of a wrapped process, written beside its findings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from shadowgraph.faults import shielded


def dump_to(folder: Path, debugger: Any, stem: str, reason: str, redact: bool) -> Path | None:
    """Let a debugger write a dump into a run folder; None where it has no dumps or could not write one.

    Parameters
    ----------
    stem
        First part of the file's name.
    reason
        Why, as ``finding``, ``exception`` or ``exit``.
    """
    write = getattr(debugger, "dump", None)
    if write is None:
        return None
    path = folder / f"{stem}-{reason}.dump"
    with shielded("dump"):
        write(path, reason=reason, redact=redact)
        return path
    return None
