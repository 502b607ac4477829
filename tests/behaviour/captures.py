"""Host graphs of whatever a function launches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from programs import guarded

import shadowgraph as sg


def capture(body: Callable[[], Any], pool: tuple[int, int] | None = None) -> tuple[sg.HostGraph, Any]:
    graph = sg.HostGraph()
    with sg.host_graph(graph, pool=pool):
        result = body()
    return graph, result


def graph_over(body: Callable[[], Any]) -> sg.HostGraph:
    """A graph without a reference to what its body returned, which may be an input."""
    return capture(body)[0]


def silent(debugger: sg.Debugger) -> bool:
    assert debugger.graphs, "a silence over nothing"
    assert any(graph.replays for graph in debugger.graphs)
    assert debugger.facts().faults == {}, "a check that failed says nothing"
    return debugger.findings == () and debugger.notes == ()


def uses_floats(debugger: sg.Debugger, *shape: int) -> torch.Tensor:
    return guarded(debugger, *shape, dtype=torch.float32)
