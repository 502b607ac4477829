"""Attaches adapters in a wrapped process to the packages that have one, once the program has imported them."""

from __future__ import annotations

from collections.abc import Callable

from shadowgraph.integrations import notices

WhenImported = Callable[[str, Callable[[], None]], None]


def expect(when_imported: WhenImported, tell: notices.Tell, place: notices.Place, first: bool) -> None:
    """Register the import callbacks. Called once, when torch has been imported.

    Parameters
    ----------
    tell, place
        As for `notices.connect`.
    first
        False in a process spawned by another one of the same program, which has given the same notices already.
    """
    notices.connect(tell, place)
    when_imported("flashinfer", _flashinfer)
    if first:
        when_imported("sglang", _sglang)


def _flashinfer() -> None:
    from shadowgraph.integrations.flashinfer.adapter import attach

    attach()


def _sglang() -> None:
    from shadowgraph.integrations.sglang.versions import why_off

    reason = why_off()
    if reason is not None:
        notices.tell(reason)
