"""A static input, and something that writes or reads past its end: while a replay is prepared, or in it."""

import ctypes
import sys

import torch
import triton
import triton.language as tl

from shadowgraph import HostGraph, host_graph


@triton.jit
def fill(out, n, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.arange(0, BLOCK)
    tl.store(out + at, at, mask=at < n)  # the store


@triton.jit
def fill_to(out, count, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.arange(0, BLOCK)
    tl.store(out + at, at, mask=at < tl.load(count))  # the store of the graph


@triton.jit
def double(out, source, n, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.arange(0, BLOCK)
    tl.store(out + at, 2 * tl.load(source + at, mask=at < n), mask=at < n - 1)  # the load


class Runner:
    """A decode step with two static inputs."""

    def __init__(self) -> None:
        self.kv_indices = torch.zeros(
            40,
            dtype=torch.int32,
        )
        self.page_table = torch.zeros(8, dtype=torch.int32)
        self.out = torch.zeros(64, dtype=torch.int32)


def refresh(runner: Runner, count: int) -> None:
    fill[(1,)](runner.kv_indices, count, BLOCK=64)  # the launch


def run(how: str, over: int) -> None:
    """Three replays; the third one meets `over` elements past the end."""
    runner, graph = Runner(), HostGraph()
    count = torch.tensor([40])
    with host_graph(graph):
        total = runner.kv_indices + runner.page_table.sum()
        if how == "replay":
            fill_to[(1,)](runner.kv_indices, count, BLOCK=64)
    for step in range(3):
        past = over if step == 2 else 0
        refresh(runner, 40 + (past if how == "prepare" else 0))
        if how == "replay":
            count.fill_(40 + past)
        if how == "read":
            double[(1,)](runner.out, runner.kv_indices, 40 + past, BLOCK=64)
        if how == "ctypes":
            ctypes.memset(runner.kv_indices.data_ptr() + 160 - 4, 0, 4 + 4 * past)  # the call
        if how == "elsewhere":
            fill[(1,)](runner.page_table, 8 + past, BLOCK=64)
        graph.replay()
    print("total", int(total.sum()))


if __name__ == "__main__":
    run(sys.argv[1], int(sys.argv[2]))
