"""What the CUDA tests share: launches that stay inside a tensor or leave it, guarded buffers, captures.

Triton is imported where it is used, so that these tests can be collected on a machine without it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch

from shadowgraph.debugger import model_of

BLOCK = 1024  # lanes of `put` and `put_late`: the most elements that one launch writes


@cache
def warm_kernels() -> None:
    """Compile and load every kernel: neither should happen during a capture."""
    from kernels_cuda import put, put_late, stray

    room = torch.zeros(64, dtype=torch.int32, device="cuda")
    put[(1,)](room, 0, 1, BLOCK=BLOCK)
    put_late[(1,)](room, room[32:], 1, 0, 0, BLOCK=BLOCK)
    stray[(1,)](room, torch.zeros(1, dtype=torch.int64, device="cuda"))
    torch.cuda.synchronize()


def words(tensor: torch.Tensor) -> torch.Tensor:
    """A contiguous tensor's bytes as int32, for kernels that write it."""
    return tensor.detach().reshape(-1).view(torch.int32)


def fill(tensor: torch.Tensor, extra: int = 0) -> None:
    """One launch that writes a tensor in full and `extra` int32 past its end."""
    from kernels_cuda import put

    put[(1,)](words(tensor), 0, words(tensor).numel() + extra, BLOCK=BLOCK)


def overflow(tensor: torch.Tensor, elements: int = 1) -> None:
    """One launch that writes `elements` int32 right after a tensor's end and nothing else."""
    from kernels_cuda import put

    put[(1,)](words(tensor), words(tensor).numel(), elements, BLOCK=BLOCK)


def underflow(tensor: torch.Tensor, elements: int = 1) -> None:
    """One launch that writes `elements` int32 right before a tensor's start and nothing else."""
    from kernels_cuda import put

    put[(1,)](words(tensor), -elements, elements, BLOCK=BLOCK)


def guarded(debugger: Any, *shape: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
    """A zeroed static buffer of exact size on the device."""
    with debugger.guard():
        return torch.zeros(shape, dtype=dtype, device="cuda")


def capture(body: Callable[[], Any], **options: Any) -> tuple[torch.cuda.CUDAGraph, Any]:
    """A graph of what `body` launches, and what it returned; options as for `torch.cuda.graph`."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, **options):
        result = body()
    return graph, result


def captured(body: Callable[[], Any]) -> tuple[torch.cuda.CUDAGraph, Any]:
    """`capture` after three runs on a side stream, as PyTorch's notes on graphs advise."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            body()
    torch.cuda.current_stream().wait_stream(side)
    return capture(body)


def name_of(graph: torch.cuda.CUDAGraph) -> str:
    """What findings call a graph."""
    model = model_of(graph)
    assert model is not None
    return model.name


def only(findings: Any) -> Any:
    """The one finding."""
    assert len(findings) == 1, [finding.message for finding in findings]
    return findings[0]
