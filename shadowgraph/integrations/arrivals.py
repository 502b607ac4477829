"""What is said of a program's packages when they turn up in a wrapped process."""

from __future__ import annotations

import logging
from collections.abc import Callable

Tell = Callable[[str], None]
Place = Callable[[int], None]
WhenImported = Callable[[str, Callable[[], None]], None]

_tell: Tell | None = None
_place: Place | None = None
_told: set[str] = set()


def expect(when_imported: WhenImported, tell: Tell, place: Place, first: bool) -> None:
    """Wait for packages that there is an adapter for. Called once, when torch has been imported.

    Parameters
    ----------
    tell
        Writes a line into the run folder.
    place
        Hears which rank this process is among those of a server.
    first
        Whether this process was not spawned by another one of the same program, which has said the same already.
    """
    global _tell, _place
    _tell, _place = tell, place
    when_imported("flashinfer", _flashinfer)
    if first:
        when_imported("sglang", _sglang)


def place(rank: int) -> None:
    """Say which rank this process is among those of a server; to nobody where there is no run folder."""
    if _place is not None:
        _place(rank)


def tell(text: str) -> None:
    """Say a line in the run folder, or in the log where there is none."""
    if _tell is not None:
        _tell(text)
        return
    from shadowgraph.faults import log

    log(logging.WARNING, "shadowgraph: %s", text)


def tell_once(text: str) -> None:
    """The same, the first time in this process."""
    if text not in _told:
        _told.add(text)
        tell(text)


def _flashinfer() -> None:
    from shadowgraph.integrations.flashinfer_adapter import attach

    attach()


def _sglang() -> None:
    from shadowgraph.integrations.sglang_versions import why_off

    reason = why_off()
    if reason is not None:
        tell(reason)
