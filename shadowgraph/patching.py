"""Reversible, idempotent patches of attributes on existing classes.

Classes are patched and never module names, because programs import those by name.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from shadowgraph.forking import forkable

Wrap = Callable[[Callable[..., Any]], Callable[..., Any]]
Target = tuple[type, str, Wrap]
_NOTHING = object()


@dataclass(slots=True, eq=False)
class _Patch:
    """An attribute that was replaced.

    Attributes
    ----------
    before
        What the class itself had under the name; `_NOTHING` where it inherits.
    original
        What was handed to `wrap`.
    aside
        Whether the class is as it was before, for a while.
    """

    owner: type
    name: str
    wrap: Wrap
    before: Any
    original: Callable[..., Any]
    replacement: Any
    aside: bool = False

    def take_off(self) -> None:
        if self.before is _NOTHING:
            delattr(self.owner, self.name)
        else:
            setattr(self.owner, self.name, self.before)

    def own(self) -> Any:
        """What the class itself has now."""
        return vars(self.owner).get(self.name, _NOTHING)


class PatchSet:
    """A set of patches installed and removed together; nested installs are counted."""

    def __init__(self) -> None:
        self._lock = forkable(threading.RLock())
        self._depth = 0
        self._patches: list[_Patch] = []

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
                        self._patches.append(_replaced(owner, name, wrap))
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

    def set_aside(self) -> None:
        """Undo all for a while, so that calls cost nothing, but for what somebody else has patched since."""
        with self._lock:
            for patch in reversed(self._patches):
                if not patch.aside and patch.own() is patch.replacement:
                    patch.take_off()
                    patch.aside = True

    def put_back(self) -> None:
        """Undo `set_aside`; what somebody else has patched meanwhile is patched as it is now."""
        with self._lock:
            for place, patch in enumerate(self._patches):
                if patch.aside:
                    if patch.own() is patch.before:
                        setattr(patch.owner, patch.name, patch.replacement)
                        patch.aside = False
                    else:
                        self._patches[place] = _replaced(patch.owner, patch.name, patch.wrap)

    def _restore(self) -> None:
        for patch in reversed(self._patches):
            if not patch.aside:
                patch.take_off()
        self._patches.clear()

    def original(self, owner: type, name: str) -> Callable[..., Any] | None:
        """What a patched attribute was before, or None when it is not patched."""
        return next((each.original for each in self._patches if (each.owner, each.name) == (owner, name)), None)


def _replaced(owner: type, name: str, wrap: Wrap) -> _Patch:
    raw = inspect.getattr_static(owner, name)
    method = isinstance(raw, staticmethod | classmethod)
    original = raw.__func__ if method else getattr(owner, name)
    replacement = type(raw)(wrap(original)) if method else wrap(original)
    before = vars(owner).get(name, _NOTHING)
    setattr(owner, name, replacement)
    return _Patch(owner, name, wrap, before, original, replacement)
