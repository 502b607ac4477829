"""A1: MiniCPM-SALA's kv_indptr. A graph rewrites in place the index pointers that the host reads for the next plan.

Two graphs, for batch sizes 4 and 2, share the prefix of one buffer. Each writes the running sum of its real lengths
into it. The plan for the next step reads the values that the last replay wrote.
"""

from __future__ import annotations

from typing import Any

import torch

from shadowgraph.demos.case import Case, Expected, require
from shadowgraph.demos.device import Buffers, Unwatched

TOKENS = 16  # planned tokens a row
HEADS = 2
BATCHES = (4, 2)
STEPS = ((4, 5), (2, 16), (4, 5))  # batch size and real length of each step


class Wrapper:
    """The part of flashinfer's decode wrapper that keeps the index buffer."""

    def __init__(self, indptr: torch.Tensor) -> None:
        self._paged_kv_indptr_buf = indptr


class Backend:
    """The attention backend: one metadata buffer, a wrapper and a graph for each batch size."""

    def __init__(self, device: Any, buffers: Buffers) -> None:
        rows = max(BATCHES) * HEADS
        self.metadata = {"flashinfer_kv_indptr": buffers.of([i * TOKENS for i in range(rows + 1)], torch.int32)}
        self.original = self.metadata["flashinfer_kv_indptr"].clone()
        self.lens = buffers.of([TOKENS] * rows, torch.int32)
        self.wrappers = {bs: Wrapper(self.metadata["flashinfer_kv_indptr"][: bs * HEADS + 1]) for bs in BATCHES}
        self.graphs = {bs: device.graph() for bs in BATCHES}
        self.outputs: dict[int, torch.Tensor] = {}

    def capture(self, device: Any) -> None:
        for bs, graph in self.graphs.items():
            with device.capture(graph):
                self.outputs[bs] = self.forward(bs)

    def forward(self, bs: int) -> torch.Tensor:
        indptr = self.wrappers[bs]._paged_kv_indptr_buf
        indptr[1:].copy_(self.lens[: bs * HEADS].cumsum(0))
        return indptr[1:] - indptr[:-1]

    def plan(self, bs: int) -> list[int]:
        """Host side of `begin_forward`: reads the index pointers and splits the work by them."""
        return [int(value) for value in self.wrappers[bs]._paged_kv_indptr_buf.cpu().tolist()]


def program(device: Any, debugger: Any, fixed: bool, carve: int, declared: bool = True) -> list[list[int]]:
    """Run three steps; returns the values that each plan read."""
    with debugger.guard():
        backend = Backend(device, Buffers(device.device, carve))
    debugger.name("attn", backend)
    if declared:
        debugger.protect(backend.metadata["flashinfer_kv_indptr"])
    backend.capture(device)
    plans = []
    for bs, length in STEPS:
        rows = bs * HEADS
        with debugger.prepare(backend.graphs[bs]):
            backend.lens[:rows].fill_(length)
            indptr = backend.wrappers[bs]._paged_kv_indptr_buf
            if fixed and declared:
                # Plan from the real lengths: the graph then writes the values that are there already.
                indptr[1:].copy_(backend.lens[:rows].cumsum(0))
            elif fixed:
                # The public fix: restore from a copy that is passed to no graph.
                indptr.copy_(backend.original[: rows + 1])
            plans.append(backend.plan(bs))
        backend.graphs[bs].replay()
    return plans


def inferred(device: Any, debugger: Any, fixed: bool, carve: int) -> list[list[int]]:
    """The same program without declarations."""
    return program(device, debugger, fixed, carve, declared=False)


def damage(device: Any) -> bool:
    """The third plan is not monotone, and the second was silently wrong already."""
    plans = program(device, Unwatched(), False, 1 << 12)
    require(plans[0] == [i * TOKENS for i in range(9)], "the first plan reads the precomputed values")
    require(plans[1] != plans[0][:5], "the second plan reads what the first replay left")
    return any(b < a for a, b in zip(plans[2], plans[2][1:], strict=False))


CASES = (
    Case(
        id="A1",
        title="in-graph cumsum over a host-owned kv_indptr, declared",
        report="MiniCPM-SALA kv_indptr",
        program=program,
        damage=damage,
        expected=(
            Expected("SG102", "flashinfer_kv_indptr", phase="replay", culprit="aten.copy_.default", replay=1),
            Expected("SG109", "flashinfer_kv_indptr", culprit="aten.copy_.default"),
        ),
    ),
    Case(
        id="A1-inferred",
        title="the same with nothing declared",
        report="MiniCPM-SALA kv_indptr",
        program=inferred,
        damage=damage,
        expected=(
            Expected("SG102", "flashinfer_kv_indptr", phase="replay", culprit="aten.copy_.default", replay=1),
            Expected("SG109", "flashinfer_kv_indptr", culprit="aten.copy_.default"),
        ),
    ),
)
