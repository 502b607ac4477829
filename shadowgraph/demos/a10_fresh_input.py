"""A10: vLLM 53915. A graph reads an input; between replays an eager operator returns it anew, at another address.

The tensor that the graph was captured with is kept alive, as it must be, but no code refreshes it any longer.
"""

from __future__ import annotations

from typing import Any

import torch

from shadowgraph.demos.case import Case, Expected, require
from shadowgraph.demos.device import Buffers, Unwatched

TOKENS = 8


class Runner:
    """A model runner: an eager part, whose result is a graph's input."""

    def __init__(self, device: Any, buffers: Buffers) -> None:
        self.positions = buffers.of(list(range(TOKENS)), torch.int32)
        self.kept: torch.Tensor | None = None
        self.graph: Any = device.graph()
        self._buffers = buffers

    def embed(self, step: int) -> None:
        """The eager part: a fresh tensor in each step."""
        self.inputs = self._buffers.zeros((TOKENS,), torch.int32)
        torch.add(self.positions, step, out=self.inputs)

    def capture(self, device: Any) -> None:
        self.kept = self.inputs
        with device.capture(self.graph):
            self.output = self.forward()

    def forward(self) -> torch.Tensor:
        return self.inputs * 2


def program(device: Any, debugger: Any, fixed: bool, carve: int) -> list[int]:
    """Run three steps; returns the first element of each step's output."""
    with debugger.guard():
        runner = Runner(device, Buffers(device.device, carve))
        runner.embed(0)
    debugger.name("runner", runner)
    runner.capture(device)
    debugger.refreshes(runner.graph, runner, "inputs")
    seen = []
    for step in range(3):
        with debugger.prepare(runner.graph), debugger.guard():
            if step:
                runner.embed(step)
            if fixed and runner.kept is not None:
                runner.kept.copy_(runner.inputs)
        runner.graph.replay()
        seen.append(int(runner.output.tolist()[0]))
    return seen


def damage(device: Any) -> bool:
    """The second step's output equals the first one's."""
    seen = program(device, Unwatched(), False, 1 << 12)
    require(seen[0] == 0, "the first step's output is right")
    require(program(device, Unwatched(), True, 1 << 12) == [0, 2, 4], "the fixed program's outputs are right")
    return seen == [0, 0, 0]


CASES = (
    Case(
        id="A10",
        title="an input that an eager operator returns at another address",
        report="vLLM 53915",
        declared=True,
        program=program,
        damage=damage,
        expected=(
            Expected("SG108", "runner.", phase="prepare", culprit="aten.add.out", replay=2, launched_in="embed"),
        ),
    ),
)
