"""The debugger of this process: `debug()` for a block, `install()` for good."""

from __future__ import annotations

import atexit
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from shadowgraph.debugger import Debugger, leave_stopped_modes
from shadowgraph.errors import UsageError
from shadowgraph.settings import Settings

_current: Debugger | None = None


def current() -> Debugger | None:
    """The active debugger, if any."""
    return _current


@contextmanager
def debug(**options: Any) -> Iterator[Debugger]:
    """Watch graphs inside a ``with`` block.

    Parameters
    ----------
    **options
        Fields of `Settings`; others come from ``SHADOWGRAPH_*`` variables, then the defaults.

    Yields
    ------
    Debugger
        Readable after the block too.

    Raises
    ------
    UsageError
        For an unknown option, or when a debugger is active already.
    FindingsError
        With ``sync``, at the first finding.
    """
    debugger = _begin(options)
    try:
        yield debugger
    finally:
        _end(debugger)


def install(**options: Any) -> Debugger:
    """Watch from here to the end of the process, or to `uninstall`; options as for `debug`.

    Installing twice returns the active debugger when no options are given.
    """
    if _current is not None and not options:
        return _current
    debugger = _begin(options)
    atexit.register(uninstall)
    return debugger


def uninstall() -> None:
    """Check a last time and undo `install`, from any thread. Does nothing when nothing is installed."""
    _end(_current)


def _begin(options: dict[str, Any]) -> Debugger:
    global _current
    if _current is not None:
        raise UsageError("a debugger is active already; use shadowgraph.current()")
    debugger = Debugger(Settings.from_environment().with_options(**options))
    debugger.start()
    _current = debugger
    return debugger


def _end(debugger: Debugger | None) -> None:
    """Stop a debugger, unless that was done meanwhile by another thread, and maybe another debugger started."""
    global _current
    if debugger is not None and debugger is _current:
        _current = None
        debugger.stop()
    leave_stopped_modes()
