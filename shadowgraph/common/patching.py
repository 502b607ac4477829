"""Reversible, idempotent patches of attributes on existing classes.

Classes are patched rather than module names, because programs import functions by name. Where torch has only a
function, it is patched in every module that imported it (`holders`). Any thread; each `PatchSet` has its own fork-safe
lock.
"""

from __future__ import annotations

import inspect
import sys
import threading
from collections.abc import Callable, Iterable
from functools import wraps
from types import MethodType, ModuleType
from typing import Any

from shadowgraph.common.fork_safety import fork_safe

Wrap = Callable[[Callable[..., Any]], Callable[..., Any]]
Target = tuple[type | ModuleType, str, Wrap]


class InstanceMethod:
    """A replacement method that instances call and that class attribute access does not return.

    ``Tensor.cpu`` stays the original object, so that a ``__torch_function__`` receives the function that its table
    knows, while ``tensor.cpu()`` runs the replacement.

    Parameters
    ----------
    shown
        The original attribute of the class.
    run
        The function that instances call in its place.
    """

    __slots__ = ("_run", "_shown")

    def __init__(self, shown: Any, run: Callable[..., Any]) -> None:
        self._shown, self._run = shown, run

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        return self._shown.__get__(None, owner) if instance is None else MethodType(self._run, instance)


def holders(module: ModuleType, *names: str) -> list[tuple[ModuleType, str]]:
    """Modules in which functions of `module` are bound to their own names, each with the name; none for a function that
    `module` lacks. One pass over all loaded modules: they are thousands in a server."""
    wanted = [(name, getattr(module, name)) for name in names if hasattr(module, name)]
    spaces = [(each, vars(each)) for each in list(sys.modules.values()) if isinstance(each, ModuleType)]
    return [(each, name) for each, space in spaces for name, function in wanted if space.get(name) is function]


def _nothing(*_: object, **__: object) -> None:
    """Stands in for a method that a class lacks."""


class _Generation:
    """What one `install` placed, until `uninstall` ends it."""

    ended = False

    def layer(self, replacement: Callable[..., Any], original: Callable[..., Any]) -> Callable[..., Any]:
        """A function that calls the replacement, and the original after the end."""

        @wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            return (original if self.ended else replacement)(*args, **kwargs)

        return call


def _put_back(owner: type | ModuleType, name: str, before: Any, own: bool) -> None:
    if own:
        setattr(owner, name, before)
    elif name in vars(owner):
        delattr(owner, name)


class PatchSet:
    """A set of patches installed and removed together; nested installs are counted.

    Parameters
    ----------
    optional
        Names that an owner may lack: `wrap` receives a function that does nothing, and `uninstall` deletes the name.
    instances_only
        Patch methods for instances alone (`InstanceMethod`).
    keeps_later
        Leave an attribute that the program has patched since as it is at `uninstall`; a replacement below that patch
        then only calls the original. Each call of a patched method costs one call more.
    """

    def __init__(
        self, optional: Iterable[str] = (), instances_only: bool = False, *, keeps_later: bool = False
    ) -> None:
        self._optional, self._instances_only, self._keeps_later = frozenset(optional), instances_only, keeps_later
        self._generation = _Generation()
        self._lock = fork_safe(threading.RLock())
        self._depth = 0
        self._undo: list[tuple[type | ModuleType, str, Any, bool]] = []
        self._placed: list[tuple[Any, Any]] = []  # what was found, and what stands there, in the order of `_undo`
        self._originals: dict[tuple[type | ModuleType, str], Callable[..., Any]] = {}

    @property
    def installed(self) -> bool:
        return self._depth > 0

    def install(self, targets: Iterable[Target]) -> None:
        """Replace each ``owner.name`` by ``wrap(original)`` at the first call; count later ones.

        Static and class methods stay such; `wrap` receives the function itself, which takes the class first.

        Raises
        ------
        AttributeError
            When an owner has no such attribute; after this or any other error nothing is replaced.
        """
        with self._lock:
            if not self._depth:
                try:
                    for owner, name, wrap in targets:
                        self._replace(owner, name, wrap)
                except BaseException:
                    self._restore()
                    raise
            self._depth += 1

    def uninstall(self) -> None:
        """Undo one `install`; the last one restores every attribute, inherited ones included (see `keeps_later`)."""
        with self._lock:
            if self._depth == 0:
                return
            self._depth -= 1
            if not self._depth:
                self._restore()

    def lift(self) -> None:
        """Put the originals back until `lay`, installed or not. Later patches by the program stay."""
        with self._lock:
            for (_, placed), (owner, name, before, own) in zip(self._placed, self._undo, strict=True):
                if vars(owner).get(name) is placed:
                    _put_back(owner, name, before, own)

    def lay(self) -> None:
        """Undo `lift`."""
        with self._lock:
            for (raw, placed), (owner, name, _, _) in zip(self._placed, self._undo, strict=True):
                if inspect.getattr_static(owner, name, _nothing) is raw:
                    setattr(owner, name, placed)

    def _replace(self, owner: type | ModuleType, name: str, wrap: Wrap) -> None:
        default = (_nothing,) if name in self._optional else ()
        raw = inspect.getattr_static(owner, name, *default)
        method = isinstance(raw, staticmethod | classmethod)
        original = raw.__func__ if method else getattr(owner, name, raw)
        wrapped = wrap(original)
        if self._keeps_later:
            wrapped = self._generation.layer(wrapped, original)
        replacement: Any = type(raw)(wrapped) if method else wrapped
        if self._instances_only:
            replacement = InstanceMethod(raw, replacement)
        before = vars(owner).get(name), name in vars(owner)
        setattr(owner, name, replacement)
        self._undo.append((owner, name, *before))
        self._placed.append((raw, replacement))
        self._originals.setdefault((owner, name), original)

    def _restore(self) -> None:
        for (_, placed), (owner, name, before, own) in reversed(list(zip(self._placed, self._undo, strict=True))):
            if not self._keeps_later or vars(owner).get(name) is placed:
                _put_back(owner, name, before, own)
        self._generation.ended, self._generation = True, _Generation()
        self._undo.clear()
        self._placed.clear()
        self._originals.clear()

    def original(self, owner: type | ModuleType, name: str) -> Callable[..., Any] | None:
        """The value of a patched attribute before the patch, or None when it is not patched."""
        return self._originals.get((owner, name))
