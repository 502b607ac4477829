"""Attaches adapters when packages are imported without an import hook: at a debugger's start and at each capture.

Under `wrap` it covers packages whose import itself starts the debugger. Runs in the thread of the start or the capture.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from shadowgraph import session
from shadowgraph.common.imported_modules import imported
from shadowgraph.common.internal_errors import error_barrier
from shadowgraph.graphs.events import Listener, listeners

if TYPE_CHECKING:
    from shadowgraph.model.graphs import Graph

_FLASHINFER, _SAVER, _VLLM = "flashinfer", "torch_memory_saver", "vllm"


class _LateAttach(Listener):
    """Entry of `session.attachments`, and a listener that looks again at each capture: a package imported after it is
    in no graph yet."""

    def began(self) -> None:
        """A debugger watches from here on."""
        if self not in listeners:
            listeners.append(self)
        _attach_saver()
        _attach_vllm()
        if imported(_FLASHINFER) is not None:
            _attach()

    def ended(self) -> None:
        """No debugger watches, or no package is awaited any longer."""
        with suppress(ValueError):  # not registered, or another thread removed it
            listeners.remove(self)

    def capture_began(self, graph: Graph) -> None:
        _attach_saver()
        _attach_vllm()
        if imported(_FLASHINFER) is not None:
            _attach(graph)


_waiting = _LateAttach()


def register() -> None:
    """Give the adapters to every later debugger of this process. Idempotent; callable from any thread."""
    if _waiting not in session.attachments:
        session.attachments.append(_waiting)


def _attach_saver() -> None:
    if imported(_SAVER) is not None:
        with error_barrier("torch_memory_saver adapter"):
            from shadowgraph.integrations.memory_saver.adapter import attach

            attach()


def _attach_vllm() -> bool:
    """Attach to the imported modules of vLLM; returns whether no further one is awaited."""
    if imported(_VLLM) is None:
        return True
    with error_barrier("vllm adapter"):
        from shadowgraph.integrations.vllm.adapter import attach

        after = attach()
        return after is None or after.settled
    return True  # no retry after an error


def _attach(capturing: Graph | None = None) -> None:
    """Attach to the imported packages, and stop waiting unless more may come."""
    settled = True  # no retry after an error
    with error_barrier("flashinfer adapter"):
        from shadowgraph.integrations.flashinfer.adapter import attach, attached

        before = attached()  # for example by the import hook of `wrap`
        told = before is not None and before.hooks in listeners
        after = attach()
        settled = after is None or after.settled
        if capturing is not None and not told and after is not None and after.hooks in listeners:
            after.hooks.capture_began(capturing)  # a new listener misses the capture that has begun
    if settled and _attach_vllm():
        _waiting.ended()
