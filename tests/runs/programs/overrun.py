"""A bug in a few lines: something writes past the end of an eager buffer while a replay is prepared."""

import ctypes

import torch

from shadowgraph import HostGraph, host_graph


class Decode:
    """A decode step with one static input."""

    def __init__(self) -> None:
        self.page_table = torch.zeros((4, 4), dtype=torch.int32)
        self.graph = HostGraph()
        with host_graph(self.graph):
            self.out = self.page_table.sum(1)

    def step(self, past_end: int) -> None:
        """One replay; `past_end` bytes are written behind the table first."""
        ctypes.memset(self.page_table.data_ptr() + 64, 1, past_end)
        self.graph.replay()


def run(past_end: int) -> None:
    decode = Decode()
    for _ in range(2):
        decode.step(past_end)


if __name__ == "__main__":
    run(8)
    print("done")
