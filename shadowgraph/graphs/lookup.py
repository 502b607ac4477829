"""Look-up of a graph's model from the program's graph object. Any thread; no lock."""

from __future__ import annotations

import torch

from shadowgraph.common.errors import UsageError
from shadowgraph.graphs.host.graph import HostGraph
from shadowgraph.model.graphs import Graph


def model_of(graph: HostGraph | torch.cuda.CUDAGraph | None) -> Graph | None:
    """The model of a graph, or None for one that was captured before a debugger was active."""
    if graph is None or isinstance(graph, HostGraph):
        return graph.model if graph is not None else None
    if not isinstance(graph, torch.cuda.CUDAGraph):
        raise UsageError(f"expected a HostGraph or a torch.cuda.CUDAGraph, got {type(graph).__name__}")
    state = getattr(graph, "_shadowgraph", None)
    return state.model if state is not None and state.model.serial else None
