"""Attaches to flashinfer's wrapper classes once it has been imported; the patches do nothing while nobody watches."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import Any

from shadowgraph import session
from shadowgraph.graphs.events import listeners
from shadowgraph.integrations import arrivals
from shadowgraph.integrations.flashinfer_hooks import Hooks
from shadowgraph.integrations.flashinfer_planner import MODULE, ModuleAttribute
from shadowgraph.integrations.flashinfer_versions import Wrapper, installed, known, why_off
from shadowgraph.patching import PatchSet

_PLANS = ("plan", "begin_forward")

_attached: Attachment | None = None


class Attachment:
    """The patches on one set of wrapper classes, and the hooks that they lead to."""

    def __init__(self, hooks: Hooks) -> None:
        self.hooks = hooks
        self._patches = PatchSet()
        self._classes: list[tuple[type, ModuleAttribute]] = []

    def hang(self, found: Iterable[tuple[type, Wrapper]]) -> None:
        """Patch the classes, and hear of captures."""
        targets = []
        for cls, wrapper in found:
            self.hooks.knows(cls, wrapper)
            targets += [(cls, name, self._prepares) for name in _PLANS if callable(vars(cls).get(name))]
            if wrapper.by_attribute and callable(vars(cls).get("run")):
                targets.append((cls, "run", self._runs))
            attribute = ModuleAttribute(self.hooks, vars(cls).get(MODULE))
            setattr(cls, MODULE, attribute)
            self._classes.append((cls, attribute))
        self._patches.install(targets)
        session.observers.append(self)
        if session.current() is not None:
            listeners.append(self.hooks)

    def take_down(self) -> None:
        """Undo all of it."""
        self._patches.uninstall()
        for cls, attribute in self._classes:
            if attribute.before is None:
                delattr(cls, MODULE)
            else:
                setattr(cls, MODULE, attribute.before)
        self._classes.clear()
        self.ended()
        session.observers[:] = [each for each in session.observers if each is not self]

    def started(self, debugger: object) -> None:
        """Another debugger watches: it is to hear of a capture before we do."""
        self.ended()
        listeners.append(self.hooks)

    def ended(self, debugger: object = None) -> None:
        """Nobody watches."""
        if self.hooks in listeners:
            listeners.remove(self.hooks)

    def _prepares(self, original: Callable[..., Any]) -> Callable[..., Any]:
        return _around(original, self.hooks.prepare)

    def _runs(self, original: Callable[..., Any]) -> Callable[..., Any]:
        return _around(original, self.hooks.run_by_attribute)


def attach() -> Attachment | None:
    """Attach to the flashinfer that has been imported; says a line where that is one that nobody knows.

    Does nothing the second time.
    """
    global _attached
    if _attached is None:
        reason = why_off(installed())
        if reason is not None:
            arrivals.tell_once(reason)
            return None
        _attached = Attachment(Hooks())
        _attached.hang(_classes(known(installed())))
    return _attached


def _classes(wrappers: Iterable[Wrapper]) -> list[tuple[type, Wrapper]]:
    """The wrapper classes that the imported flashinfer has; for one that is not there a line is said instead."""
    found = []
    for wrapper in wrappers:
        cls = getattr(sys.modules.get(wrapper.module), wrapper.name, None)
        if isinstance(cls, type):
            found.append((cls, wrapper))
        else:
            arrivals.tell_once(f"the flashinfer adapter does without {wrapper.name}, which {installed()} has not")
    return found


def _around(original: Callable[..., Any], hook: Callable[..., Any]) -> Callable[..., Any]:
    def call(wrapper: Any, *args: Any, **kwargs: Any) -> Any:
        return hook(original, wrapper, *args, **kwargs)

    call.__name__, call.__doc__ = getattr(original, "__name__", "call"), original.__doc__
    call.__wrapped__ = original  # type: ignore[attr-defined]
    return call
