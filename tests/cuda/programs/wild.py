"""A kernel in prepare that follows an offset which no memory has: error 700."""

from __future__ import annotations

import torch
from kernels_cuda import stray

table = torch.zeros(64, dtype=torch.int32, device="cuda")
offset = torch.zeros(1, dtype=torch.int64, device="cuda")
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    total = table.sum()
for value in (0, 0, -(1 << 40)):
    offset.fill_(value)
    stray[(1,)](table, offset)
    graph.replay()
    torch.cuda.synchronize()
