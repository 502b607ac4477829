"""A decode loop on a GPU that knows nothing of shadowgraph: a static buffer, a graph that reads it, a kernel that fills
it before each replay, too far by the given elements in the third."""

from __future__ import annotations

import sys

import torch
from kernels_cuda import put

SIZE = 100


class Runner:
    def __init__(self) -> None:
        self.kv_indices = torch.zeros(SIZE, dtype=torch.int32, device="cuda")
        self.fill(0)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.total = self.kv_indices.sum()

    def fill(self, extra: int) -> None:
        put[(1,)](self.kv_indices, 0, SIZE + extra, BLOCK=1024)

    def step(self, extra: int) -> int:
        self.fill(extra)
        self.graph.replay()
        return int(self.total)


def main(extra: int) -> None:
    runner = Runner()
    for number in (1, 2, 3, 4):
        assert runner.step(extra if number == 3 else 0) == sum(range(SIZE))
    print("served")


if __name__ == "__main__":
    main(int(sys.argv[1]))
