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
