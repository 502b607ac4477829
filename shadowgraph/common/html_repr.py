"""Notebook display (``_repr_html_``) of objects that users hold, and the registry of name sources for buffers.

`renderer` is a hook: the package sets it, since this layer must not import the renderers. Any thread; takes no lock.
"""

from __future__ import annotations

import itertools
import sys
import weakref
from collections.abc import Callable
from typing import Protocol, TypeVar

__all__ = ["BufferNamer", "HtmlRepr", "namer_of", "printed", "register_namer"]


def _plain(thing: object) -> str | None:
    return None


renderer: Callable[[object], str | None] = _plain  # set by the package


class HtmlRepr:
    """Gives a class the HTML of `renderer`, made only when a notebook asks for it.

    A terminal still prints the class's own `repr`. An object that a cell has printed is not shown again as the cell's
    value (see `printed`).
    """

    __slots__ = ()

    def _ipython_display_(self) -> None:
        """Show nothing in the cell that printed the object; elsewhere leave it to IPython."""
        cell = _cell()
        if cell is None or getattr(self, "_printed_in", None) != cell:
            raise NotImplementedError

    def _repr_html_(self) -> str | None:
        """A fragment without scripts and external parts, or None where the `repr` is the best display."""
        return renderer(self)


def printed(thing: HtmlRepr) -> None:
    """An object was printed: as the value of the notebook cell that runs now it would be shown twice."""
    thing._printed_in = _cell()  # type: ignore[attr-defined]  # not of the classes with slots, which print nothing


def _cell() -> tuple[int, int] | None:
    """The shell and the number of the running cell; None outside of IPython."""
    package = sys.modules.get("IPython")
    shell = package.get_ipython() if package is not None and hasattr(package, "get_ipython") else None
    return (id(shell), shell.execution_count) if shell is not None else None


class BufferNamer(Protocol):
    """Knows the names of some buffers: those of a live run, or of a dump."""

    def knows(self, thing: object) -> bool:
        """Whether a buffer or a graph belongs to this run or dump."""

    def called(self, buffer: object) -> str:
        """The best name of a buffer."""

    def at(self, address: int) -> tuple[str, int] | None:
        """The name of the buffer that holds an address, and the byte offset in it; None where no buffer does."""


_N = TypeVar("_N", bound=BufferNamer)
_namers: weakref.WeakValueDictionary[int, BufferNamer] = weakref.WeakValueDictionary()
_numbers = itertools.count()


def register_namer(namer: _N) -> _N:
    """Register a namer by weak reference, and return it."""
    _namers[next(_numbers)] = namer
    return namer


def namer_of(thing: object) -> BufferNamer | None:
    """The namer for a buffer or a graph; None where no living namer knows it. Debuggers of one process share a ledger,
    so that a stopped one knows the buffer too, but not its names: the latest is asked first."""
    return next((namer for _, namer in sorted(_namers.items(), reverse=True) if namer.knows(thing)), None)
