"""What the tests of overruns share: buffers whose guards lie side by side, and launches that run over their end."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from itertools import pairwise
from typing import Any

import torch
from programs import guarded

import shadowgraph as sg
from shadowgraph.model.buffers import Buffer
from shadowgraph.model.findings import Finding

QUIET = 12  # replays: the steady state begins in fewer
Open = Callable[[], AbstractContextManager[sg.Debugger]]


def write(tensor: torch.Tensor, start: int, stop: int, value: int = 1) -> None:
    """A Triton launch that is given one tensor and writes ``[start, stop)`` of it, counted in elements of int32."""
    from shadowgraph.demos.kernels import fill

    fill[(1,)](tensor.view(torch.int32), start, stop - start, value, BLOCK=8192)


def buffer_of(debugger: sg.Debugger, tensor: torch.Tensor) -> Buffer:
    found = debugger.monitor.context.ledger.owner(tensor.data_ptr(), tensor.data_ptr() + 1)
    assert found is not None
    return found


def neighbours(debugger: sg.Debugger) -> tuple[torch.Tensor, torch.Tensor]:
    """``kv_indices`` and ``input_ids``, of which the guards lie side by side."""
    first, second = guarded(debugger, 64), guarded(debugger, 16, dtype=torch.int64)
    debugger.name("kv_indices", first)
    debugger.name("input_ids", second)
    assert_side_by_side(debugger, first, second)
    return first, second


def assert_side_by_side(debugger: sg.Debugger, first: torch.Tensor, second: torch.Tensor) -> None:
    low, high = buffer_of(debugger, first), buffer_of(debugger, second)
    assert low.guard_start + low.tail_guard == high.start - high.head_guard
    assert low.tail_guard > 0 < high.head_guard


def between(first: torch.Tensor, second: torch.Tensor) -> int:
    """Elements of int32 from the start of one tensor to that of another."""
    return (second.data_ptr() - first.data_ptr()) // 4


def parts_of(debugger: sg.Debugger) -> list[Finding]:
    """The broken guards that belong to an overrun: neither findings nor notes."""
    assert debugger.notes == ()
    return list(debugger.facts().parts)


def row_of(debugger: sg.Debugger, count: int, elements: int = 64) -> list[torch.Tensor]:
    """Buffers whose guards lie side by side, ``t0`` and so on."""
    row = [guarded(debugger, elements) for _ in range(count)]
    for low, high in pairwise(row):
        assert_side_by_side(debugger, low, high)
    for number, tensor in enumerate(row):
        debugger.name(f"t{number}", tensor)
    return row


def quiet(*tensors: torch.Tensor) -> tuple[sg.HostGraph, Any]:
    """A graph that reads tensors and has replayed for some time."""
    graph = sg.HostGraph()
    with sg.host_graph(graph):
        kept = [tensor.sum() for tensor in tensors]
    for _ in range(QUIET):
        graph.replay()
    return graph, kept
