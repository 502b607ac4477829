"""Attaches to flashinfer's wrapper classes after their import; the patches have no effect while no debugger watches.

Called by the import hook, at the start of a debugger and at captures, in any thread; a lock serialises patching.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable
from importlib.machinery import PathFinder
from typing import Any

from shadowgraph import session
from shadowgraph.adapter_interface import passing
from shadowgraph.common.fork_safety import fork_safe
from shadowgraph.common.imported_modules import imported
from shadowgraph.common.patching import PatchSet
from shadowgraph.graphs.events import listeners
from shadowgraph.integrations import notices
from shadowgraph.integrations.flashinfer.hooks import Hooks
from shadowgraph.integrations.flashinfer.planner import MODULE, ModuleAttribute
from shadowgraph.integrations.flashinfer.versions import PACKAGE, Wrapper, installed, known, why_off

_PLANS = ("plan", "begin_forward")

_attached: Attachment | None = None
_attaching = fork_safe(threading.RLock())  # the import hook and the first capture may be in two threads


class Attachment:
    """The patches on wrapper classes, and their hooks.

    Parameters
    ----------
    wrappers
        The classes that `look` patches.
    release
        Version of flashinfer, for notices.
    """

    def __init__(self, hooks: Hooks, wrappers: Iterable[Wrapper] = (), release: str | None = None) -> None:
        self.hooks = hooks
        self._awaited, self._release = list(wrappers), release
        self._patches: list[PatchSet] = []
        self._classes: list[tuple[type, ModuleAttribute]] = []

    @property
    def settled(self) -> bool:
        """Whether no further class is awaited."""
        return not self._awaited

    def look(self) -> None:
        """Patch the classes imported since the last call; gives a notice for each class that will never be imported."""
        there: list[tuple[type, Wrapper]] = []
        awaited: list[Wrapper] = []
        lacking: list[Wrapper] = []
        with _attaching:
            may_come = [wrapper for wrapper in self._awaited if _may_come(wrapper)]  # first: an import may end any time
            for wrapper in self._awaited:
                cls = _class_of(wrapper)
                if cls is not None:
                    there.append((cls, wrapper))
                elif wrapper in may_come:
                    awaited.append(wrapper)
                else:
                    lacking.append(wrapper)
            self._awaited = awaited
            if there:
                self.hang(there)
        for wrapper in lacking:
            notices.tell_once(f"the flashinfer adapter does without {wrapper.name}, which {self._release} has not")

    def hang(self, found: Iterable[tuple[type, Wrapper]]) -> None:
        """Patch classes, and listen to captures."""
        targets = []
        for cls, wrapper in found:
            self.hooks.knows(cls, wrapper)
            targets += [(cls, name, self._plans) for name in _PLANS if callable(vars(cls).get(name))]
            if wrapper.by_attribute and callable(vars(cls).get("run")):
                targets.append((cls, "run", self._runs))
            attribute = ModuleAttribute(self.hooks, vars(cls).get(MODULE))
            setattr(cls, MODULE, attribute)
            self._classes.append((cls, attribute))
        self._patches.append(PatchSet())
        self._patches[-1].install(targets)
        if self not in session.observers:
            session.observers.append(self)
        if session.current() is not None and self.hooks not in listeners:
            listeners.append(self.hooks)

    def take_down(self) -> None:
        """Remove all patches and listeners."""
        for patches in self._patches:
            patches.uninstall()
        self._patches.clear()
        for cls, attribute in self._classes:
            if attribute.before is None:
                delattr(cls, MODULE)
            else:
                setattr(cls, MODULE, attribute.before)
        self._classes.clear()
        self.ended()
        session.observers[:] = [each for each in session.observers if each is not self]

    def started(self, debugger: object) -> None:
        """Another debugger watches: its listener must run before this one."""
        with _attaching:
            self.ended()
            listeners.append(self.hooks)

    def ended(self, debugger: object = None) -> None:
        """No debugger watches."""
        self.hooks.forget()
        if self.hooks in listeners:
            listeners.remove(self.hooks)

    def _plans(self, original: Callable[..., Any]) -> Callable[..., Any]:
        prepare = self.hooks.prepare

        def call(wrapper: Any, *args: Any, **kwargs: Any) -> Any:
            if passing.on:  # nothing is noted here; one that is larger than all before opens its block at the planner
                return original(wrapper, *args, **kwargs)
            return prepare(original, wrapper, *args, **kwargs)

        return _like(original, call)

    def _runs(self, original: Callable[..., Any]) -> Callable[..., Any]:
        return _around(original, self.hooks.run_by_attribute)


def attach() -> Attachment | None:
    """Attach to the imported flashinfer; gives a notice for an unknown version.

    A later call attaches to classes that were not imported before, and does nothing once all are patched. While the
    import of flashinfer is in progress, it may find some classes or none.
    """
    global _attached
    if _attached is None:
        release = installed()
        reason = why_off(release)
        if reason is not None:
            notices.tell_once(reason)
            return None
        with _attaching:
            if _attached is None:
                _attached = Attachment(Hooks(), known(release), release)
    if not _attached.settled:
        _attached.look()
    return _attached


def attached() -> Attachment | None:
    """The attachment that `attach` created, or None."""
    return _attached


def _class_of(wrapper: Wrapper) -> type | None:
    """A wrapper class, if its module has already defined it."""
    cls = getattr(sys.modules.get(wrapper.module), wrapper.name, None)
    return cls if isinstance(cls, type) else None


def _may_come(wrapper: Wrapper) -> bool:
    """Whether a module may still define its class: it is being imported, or exists and is not imported."""
    if wrapper.module in sys.modules:
        return imported(wrapper.module) is None
    path = getattr(sys.modules.get(PACKAGE), "__path__", None)  # `importlib.util` would wait for the package's import
    return path is not None and PathFinder.find_spec(wrapper.module, path) is not None


def _around(original: Callable[..., Any], hook: Callable[..., Any]) -> Callable[..., Any]:
    def call(wrapper: Any, *args: Any, **kwargs: Any) -> Any:
        return hook(original, wrapper, *args, **kwargs)

    return _like(original, call)


def _like(original: Callable[..., Any], call: Callable[..., Any]) -> Callable[..., Any]:
    """A function with the name and the docstring of another one, which it calls."""
    call.__name__, call.__doc__ = getattr(original, "__name__", "call"), original.__doc__
    call.__wrapped__ = original  # type: ignore[attr-defined]
    return call
