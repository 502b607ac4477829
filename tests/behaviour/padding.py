"""A program that pads one of its inputs and forgets the other."""

from __future__ import annotations

from collections.abc import Sequence

import torch

import shadowgraph as sg


class Batch:
    """Inputs of up to eight rows, and a graph for each batch size; lengths are padded, slots are not."""

    def __init__(self, debugger: sg.Debugger, *sizes: int, rows: int = 8, dtype: torch.dtype = torch.int64) -> None:
        with debugger.guard():
            self.lens = torch.ones(rows, dtype=torch.int64)
            self.slots = torch.zeros(rows, dtype=dtype)
        debugger.name("batch", self)
        self.graphs = {size: self.capture(size) for size in sizes or (4,)}

    def capture(self, size: int) -> sg.HostGraph:
        graph = sg.HostGraph()
        with sg.host_graph(graph):
            self.out = self.lens[:size] + self.slots[:size]
        return graph

    def step(self, values: Sequence[int], padded_to: int = 4, zero: bool = False) -> None:
        count = len(values)
        if count < padded_to:
            self.lens.fill_(1)
            if zero:
                self.slots.zero_()
        self.lens[:count].copy_(torch.tensor(values) + 20)
        self.slots[:count].copy_(torch.tensor(values))
        self.replay(padded_to)

    def replay(self, size: int = 4) -> None:
        self.graphs[size].replay()


def told(debugger: sg.Debugger) -> list[tuple[str, str]]:
    facts = debugger.report(quiet=True).facts
    assert facts.faults == {}
    assert facts.coverage.written, "a silence over nothing"
    return [(found.code, found.buffer.name) for found in (*facts.findings, *facts.notes)]
