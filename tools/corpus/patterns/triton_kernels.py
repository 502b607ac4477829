"""Triton kernels over whole buffers, rows, slices, and places that other buffers hold."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch

from corpus.env import REPLAYS, Env, Skip, seed_all
from corpus.patterns.registry import pattern

Buffers = dict[str, torch.Tensor]


def _axpy(k: ModuleType, b: Buffers) -> None:
    k.axpy[(4,)](b["x"], b["y"], b["out"], 240, 2.0, BLOCK=64)


def _axpy_slice(k: ModuleType, b: Buffers) -> None:
    k.axpy[(1,)](b["x"][2], b["y"][3], b["out"][4], 40, 0.5, BLOCK=64)


def _softmax(k: ModuleType, b: Buffers, source: str = "x") -> None:
    k.softmax_rows[(6,)](b[source], b["turned"].view(6, 40), 40, 40, 40, BLOCK=64)


def _softmax_rows(k: ModuleType, b: Buffers) -> None:
    k.softmax_rows[(6,)](b["x"], b["wide"], 40, 64, 40, BLOCK=64)


def _indices(k: ModuleType, b: Buffers) -> None:
    k.fill_indices[(4,)](b["indptr"], b["table"], b["indices"], 12, BLOCK=4)


def _kv(k: ModuleType, b: Buffers) -> None:
    k.store_kv[(6,)](b["x"], b["cache"], b["slots"], 40, 40, BLOCK=64)


def _counter(k: ModuleType, b: Buffers) -> None:
    b["counter"].zero_()
    k.count_up[(4,)](b["counter"], b["hits"], 50, BLOCK=16)


def _transpose(k: ModuleType, b: Buffers) -> None:
    k.transpose[(1, 3)](b["x"], b["turned"], 6, 40, B=16)


def _chain(k: ModuleType, b: Buffers) -> None:
    _axpy(k, b)
    _softmax(k, b, "out")
    _indices(k, b)
    _kv(k, b)
    _counter(k, b)


LAUNCHES: dict[str, Callable[[ModuleType, Buffers], None]] = {
    "axpy": _axpy, "axpy-slice": _axpy_slice, "softmax": _softmax, "softmax-rows": _softmax_rows, "indices": _indices,
    "kv": _kv, "counter": _counter, "transpose": _transpose, "chain": _chain,
}  # fmt: skip


@pattern(*LAUNCHES)
def triton_kernels(env: Env, how: str) -> None:
    try:
        from corpus import kernels
    except ImportError as error:
        raise Skip(f"triton: {error}") from error
    dev = env.device
    seed_all(41)
    made = {
        "x": torch.randn(6, 40), "y": torch.randn(6, 40), "out": torch.zeros(6, 40), "wide": torch.zeros(6, 64),
        "indptr": torch.tensor([0, 3, 4, 9, 11], dtype=torch.int32),
        "table": torch.arange(4 * 12, dtype=torch.int32).view(4, 12),
        "indices": torch.zeros(11, dtype=torch.int32),
        "slots": torch.tensor([5, 0, 3, 9, 2, 7], dtype=torch.int32),
        "cache": torch.zeros(10, 40),
        "counter": torch.zeros(1, dtype=torch.int32),
        "hits": torch.randint(0, 2, (50,), dtype=torch.int32),
        "turned": torch.zeros(40, 6),
    }  # fmt: skip
    buffers = {name: env.static(value.to(dev)) for name, value in made.items()}
    env.name("kernels", buffers)

    def body() -> Any:
        LAUNCHES[how](kernels, buffers)
        return buffers["out"] + 1, buffers["cache"].sum()

    env.warm(body, 1)
    graph = env.capture(body)
    for i in range(REPLAYS):
        seed_all(70 + i)
        with env.prepare(graph):
            buffers["x"].copy_(torch.randn(6, 40, device=dev))
            buffers["slots"].copy_(torch.randperm(10, device=dev)[:6])
            buffers["hits"].copy_(torch.randint(0, 2, (50,), dtype=torch.int32, device=dev))
        env.keep(f"out{i}", graph.replay())
        env.note(f"state{i}", [buffers[name] for name in ("out", "wide", "indices", "cache", "counter", "turned")])
