"""Registers hooks with sglang's own registry, each once its target module is imported.

Under `shadowgraph wrap`, no sglang module is imported for a hook: the set and order of the program's imports stay
unchanged. Called from sglang's plugin entry point and from import hooks, in the importing thread.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

from shadowgraph.common.imported_modules import imported
from shadowgraph.integrations.notices import tell
from shadowgraph.integrations.sglang.hooks import Hooks, harmless
from shadowgraph.integrations.sglang.versions import NAME, Layout, installed, layout_of

_WRAP_HOOK = "_shadowgraph_hook"  # the start-up hook of `wrap`, in a process that it runs
Hook = tuple[str, Callable[..., Any], str]  # full dotted name of a method, callback, kind of hook

_attached: Hooks | None = None


def attach() -> Hooks | None:
    """Register the hooks for the installed version; None for an unknown version, on which `wrap` gives a notice.

    Later calls have no effect.
    """
    global _attached
    layout = layout_of(installed())
    if layout is None or _attached is not None:
        return _attached
    _attached = hooks = Hooks()
    by_module: dict[str, list[Hook]] = {}
    for hook in hooks_of(layout, hooks):
        by_module.setdefault(hook[0].rsplit(".", 2)[0], []).append(hook)
    wrap = sys.modules.get(_WRAP_HOOK)
    for module, group in by_module.items():
        if wrap is None or imported(module) is not None:
            with harmless():
                register(module, group)  # sglang's loader applies the hooks that plugins have registered
        else:
            wrap.when_imported(module, partial(_register_late, module, group))
    return hooks


def hooks_of(layout: Layout, hooks: Hooks) -> list[Hook]:
    """The hooks for a layout."""
    drafts = [
        hook
        for whole, replay in layout.drafts
        for hook in ((whole, hooks.prepare_and_replay, "AROUND"), (replay, hooks.before_replay, "BEFORE"))
    ]
    return [
        (layout.backends, hooks.backends_made, "AFTER"),
        (layout.capture, hooks.capture, "AROUND"),
        (layout.prepare, hooks.prepare, "AROUND"),
        *((loop, hooks.serving, "AROUND") for loop in layout.loops),
        (layout.watchdog, hooks.watchdog_made, "AFTER"),
        *drafts,
    ]


def register(module: str, group: list[Hook]) -> None:
    """Pass the hooks of one module to sglang's registry; gives a notice for each missing method."""
    registry = import_module("sglang.srt.plugins.hook_registry")
    loaded = import_module(module)
    source = registry.HookSource(NAME, NAME)  # named in sglang's log
    for target, function, kind in group:
        _, name, method = target.rsplit(".", 2)
        if callable(getattr(getattr(loaded, name, None), method, None)):
            registry.HookRegistry.register(target, function, registry.HookType[kind], source=source)
        else:
            tell(f"the sglang adapter does without {name}.{method}, which sglang {installed()} has not")


def _register_late(module: str, group: list[Hook]) -> None:
    with harmless():
        register(module, group)
        import_module("sglang.srt.plugins.hook_registry").HookRegistry.apply_hooks()
