"""Reversible, idempotent patches of attributes on existing classes.

Classes are patched and never module names, because programs import those by name.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterable
from typing import Any

from shadowgraph.forking import forkable

Wrap = Callable[[Callable[..., Any]], Callable[..., Any]]
Target = tuple[type, str, Wrap]


def _nothing(*_: object, **__: object) -> None:
    """In place of a method that a class does not have."""


class PatchSet:
    """A set of patches installed and removed together; nested installs are counted.

    Parameters
    ----------
    optional
        Names that an owner may lack: `wrap` is handed a function that does nothing, and the name goes again.
    """

    def __init__(self, optional: Iterable[str] = ()) -> None:
        self._optional = frozenset(optional)
        self._lock = forkable(threading.RLock())
        self._depth = 0
        self._undo: list[tuple[type, str, Any, bool]] = []
        self._originals: dict[tuple[type, str], Callable[..., Any]] = {}

    @property
    def installed(self) -> bool:
        return self._depth > 0

    def install(self, targets: Iterable[Target]) -> None:
        """Replace each ``owner.name`` by ``wrap(original)`` at the first call; count later ones.

        Static and class methods stay such; `wrap` is handed the function itself, which takes the class first.

        Raises
        ------
        AttributeError
            When an owner has no such attribute; then, as after any other error, nothing is replaced.
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
        """Undo one `install`; at the last one every attribute is as it was, inherited ones included."""
        with self._lock:
            if self._depth == 0:
                return
            self._depth -= 1
            if not self._depth:
                self._restore()

    def _replace(self, owner: type, name: str, wrap: Wrap) -> None:
        default = (_nothing,) if name in self._optional else ()
        raw = inspect.getattr_static(owner, name, *default)
        method = isinstance(raw, staticmethod | classmethod)
        original = raw.__func__ if method else getattr(owner, name, raw)
        replacement = type(raw)(wrap(original)) if method else wrap(original)
        before = vars(owner).get(name), name in vars(owner)
        setattr(owner, name, replacement)
        self._undo.append((owner, name, *before))
        self._originals.setdefault((owner, name), original)

    def _restore(self) -> None:
        for owner, name, before, own in reversed(self._undo):
            if own:
                setattr(owner, name, before)
            else:
                delattr(owner, name)
        self._undo.clear()
        self._originals.clear()

    def original(self, owner: type, name: str) -> Callable[..., Any] | None:
        """What a patched attribute was before, or None when it is not patched."""
        return self._originals.get((owner, name))
