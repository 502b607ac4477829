"""Buffers that the program tells something about, and buffers whose values come from host memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from corpus.env import REPLAYS, Env, Skip
from corpus.patterns.registry import pattern

DECLARED = ("protect", "invariant", "index_range", "padding", "watch", "everything")


@pattern(*DECLARED)
def declared(env: Env, how: str) -> None:
    dev = env.device
    indptr = env.static(torch.tensor([0, 2, 5, 9], dtype=torch.int32, device=dev))
    rows = env.static(torch.zeros(4, dtype=torch.int64, device=dev))
    other = env.static(torch.zeros(4, dtype=torch.int32, device=dev))
    values = env.static(torch.arange(12.0, device=dev))
    env.name("declared", {"kv_indptr": indptr, "rows": rows, "other": other, "values": values})
    told = DECLARED if how == "everything" else (how,)
    if env.debugger is not None:
        _declare(env.debugger, told, indptr, rows, other, values)

    def body() -> Any:
        values[rows] += 1.0
        return values[indptr[:-1].long()] + values[rows[:3]], other + 1

    env.warm(body, 1)
    graph = env.capture(body)
    for i in range(5):
        with env.prepare(graph):
            real = 4 - i % 3
            rows.zero_()
            rows[:real].copy_(torch.arange(1, 1 + real, device=dev) * 2)
            if "padding" not in told:  # there it is declared that its rows do not matter
                other.zero_()
            other[:real].copy_(torch.arange(real, device=dev) + i)
            indptr.copy_(torch.tensor([0, 1, 1 + i % 4, 9 + i % 2], dtype=torch.int32))
        env.keep(f"out{i}", graph.replay())
        env.note(f"indptr{i}", indptr.tolist())


def _declare(
    debugger: Any, told: tuple[str, ...], indptr: torch.Tensor, rows: torch.Tensor, other: torch.Tensor,
    values: torch.Tensor,
) -> None:  # fmt: skip
    import shadowgraph as sg

    if "protect" in told:
        debugger.protect(indptr)
    if "invariant" in told:
        debugger.invariant(indptr, "nondecreasing")
    if "index_range" in told:
        debugger.invariant(rows, sg.index_range(0, 12))
    if "padding" in told:
        debugger.padding(rows, "refresh")
        debugger.padding(other, "dont_care")
    if "watch" in told:
        debugger.watch(values)


Refresh = Callable[[torch.Tensor, Any], Any]
HOST_MEMORY: dict[str, Refresh] = {
    "numpy": lambda table, new: table.copy_(torch.from_numpy(new)),
    "numpy-direct": lambda table, new: table.numpy().__setitem__(slice(None), new),
    "dlpack": lambda table, new: table.copy_(torch.from_dlpack(new)),
    "from-list": lambda table, new: table.copy_(torch.tensor(new.tolist())),
    "pinned": lambda table, new: table.copy_(torch.from_numpy(new).pin_memory(), non_blocking=True),
    "data": lambda table, new: table.data.copy_(torch.from_numpy(new)),
}


@pattern(*HOST_MEMORY)
def host_memory(env: Env, how: str) -> None:
    if how == "numpy-direct" and env.cuda:
        raise Skip("for the host only")
    if how == "pinned" and not env.cuda:
        raise Skip("for CUDA only")
    table = env.static(torch.zeros(8, dtype=torch.int64, device=env.device))
    if how == "numpy-direct":  # memory of numpy's, which the graph reads in place
        table = torch.from_numpy(np.zeros(8, np.int64))
    env.name("host", {"table": table})

    def body() -> Any:
        return table * 2 + torch.arange(8, device=env.device)

    env.warm(body, 1)
    graph = env.capture(body)
    for i in range(REPLAYS):
        HOST_MEMORY[how](table, np.arange(8) * (i + 1))
        env.keep(f"out{i}", graph.replay().cpu().numpy().tolist())
