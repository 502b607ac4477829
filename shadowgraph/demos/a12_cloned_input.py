"""A12: sglang 37975. An attention wrapper keeps a clone of the indices that it is given, and a graph reads the clone.

Prepare refreshes the tensor that the wrapper was given. No address changes, and nothing says that the two belong
together but the copy from one to the other.
"""

from __future__ import annotations

from typing import Any

import torch

from shadowgraph.demos.case import Case, Expected, require
from shadowgraph.demos.device import Buffers, Unwatched

REQUESTS, SLOTS, STEPS = 4, 64, 4


class Wrapper:
    """What an attention backend plans with and runs."""

    def __init__(self, indices: torch.Tensor) -> None:
        self.indices = indices.clone()

    def run(self, cache: torch.Tensor) -> torch.Tensor:
        return cache[self.indices]


class Backend:
    """The static buffers, the wrapper and a decode graph."""

    def __init__(self, device: Any, buffers: Buffers) -> None:
        self.cache = buffers.of(list(range(SLOTS)), torch.float32)
        self.kv_indices = buffers.zeros((REQUESTS,), torch.int64)
        self.wrapper = Wrapper(self.kv_indices)
        self.graph: Any = device.graph()

    def capture(self, device: Any) -> None:
        with device.capture(self.graph):
            self.output = self.wrapper.run(self.cache)

    def prepare(self, step: int, fixed: bool) -> None:
        slots = torch.arange(REQUESTS, device=self.kv_indices.device) * step
        (self.wrapper.indices if fixed else self.kv_indices).copy_(slots)


def program(device: Any, debugger: Any, fixed: bool, carve: int) -> list[float]:
    """Run some steps; returns the last element of each step's output."""
    with debugger.guard():
        backend = Backend(device, Buffers(device.device, carve))
    debugger.name("backend", backend)
    backend.capture(device)
    seen = []
    for step in range(1, STEPS + 1):
        with debugger.prepare(backend.graph):
            backend.prepare(step, fixed)
        backend.graph.replay()
        seen.append(backend.output.tolist()[-1])
    return seen


def damage(device: Any) -> bool:
    """Each step gathers with the indices from before the capture."""
    right = [float((REQUESTS - 1) * step) for step in range(1, STEPS + 1)]
    require(program(device, Unwatched(), True, 1 << 12) == right, "the fixed program's outputs are right")
    return program(device, Unwatched(), False, 1 << 12) == [0.0] * STEPS


CASES = (
    Case(
        id="A12",
        title="a clone that a graph reads while its original is refreshed",
        report="sglang 37975",
        program=program,
        damage=damage,
        expected=(
            Expected("SG108", "wrapper.indices", phase="prepare", culprit="aten.copy_.default", launched_in="prepare"),
        ),
    ),
)
