"""Chains of operators in place: accumulators, counters, rings, masks, in several dtypes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from corpus.env import REPLAYS, Env, seed_all
from corpus.patterns.registry import pattern


@dataclass
class Buffers:
    x: torch.Tensor
    acc: torch.Tensor
    index: torch.Tensor
    position: torch.Tensor


def _arithmetic(b: Buffers) -> None:
    b.acc.add_(b.x).mul_(0.5)
    b.acc.sub_(b.x[0]).neg_()


def _masked(b: Buffers) -> None:
    b.acc.masked_fill_(b.x > 0, 1.5)
    b.acc.masked_scatter_(b.x < -1, b.x)


def _cumulative(b: Buffers) -> None:
    b.acc.copy_(b.x).cumsum_(1)
    b.acc.cumprod_(0)
    b.acc.clamp_(-10, 10)


def _counter(b: Buffers) -> None:
    b.position.add_(1)
    b.acc.add_(b.position)


def _ema(b: Buffers) -> None:
    b.acc.lerp_(b.x, 0.1)
    b.acc.mul_(0.99).add_(b.x, alpha=0.01)


def _ring(b: Buffers) -> None:
    b.acc.index_copy_(0, b.position % 5, b.x[:1])
    b.position.add_(1)


def _swap(b: Buffers) -> None:
    kept = b.acc.clone()
    b.acc.copy_(b.x)
    b.x.copy_(kept)


def _fill(b: Buffers) -> None:
    b.acc.zero_()
    b.acc[1:3].fill_(2)
    b.acc[:, -1].fill_(3)


def _copies(b: Buffers) -> None:
    """Temporaries are freed while the capture goes on."""
    first = b.x.clone()
    second = first.clone()
    third = second + first
    del first
    fourth = third.clone()
    del second, third
    b.acc.copy_(fourth)


def _bool(b: Buffers) -> None:
    b.acc.logical_xor_(b.x)
    b.acc[0].logical_not_()


def _int8(b: Buffers) -> None:
    b.acc.add_(b.x).bitwise_and_(15)
    b.acc[::2].neg_()


CHAINS: dict[str, Any] = {
    "arithmetic": _arithmetic,
    "masked": _masked,
    "index_add": lambda b: b.acc.index_add_(0, b.index, b.x, alpha=0.5),
    "scatter_reduce": lambda b: b.acc.scatter_reduce_(0, b.index[:, None].expand(5, 7), b.x, "amax"),
    "index_put": lambda b: b.acc.index_put_((b.index,), b.x, accumulate=True),
    "cumulative": _cumulative,
    "counter": _counter,
    "ema": _ema,
    "ring": _ring,
    "swap": _swap,
    "fill": _fill,
    "copies": _copies,
    "bool": _bool,
    "int8": _int8,
    **dict.fromkeys(("half", "bf16", "double", "complex"), _arithmetic),
}
DTYPES = {
    "bool": torch.bool, "int8": torch.int8, "half": torch.float16, "bf16": torch.bfloat16, "double": torch.float64,
    "complex": torch.complex64,
}  # fmt: skip


@pattern(*CHAINS, eager=True)
def chains(env: Env, how: str) -> None:
    dev, dtype = env.device, DTYPES.get(how, torch.float32)
    seed_all(52)

    def values() -> torch.Tensor:
        made = torch.randn(5, 7, device=dev) * 3
        return made > 0 if dtype == torch.bool else made.to(dtype)

    buffers = Buffers(
        env.static(values()),
        env.static(torch.zeros(5, 7, dtype=dtype, device=dev)),
        env.static(torch.tensor([0, 2, 2, 4, 1], device=dev)),
        env.static(torch.zeros(1, dtype=torch.int64, device=dev)),
    )
    env.name("chain", vars(buffers))

    @torch.no_grad()
    def body() -> Any:
        CHAINS[how](buffers)
        return buffers.acc.clone() if dtype == torch.bool else buffers.acc + buffers.acc

    env.warm(body, 1)
    buffers.acc.zero_()
    buffers.position.zero_()
    graph = env.capture(body)
    for i in range(REPLAYS):
        seed_all(90 + i)
        with env.prepare(graph):
            buffers.x.copy_(values())
        env.keep(f"out{i}", graph.replay())
        env.note(f"state{i}", [buffers.acc, buffers.position, buffers.x])
