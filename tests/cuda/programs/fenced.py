"""A static input on the device, and a kernel that leaves it at its end: while a replay is prepared, or in it."""

import sys

import torch
import triton
import triton.language as tl


@triton.jit
def fill(out, count, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, at, mask=at < tl.load(count))


@triton.jit
def double(out, source, count, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    value = tl.load(source + at, mask=at < tl.load(count), other=0)
    tl.store(out + at, value, mask=at < 64)


class Runner:
    """A decode step with two static inputs."""

    def __init__(self) -> None:
        self.kv_indices = torch.zeros(64, dtype=torch.int32, device="cuda")
        self.page_table = torch.zeros(8, dtype=torch.int32, device="cuda")


def run(how: str, over: int) -> None:
    """Three replays; the third one meets `over` elements past the end."""
    runner, graph = Runner(), torch.cuda.CUDAGraph()
    out, count = torch.zeros(64, dtype=torch.int32, device="cuda"), torch.tensor([64], device="cuda")
    for kernel in (lambda: fill[(1,)](out, count, BLOCK=128), lambda: double[(1,)](out, out, count, BLOCK=128)):
        kernel()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        total = runner.kv_indices + runner.page_table.sum()
        if how == "replay":
            fill[(1,)](runner.kv_indices, count, BLOCK=128)
    for step in range(3):
        count.fill_(64)
        fill[(1,)](runner.kv_indices, count, BLOCK=128)
        count.fill_(64 + (over if step == 2 else 0))
        if how == "prepare":
            fill[(1,)](runner.kv_indices, count, BLOCK=128)
        if how == "read":
            double[(1,)](out, runner.kv_indices, count, BLOCK=128)
        if how == "elsewhere":
            count.fill_(8 + (over if step == 2 else 0))
            fill[(1,)](runner.page_table, count, BLOCK=128)
        graph.replay()
    torch.cuda.synchronize()
    print("total", int(total.sum()))


if __name__ == "__main__":
    run(sys.argv[1], int(sys.argv[2]))
