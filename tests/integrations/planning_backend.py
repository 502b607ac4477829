"""What tests of the flashinfer adapter share: an attachment to wrappers that plan, and a backend that has some."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import planning_wrappers as wrappers
import torch

import shadowgraph as sg
from shadowgraph.integrations.flashinfer.adapter import Attachment
from shadowgraph.integrations.flashinfer.hooks import Hooks
from shadowgraph.integrations.flashinfer.versions import WRAPPERS

DECODE, MLA = WRAPPERS[0], WRAPPERS[4]


@contextmanager
def attachment() -> Iterator[Attachment]:
    """The adapter hung on wrappers that plan and run as flashinfer's do."""
    made = Attachment(Hooks())
    made.hang([(wrappers.DecodeWrapper, DECODE), (wrappers.MlaWrapper, MLA)])
    yield made
    made.take_down()


def ints(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


class Backend:
    """An attention backend after sglang's: buffers that batch sizes share, a wrapper and a graph for each size."""

    def __init__(self, debugger: sg.Debugger, sizes: tuple[int, ...] = (3,), named: bool = True) -> None:
        self.debugger = debugger
        with debugger.guard():
            self.workspace = torch.zeros(256, dtype=torch.uint8)
            self.kv_indptr, self.kv_indices = torch.zeros(8, dtype=torch.int32), torch.zeros(64, dtype=torch.int32)
            self.last = torch.ones(8, dtype=torch.int32)
            self.wrappers = {size: self.wrapper(size) for size in sizes}
        self.graphs = {size: sg.HostGraph() for size in sizes}
        if named:
            debugger.name("attn", self)

    def wrapper(self, size: int) -> wrappers.DecodeWrapper:
        return wrappers.DecodeWrapper(self.workspace, self.kv_indptr[: size + 1], self.kv_indices, self.last[:size])

    def capture(self, fast: bool = True) -> None:
        for size, graph in self.graphs.items():
            self.plan(size, [16] * size)
            with sg.host_graph(graph):
                self.wrappers[size].run()
            if fast:
                wrappers.plan_fast(self.wrappers[size])

    def plan(self, size: int, lens: list[int], indptr: torch.Tensor | None = None) -> None:
        """Refresh the shared index pointers, or others, and plan from them."""
        indptr = self.kv_indptr if indptr is None else indptr
        indptr[1 : size + 1] = torch.tensor(lens).cumsum(0)
        self.kv_indices[: sum(lens)] = torch.arange(sum(lens), dtype=torch.int32) % 64
        self.wrappers[size].begin_forward(indptr[: size + 1], self.kv_indices[: sum(lens)], self.last[:size])

    def step(self, size: int, lens: list[int], indptr: torch.Tensor | None = None) -> list[int]:
        self.plan(size, lens, indptr)
        self.graphs[size].replay()
        out: list[int] = self.wrappers[size].out.tolist()
        return out
