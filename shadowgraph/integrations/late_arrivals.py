"""Adapters for packages that a program without `wrap` imports, before a debugger starts or while it watches; under
`wrap` for those whose import starts the debugger in its midst."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from shadowgraph.faults import shielded
from shadowgraph.graphs.events import Listener, listeners
from shadowgraph.importing import imported

if TYPE_CHECKING:
    from shadowgraph.graphs.model import Graph

_FLASHINFER = "flashinfer"


class _Waiting(Listener):
    """Looks again when a capture begins: what is imported later than that is in no graph yet."""

    def capture_began(self, graph: Graph) -> None:
        if imported(_FLASHINFER) is not None:
            _attach(graph)


_waiting = _Waiting()


def began() -> None:
    """A debugger watches from here on."""
    if _waiting not in listeners:
        listeners.append(_waiting)
    if imported(_FLASHINFER) is not None:
        _attach()


def ended() -> None:
    """Nobody watches, or nothing is waited for any more."""
    with suppress(ValueError):  # it is not there, or another thread was faster
        listeners.remove(_waiting)


def _attach(capturing: Graph | None = None) -> None:
    """Attach to what there is, and wait no longer unless more may come."""
    settled = True  # what fails is not tried again
    with shielded("flashinfer adapter"):
        from shadowgraph.integrations.flashinfer_adapter import attach, attached

        before = attached()  # by the import hook of `wrap`, say
        told = before is not None and before.hooks in listeners
        after = attach()
        settled = after is None or after.settled
        if capturing is not None and not told and after is not None and after.hooks in listeners:
            after.hooks.capture_began(capturing)  # those who listen from now on are told of the next one only
    if settled:
        ended()
