"""The process-wide debugger: `debug` for a block, `install` for the rest of the process, `attach` for wrapped programs.

Takes no lock; `uninstall` may run in another thread than the start.
"""

from __future__ import annotations

import atexit
import sys
import weakref
from contextlib import AbstractContextManager, ContextDecorator
from typing import Any, NoReturn, Protocol

from shadowgraph.common import late_adapters
from shadowgraph.common.errors import ShadowgraphError, UsageError
from shadowgraph.common.option_kinds import shown
from shadowgraph.common.settings import Settings
from shadowgraph.common.uncaught import uncaught
from shadowgraph.debugger import Debugger
from shadowgraph.graphs.dispatch.eager import leave_stopped_modes

_current: Debugger | None = None
_latest: weakref.ref[Debugger] | None = None
_modest: Debugger | None = None  # steps aside when the program starts its own debugger


class Observer(Protocol):
    """Receives the start and the end of every debugger of this process."""

    def started(self, debugger: Debugger) -> None:
        """The debugger watches from here on."""

    def ended(self, debugger: Debugger) -> None:
        """The debugger has checked a last time."""


class Attachment(Protocol):
    """Attaches adapters to packages that the program imports at any time; called before observers."""

    def began(self) -> None:
        """A debugger watches from here on."""

    def ended(self) -> None:
        """The debugger is about to check a last time."""


observers: list[Observer] = []
attachments: list[Attachment] = []  # filled by a higher layer, which knows the adapters


def current() -> Debugger | None:
    """The active debugger, if any."""
    return _current


def latest() -> Debugger | None:
    """The active debugger, else the one that was started last, if something still refers to it."""
    return _current or (_latest() if _latest is not None else None)


class DebugBlock(AbstractContextManager[Debugger], ContextDecorator):
    """What `debug` returns: a ``with`` block, or a decorator of a function. Each entry starts a debugger of its own."""

    def __init__(self, options: dict[str, Any]) -> None:
        self._options = options
        self._debugger: Debugger | None = None

    def __enter__(self) -> Debugger:
        self._debugger = _begin(self._options)
        return self._debugger

    def __exit__(self, *error: object) -> None:
        debugger, self._debugger = self._debugger, None
        _end(debugger)

    def __getattr__(self, name: str) -> NoReturn:
        hint = ""
        if not name.startswith("_") and hasattr(Debugger, name):
            hint = f"; the debugger has it, which the block gives: with shadowgraph.debug() as dbg: dbg.{name}"
        raise AttributeError(f"a debug() block has no {name!r}{hint}", name=name, obj=self)

    def __repr__(self) -> str:
        options = ", ".join(f"{name}={shown(value)}" for name, value in self._options.items())
        return f"<debug({options}): {'not entered' if self._debugger is None else 'entered'}>"


def debug(*unnamed: object, **options: Any) -> DebugBlock:
    """Watch graphs inside a ``with`` block.

    Parameters
    ----------
    *unnamed
        None are taken: options have names.
    **options
        Fields of `Settings`; unset fields come from ``SHADOWGRAPH_*`` variables, then from the defaults.

    Returns
    -------
    DebugBlock
        For ``with debug() as debugger``; the `Debugger` stays readable after the block. It may be entered again, which
        starts a new debugger, and decorates a function as well. To enter it raises `UsageError` when a debugger is
        active already; with ``sync`` the block raises `FindingsError` at the first finding.

    Raises
    ------
    UsageError
        For an unknown option, a value that does not fit, and an option without its name.
    """
    _require_named(unnamed, "debug")
    Settings.from_environment().with_options(**options)  # entering reads them again: the environment may change
    return DebugBlock(options)


def install(*unnamed: object, **options: Any) -> Debugger:
    """Watch from here to the end of the process, or to `uninstall`.

    Installing twice returns the active debugger when no options are given.

    Parameters
    ----------
    *unnamed
        None are taken: options have names.
    **options
        Fields of `Settings`, as for `debug`.

    Returns
    -------
    Debugger
        Already watching; this module holds a reference until `uninstall`.

    Raises
    ------
    UsageError
        For an unknown option, or for options when a debugger is active already.
    """
    _require_named(unnamed, "install")
    if _current is not None and not options:
        return _current
    debugger = _begin(options)
    atexit.register(_at_exit)
    return debugger


def uninstall() -> None:
    """Check a last time and undo `install`; callable from any thread. Does nothing without an active debugger."""
    _end(_current)


def attach(settings: Settings | Debugger) -> Debugger:
    """Start a debugger from outside the program: enters no thread's dispatch mode, and steps aside when the program
    starts its own. The caller ends it with `uninstall`.

    A debugger that was ended resumes with all its state; changes made meanwhile are not checked.
    """
    global _modest
    again = isinstance(settings, Debugger)
    debugger = settings if isinstance(settings, Debugger) else Debugger(settings)
    before, _modest = _modest, debugger  # read by observers through `steps_aside`
    try:
        _started(debugger, watch_thread=False)
    except BaseException:
        _modest = before
        raise
    if again:
        debugger.resume()
    return debugger


def steps_aside(debugger: Debugger) -> bool:
    """Whether the debugger was started by `attach`, and not by the program."""
    return debugger is _modest


def detach(debugger: Debugger) -> None:
    """End a debugger without a check of its memory, on a device that this process may not touch."""
    global _current
    if debugger is _current:
        _current = None
    debugger.abandon()


def _require_named(unnamed: tuple[object, ...], function: str) -> None:
    if unnamed:
        raise UsageError(
            f'{function}() takes options by name, such as {function}(backend="host"), and was given {shown(unnamed[0])}'
        )


def _begin(options: dict[str, Any]) -> Debugger:
    settings = Settings.from_environment().with_options(**options)
    if _current is not None:
        if _current is not _modest:
            raise UsageError(
                "a debugger is active already: use that one, shadowgraph.current(), or end it: shadowgraph.uninstall()"
            )
        _end(_current)
    return _started(Debugger(settings))


def _at_exit() -> None:
    if _current is not None:
        _join(_current, uncaught())
    uninstall()


def _join(debugger: Debugger, error: BaseException | None) -> None:
    """Record an exception of the program that passes through here, with its context."""
    if isinstance(error, Exception) and not isinstance(error, ShadowgraphError):
        debugger.adapter.join(error)


def _started(debugger: Debugger, watch_thread: bool = True) -> Debugger:
    global _current, _latest
    late_adapters.register()
    debugger.start(watch_thread)
    _current, _latest = debugger, weakref.ref(debugger)
    for attachment in attachments:
        attachment.began()
    for observer in observers:
        observer.started(debugger)
    return debugger


def _end(debugger: Debugger | None) -> None:
    """Stop a debugger, unless another thread has stopped it meanwhile, and perhaps started another one."""
    global _current
    if debugger is not None and debugger is _current:
        _current = None
        _join(debugger, sys.exc_info()[1])
        for attachment in attachments:
            attachment.ended()
        try:
            debugger.stop()
        finally:
            for observer in observers:
                observer.ended(debugger)
    leave_stopped_modes()
