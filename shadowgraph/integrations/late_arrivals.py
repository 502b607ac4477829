"""Adapters for packages that a program without `wrap` imports, before a debugger starts or while it watches."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from shadowgraph.faults import shielded
from shadowgraph.graphs.events import Listener, listeners

if TYPE_CHECKING:
    from shadowgraph.graphs.model import Graph

_FLASHINFER = "flashinfer"


class _Waiting(Listener):
    """Looks again when a capture begins: what is imported later than that is in no graph yet."""

    def capture_began(self, graph: Graph) -> None:
        if _FLASHINFER in sys.modules:
            ended()
            _attach(graph)


_waiting = _Waiting()


def began() -> None:
    """A debugger watches from here on."""
    if _FLASHINFER in sys.modules:
        _attach()
    elif _waiting not in listeners:
        listeners.append(_waiting)


def ended() -> None:
    """Nobody watches, or nothing is waited for any more."""
    if _waiting in listeners:
        listeners.remove(_waiting)


def _attach(capturing: Graph | None = None) -> None:
    with shielded("flashinfer adapter"):
        from shadowgraph.integrations.flashinfer_adapter import attach

        attached = attach()
        if attached is not None and capturing is not None:
            attached.hooks.capture_began(capturing)  # those who listen now are told of the next one only
