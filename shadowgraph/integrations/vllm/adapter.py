"""Patches vLLM's classes, each once the program itself has imported its module.

No module of vLLM is imported for a patch: the set and order of the program's imports stay unchanged. Called by vLLM's
plugin loader, by import hooks, at the start of a debugger and at captures, in any thread; a lock serialises patching,
and notices are given without it. Without a debugger a patched method costs one call more.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from functools import partial, update_wrapper
from typing import TYPE_CHECKING, Any

from shadowgraph.common.fork_safety import fork_safe
from shadowgraph.common.imported_modules import imported
from shadowgraph.common.internal_errors import error_barrier_all
from shadowgraph.common.patching import PatchSet
from shadowgraph.integrations import notices
from shadowgraph.integrations.vllm.versions import PARTS, Part, installed, lacking, why_off

if TYPE_CHECKING:
    from shadowgraph.integrations.vllm.hooks import Hooks

_WRAP_HOOK = "_shadowgraph_hook"  # the start-up hook of `wrap`, in a process that it runs

_attached: Attachment | None = None
_off = False  # the installed version is not supported; read once
_attaching = fork_safe(threading.RLock())  # the import hook and a capture may be in two threads


class Attachment:
    """The patches, and the parts whose modules are awaited.

    Parameters
    ----------
    release
        Version of vLLM, for notices.
    """

    def __init__(self, release: str | None) -> None:
        self._release, self._awaited = release, list(PARTS)
        self._patches: list[PatchSet] = []
        self._hooks: Hooks | None = None

    @property
    def settled(self) -> bool:
        """Whether no further module is awaited."""
        return not self._awaited

    @property
    def hooks(self) -> Hooks:
        """The hooks; made with the first patch, as they import the debugger."""
        if self._hooks is None:
            from shadowgraph.integrations.vllm.hooks import Hooks

            self._hooks = Hooks()
        return self._hooks

    def look(self) -> None:
        """Patch the classes of modules that were imported since the last call."""
        for part in list(self._awaited):
            module = imported(part.module)
            if module is not None:
                with error_barrier_all("vllm adapter"):
                    self.patch(part, module)

    def arrived(self, name: str) -> None:
        """The import of a module has ended."""
        module = sys.modules.get(name)
        for part in PARTS if module is not None else ():
            if part.module == name:
                with error_barrier_all("vllm adapter"):
                    self.patch(part, module)

    def patch(self, part: Part, module: Any) -> None:
        """Patch the methods of one part, once; gives a notice, and patches none, where one is not as it was seen."""
        with _attaching:
            if part not in self._awaited:
                return
            self._awaited.remove(part)
            missing = lacking(part, module)
            if missing is None:
                patches = PatchSet()
                patches.install(
                    (getattr(module, method.owner), method.name, partial(_around, getattr(self.hooks, method.hook)))
                    for method in part.methods
                )
                self._patches.append(patches)
        if missing is not None:
            notices.tell_once(
                f"the vllm adapter does without {part.what}: vllm {self._release} has no {missing}; "
                "generic tracking goes on"
            )

    def take_down(self) -> None:
        """Remove all patches; no later import is patched."""
        global _attached
        with _attaching:
            for patches in self._patches:
                patches.uninstall()
            self._patches.clear()
            self._awaited.clear()
            if self._hooks is not None:
                self._hooks.forget()
            if _attached is self:
                _attached = None


def attach() -> Attachment | None:
    """Attach to the installed vLLM; None for an unknown version, of which one notice is given.

    A later call patches what was imported meanwhile, and does nothing once all is patched.
    """
    global _attached, _off
    reason = None
    with _attaching:
        if _attached is None and not _off:
            release = installed()
            reason = why_off(release)
            _off = reason is not None
            if not _off:
                _attached = made = Attachment(release)
                wrap = sys.modules.get(_WRAP_HOOK)
                for module in dict.fromkeys(part.module for part in PARTS) if wrap is not None else ():
                    wrap.when_imported(module, partial(made.arrived, module))  # type: ignore[union-attr]
        attached = _attached
    if reason is not None:
        notices.tell_once(reason)
    if attached is not None and not attached.settled:
        attached.look()
    return attached


def _around(hook: Callable[[Any], Any], original: Callable[..., Any]) -> Callable[..., Any]:
    placed: Callable[..., Any] = update_wrapper(hook(original), original)
    return placed
