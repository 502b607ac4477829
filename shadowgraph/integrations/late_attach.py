"""Adapters for packages that a program without `wrap` imports, before a debugger starts or while it watches; under
`wrap` for those whose import starts the debugger in its midst."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from shadowgraph import session
from shadowgraph.common.imported_modules import imported
from shadowgraph.common.internal_errors import error_barrier
from shadowgraph.graphs.events import Listener, listeners

if TYPE_CHECKING:
    from shadowgraph.model.graphs import Graph

_FLASHINFER = "flashinfer"


class _LateAttach(Listener):
    """For `session.attachments`; as a listener it looks again when a capture begins: what is imported later than that
    is in no graph yet."""

    def began(self) -> None:
        """A debugger watches from here on."""
        if self not in listeners:
            listeners.append(self)
        if imported(_FLASHINFER) is not None:
            _attach()

    def ended(self) -> None:
        """No debugger watches, or nothing is waited for any more."""
        with suppress(ValueError):  # it is not there, or another thread was faster
            listeners.remove(self)

    def capture_began(self, graph: Graph) -> None:
        if imported(_FLASHINFER) is not None:
            _attach(graph)


_waiting = _LateAttach()


def register() -> None:
    """From here on every debugger of this process has the adapters. Called by what starts debuggers, any number of
    times, in any thread."""
    if _waiting not in session.attachments:
        session.attachments.append(_waiting)


def _attach(capturing: Graph | None = None) -> None:
    """Attach to what there is, and wait no longer unless more may come."""
    settled = True  # what fails is not tried again
    with error_barrier("flashinfer adapter"):
        from shadowgraph.integrations.flashinfer.adapter import attach, attached

        before = attached()  # by the import hook of `wrap`, say
        told = before is not None and before.hooks in listeners
        after = attach()
        settled = after is None or after.settled
        if capturing is not None and not told and after is not None and after.hooks in listeners:
            after.hooks.capture_began(capturing)  # those who listen from now on are told of the next one only
    if settled:
        _waiting.ended()
