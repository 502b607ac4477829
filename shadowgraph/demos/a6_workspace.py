"""A6: aiter 5393. A workspace is made at its first use, which comes inside a capture, over the block of a temporary
that the capture has freed; it is filled once, by eager code.

Each replay writes the temporary's values over it before the kernels that need it read it.
"""

from __future__ import annotations

from typing import Any

import torch

from shadowgraph.demos.case import Case, Expected, require
from shadowgraph.demos.device import Unwatched

ROWS = 64


class Attention:
    """A forward pass whose workspace is cached at its first use, and a graph over it."""

    def __init__(self, device: Any, fixed: bool) -> None:
        self.device = device.device
        self.workspace: torch.Tensor | None = None
        self.given = torch.arange(float(ROWS), device=self.device)
        if fixed:
            self.get_workspace()
        self.graph = device.graph()
        with device.capture(self.graph):
            self.output = self.forward()

    def get_workspace(self) -> torch.Tensor:
        """The workspace; made at the first call."""
        if self.workspace is None:
            self.workspace = torch.empty(ROWS, device=self.device)
        return self.workspace

    def forward(self) -> torch.Tensor:
        scaled = self.given * 2
        self.address, total = scaled.data_ptr(), scaled.sum()
        del scaled
        return self.get_workspace() + total


def program(device: Any, debugger: Any, fixed: bool, carve: int) -> Attention:
    """A capture, the one time that the workspace is filled, two replays; the fixed twin has the workspace before."""
    attention = Attention(device, fixed)
    debugger.name("attention", attention)
    attention.get_workspace().fill_(-1)
    attention.graph.replay()
    attention.graph.replay()
    return attention


def damage(device: Any) -> bool:
    """The workspace, which was filled with one value, holds the temporary's."""
    attention = program(device, Unwatched(), False, 0)
    workspace = attention.get_workspace()
    require(workspace.data_ptr() == attention.address, "the workspace lies where the temporary was")
    kept = program(device, Unwatched(), True, 0)
    require(bool((kept.get_workspace() == -1).all()), "the fixed twin's workspace keeps its values")
    return bool((workspace == attention.given * 2).all())


CASES = (
    Case(
        id="A6",
        title="a workspace cached in a capture, over a freed temporary",
        report="aiter 5393",
        program=program,
        damage=damage,
        expected=(
            Expected(
                "SG105",
                "attention.workspace",
                phase="replay",
                culprit="aten.mul.Tensor",
                replay=1,
                launched_in="forward",
            ),
        ),
        reuses=True,
    ),
)
