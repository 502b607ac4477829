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

if TYPE_CHECKING:
    from shadowgraph.checks.rules import Rule, index_range, nondecreasing
    from shadowgraph.debugger import Debugger
    from shadowgraph.errors import (
        BackendError,
        CaptureError,
        FindingsError,
        FreedInputError,
        ShadowgraphError,
        UnknownBufferError,
        UsageError,
    )
    from shadowgraph.findings import Finding
    from shadowgraph.graphs.host import HostGraph, graph_pool_handle, host_graph
    from shadowgraph.session import current, debug, install, uninstall
    from shadowgraph.settings import Settings

__version__ = "0.1.0"

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
    "Rule": "checks.rules",
    "index_range": "checks.rules",
    "nondecreasing": "checks.rules",
    "Debugger": "debugger",
    "BackendError": "errors",
    "CaptureError": "errors",
    "FindingsError": "errors",
    "FreedInputError": "errors",
    "ShadowgraphError": "errors",
    "UnknownBufferError": "errors",
    "UsageError": "errors",
    "Finding": "findings",
    "HostGraph": "graphs.host",
    "graph_pool_handle": "graphs.host",
    "host_graph": "graphs.host",
    "current": "session",
    "debug": "session",
    "install": "session",
    "uninstall": "session",
    "Settings": "settings",
}


def load_ipython_extension(shell: Any) -> None:
    """``%load_ext shadowgraph``: the magics ``%%shadowgraph`` and ``%shadowgraph``."""
    from shadowgraph.integrations.ipython_magics import load

    load(shell)


def unload_ipython_extension(shell: Any) -> None:
    """``%unload_ext shadowgraph``: the magics are gone; a debugger that was installed goes on."""
    from shadowgraph.integrations.ipython_magics import unload

    unload(shell)


def __getattr__(name: str) -> Any:
    if name == "plots":
        return import_module(f"{__name__}.plots")
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"{__name__}.{home}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
