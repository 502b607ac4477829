"""shadowgraph: a memory debugger for CUDA graphs in PyTorch programs.

import shadowgraph as sg

with sg.debug(backend="host") as dbg:
    with dbg.guard():
        table = torch.zeros(64, dtype=torch.int32)
    graph = sg.HostGraph()
    with sg.host_graph(graph):
        ...
    graph.replay()
dbg.report()
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from shadowgraph.common import html_repr, late_adapters, late_kinds
from shadowgraph.common.version import VERSION as __version__

if TYPE_CHECKING:
    from shadowgraph.checks.invariants.rules import Rule, index_range, nondecreasing
    from shadowgraph.common.errors import (
        BackendError,
        CaptureError,
        FindingsError,
        FreedInputError,
        ShadowgraphError,
        UnknownBufferError,
        UsageError,
    )
    from shadowgraph.common.settings import Settings
    from shadowgraph.debugger import Debugger
    from shadowgraph.graphs.host.graph import HostGraph, graph_pool_handle, host_graph
    from shadowgraph.model.findings import Finding
    from shadowgraph.session import current, debug, install, uninstall

__all__ = [
    "BackendError",
    "CaptureError",
    "Debugger",
    "Finding",
    "FindingsError",
    "FreedInputError",
    "HostGraph",
    "Rule",
    "Settings",
    "ShadowgraphError",
    "UnknownBufferError",
    "UsageError",
    "__version__",
    "current",
    "debug",
    "graph_pool_handle",
    "host_graph",
    "index_range",
    "install",
    "nondecreasing",
    "uninstall",
]

# Where each public name lives: torch is imported when one of them is first used, so that commands start fast.
_HOMES = {
    "Rule": "checks.invariants.rules",
    "index_range": "checks.invariants.rules",
    "nondecreasing": "checks.invariants.rules",
    "Debugger": "debugger",
    "BackendError": "common.errors",
    "CaptureError": "common.errors",
    "FindingsError": "common.errors",
    "FreedInputError": "common.errors",
    "ShadowgraphError": "common.errors",
    "UnknownBufferError": "common.errors",
    "UsageError": "common.errors",
    "Finding": "model.findings",
    "HostGraph": "graphs.host.graph",
    "graph_pool_handle": "graphs.host.graph",
    "host_graph": "graphs.host.graph",
    "current": "session",
    "debug": "session",
    "install": "session",
    "uninstall": "session",
    "Settings": "common.settings",
}


def load_ipython_extension(shell: Any) -> None:
    """``%load_ext shadowgraph``: the magics ``%%shadowgraph`` and ``%shadowgraph``."""
    from shadowgraph.integrations.ipython.magics import load

    load(shell)


def unload_ipython_extension(shell: Any) -> None:
    """``%unload_ext shadowgraph``: the magics are gone; a debugger that was installed goes on."""
    from shadowgraph.integrations.ipython.magics import unload

    unload(shell)


def __getattr__(name: str) -> Any:
    if name == "plots":
        return import_module(f"{__name__}.render.plots")
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"{__name__}.{home}"), name)
    return value


def _html_of(thing: object) -> str | None:
    from shadowgraph.render.html.reprs import html_of

    return html_of(thing)


def _register_adapters() -> None:
    from shadowgraph.integrations.late_attach import register

    register()


def _register_kinds() -> None:
    import_module(f"{__name__}.checks.kinds")


html_repr.renderer = _html_of
late_adapters.register = _register_adapters
late_kinds.register = _register_kinds


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
