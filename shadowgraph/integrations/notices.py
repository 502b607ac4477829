"""What adapters say of the program's packages: into the run folder of a wrapped process, else into the log."""

from __future__ import annotations

import logging
from collections.abc import Callable

Tell = Callable[[str], None]
Place = Callable[[int], None]

_tell: Tell | None = None
_place: Place | None = None
_told: set[str] = set()


def connect(tell: Tell, place: Place) -> None:
    """Into the run folder of a wrapped process from here on.

    Parameters
    ----------
    tell
        Writes a line.
    place
        Hears which rank this process is among those of a server.
    """
    global _tell, _place
    _tell, _place = tell, place


def place(rank: int) -> None:
    """Say which rank this process is among those of a server; to nobody where there is no run folder."""
    if _place is not None:
        _place(rank)


def tell(text: str) -> None:
    """Say a line in the run folder, or in the log where there is none."""
    if _tell is not None:
        _tell(text)
        return
    from shadowgraph.common.internal_errors import log

    log(logging.WARNING, "shadowgraph: %s", text)


def tell_once(text: str) -> None:
    """The same, the first time in this process."""
    if text not in _told:
        _told.add(text)
        tell(text)
