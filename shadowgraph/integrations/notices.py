"""Notices of adapters about the program's packages: written to the run folder of a wrapped process, else to the log.

Called in any thread; takes no lock.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

Tell = Callable[[str], None]
Place = Callable[[int], None]

_tell: Tell | None = None
_place: Place | None = None
_told: set[str] = set()


def connect(tell: Tell, place: Place) -> None:
    """Send notices to the run folder of a wrapped process from here on.

    Parameters
    ----------
    tell
        Writes a line.
    place
        Receives the rank of this process within a server.
    """
    global _tell, _place
    _tell, _place = tell, place


def place(rank: int) -> None:
    """Report the rank of this process within a server; ignored without a run folder."""
    if _place is not None:
        _place(rank)


def tell(text: str) -> None:
    """Write a line to the run folder, or to the log when there is none."""
    if _tell is not None:
        _tell(text)
        return
    from shadowgraph.common.internal_errors import log

    log(logging.WARNING, "shadowgraph: %s", text)


def tell_once(text: str) -> None:
    """As `tell`, but once per text and process."""
    if text not in _told:
        _told.add(text)
        tell(text)
