"""Small programs that several behaviour tests share."""

from __future__ import annotations

import ctypes
from typing import Any

import torch

import shadowgraph as sg


def poke(tensor: torch.Tensor, offset: int, nbytes: int, value: int = 7) -> None:
    """Write bytes relative to a tensor's start, past either end, where no launch or operator is seen."""
    (ctypes.c_uint8 * nbytes).from_address(tensor.data_ptr() + offset)[:] = [value] * nbytes


def overflow(tensor: torch.Tensor, elements: int = 1) -> None:
    """A Triton launch that writes a tensor of int32 in full and `elements` more."""
    from shadowgraph.demos.kernels import fill

    fill[(1,)](tensor, 0, tensor.numel() + elements, 1, BLOCK=256)


def underflow(tensor: torch.Tensor, elements: int = 1) -> None:
    """A Triton launch that writes `elements` int32 before a tensor's start."""
    from shadowgraph.demos.kernels import fill

    fill[(1,)](tensor, -elements, elements, 1, BLOCK=256)


def guarded(debugger: sg.Debugger, *shape: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
    """A zeroed static buffer of exact size."""
    with debugger.guard():
        return torch.zeros(shape, dtype=dtype)


def reader_of(tensor: torch.Tensor) -> tuple[sg.HostGraph, torch.Tensor]:
    """A graph that reads a tensor, and its output."""
    graph = sg.HostGraph()
    with sg.host_graph(graph):
        output = tensor * 2
    return graph, output


def only(findings: Any) -> Any:
    """The one finding."""
    assert len(findings) == 1, [finding.message for finding in findings]
    return findings[0]
