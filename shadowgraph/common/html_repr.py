"""How objects that users hold show themselves in a notebook."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable
from typing import Protocol, TypeVar

__all__ = ["BufferNamer", "HtmlRepr", "namer_of", "register_namer"]


def _plain(thing: object) -> str | None:
    return None


renderer: Callable[[object], str | None] = _plain  # the package sets what knows how to render


class HtmlRepr:
    """Gives a class the HTML that `renderer` makes, when a notebook asks for it and not before.

    What a terminal prints stays the class's own `repr`.
    """

    __slots__ = ()

    def _repr_html_(self) -> str | None:
        """A fragment without scripts and external parts, or None when there is nothing better than the `repr`."""
        return renderer(self)


class BufferNamer(Protocol):
    """Knows what some buffers are called: those of a live run, or of a dump."""

    def knows(self, thing: object) -> bool:
        """Whether a buffer or a graph is one of these."""

    def called(self, buffer: object) -> str:
        """The best name of such a buffer."""

    def at(self, address: int) -> tuple[str, int] | None:
        """The name of the buffer that holds an address, and how many bytes from its start; None where none does."""


_N = TypeVar("_N", bound=BufferNamer)
_namers: weakref.WeakValueDictionary[int, BufferNamer] = weakref.WeakValueDictionary()
_numbers = itertools.count()


def register_namer(namer: _N) -> _N:
    """Let a namer be asked for as long as somebody holds it; returns it."""
    _namers[next(_numbers)] = namer
    return namer


def namer_of(thing: object) -> BufferNamer | None:
    """Who knows the names about a buffer or a graph; None where nobody does any more. Debuggers of one process share a
    ledger, so that an ended one knows the buffer too, and no names: the latest is asked first."""
    return next((namer for _, namer in sorted(_namers.items(), reverse=True) if namer.knows(thing)), None)
