"""Notebook display (``_repr_html_``) of objects that users hold, and the registry of name sources for buffers.

`renderer` is a hook: the package sets it, since this layer must not import the renderers. Any thread; takes no lock.
"""

from __future__ import annotations

import io
import itertools
import sys
import weakref
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

__all__ = ["BufferNamer", "HtmlRepr", "displayed", "namer_of", "printed", "register_namer", "shows_html"]


def _plain(thing: object) -> str | None:
    return None


renderer: Callable[[object], str | None] = _plain  # set by the package


class HtmlRepr:
    """Gives a class the HTML of `renderer`, made only when a notebook asks for it.

    A terminal still prints the class's own `repr`. What a call has shown in a cell is not shown a second time as the
    argument or the value that the call made (see `printed`); later it is.
    """

    __slots__ = ()

    def _ipython_display_(self) -> None:
        """Show nothing where the call that made the object has shown it just now; elsewhere leave it to IPython."""
        cell = _cell()
        if cell is None or getattr(self, "_printed_in", None) != cell:
            raise NotImplementedError
        self._printed_in = None  # type: ignore[misc]  # as in `printed`

    def _repr_html_(self) -> str | None:
        """A fragment without scripts and external parts, or None where the `repr` is the best display."""
        return renderer(self)


def shows_html() -> bool:
    """Whether output of the running program is shown by a notebook: there is a shell that displays HTML, and standard
    output leads to it, not to a terminal, a pipe, a file or a variable."""
    formatter = getattr(_shell(), "display_formatter", None)
    plain = isinstance(sys.stdout, io.StringIO | io.TextIOWrapper) or sys.stdout is None
    return formatter is not None and "text/html" in formatter.active_types and not plain


def displayed(thing: HtmlRepr) -> bool:
    """Show an object as a notebook does; returns False, and shows nothing, where there is none."""
    if not shows_html():
        return False
    from IPython.display import display  # there is one: a shell of it runs

    display(thing)
    return True


def printed(thing: HtmlRepr) -> None:
    """A call has shown the object that it returns: as that call's value the same cell would show it twice."""
    thing._printed_in = _cell()  # type: ignore[misc,assignment]  # not of the classes with slots, which print nothing


def _shell() -> Any:
    package = sys.modules.get("IPython")
    return package.get_ipython() if package is not None and hasattr(package, "get_ipython") else None


def _cell() -> tuple[int, int] | None:
    """The shell and the number of the running cell; None outside of IPython."""
    shell = _shell()
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
