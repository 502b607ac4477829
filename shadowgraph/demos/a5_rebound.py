"""A5: sglang 39175. A buffer that a graph was captured with is rebound to a bigger one; the graph keeps its address.

The old block goes to the next allocation of its size. The graph then increments memory that is no longer its own.
"""

from __future__ import annotations

from typing import Any

import torch

from shadowgraph.demos.case import Case, Expected, require
from shadowgraph.demos.device import Buffers, Unwatched

ROWS, GROWN = 64, 128


class Runner:
    """A buffer of the rows in flight, a graph over it, and the tensor allocated after the buffer grew."""

    def __init__(self, device: Any, buffers: Buffers) -> None:
        self.buf = buffers.zeros((ROWS,), torch.float32)
        self.victim: torch.Tensor | None = None
        self.before = self.buf.data_ptr()
        self._device, self._buffers = device, buffers
        self.capture()

    def capture(self) -> None:
        self.graph = self._device.graph()
        with self._device.capture(self.graph):
            self.buf.add_(1)

    def grow(self) -> None:
        """Rebind the name to a bigger buffer."""
        old, self.buf = self.buf, self._buffers.zeros((GROWN,), torch.float32)
        self._buffers.release(old)


def program(device: Any, debugger: Any, fixed: bool, carve: int) -> Runner:
    """A replay, a buffer that grows, another replay; the fixed twin captures anew in between."""
    with debugger.guard():
        runner = Runner(device, Buffers(device.device, carve))
    debugger.name("runner", runner)
    runner.graph.replay()
    with debugger.guard():
        runner.grow()
        if fixed:
            runner.capture()
        runner.victim = runner._buffers.zeros((ROWS,), torch.float32)
    runner.graph.replay()
    return runner


def damage(device: Any) -> bool:
    """The victim, which no code wrote, counts one replay; the runner's own buffer none."""
    runner = program(device, Unwatched(), False, 1 << 12)
    victim = runner.victim
    assert victim is not None
    require(victim.data_ptr() == runner.before, "the victim lies where the buffer was")
    return bool((victim == 1).all()) and not runner.buf.any()


CASES = (
    Case(
        id="A5",
        title="a captured buffer rebound to a bigger one",
        report="sglang 39175",
        program=program,
        damage=damage,
        expected=(
            Expected(
                "SG104",
                "runner.buf",
                phase="replay",
                culprit="aten.add_.Tensor",
                replay=2,
                launched_in="capture",
                victim=".victim",
            ),
        ),
    ),
)
