"""``torch.compile(mode="reduce-overhead")``: torch's own trees of CUDA graphs, in a pool of theirs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from corpus.env import Env, seed_all
from corpus.patterns.registry import cuda_only, mlp, pattern

Function = Callable[[nn.Module, torch.Tensor, torch.Tensor], torch.Tensor]


def _model(model: nn.Module, state: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    made: torch.Tensor = model(x)
    return made


def _in_place(model: nn.Module, state: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    state.add_(x)
    return state * 2


def _attention(model: nn.Module, state: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    q = x.view(1, 8, 2, 8).transpose(1, 2)
    return F.scaled_dot_product_attention(q, q, q)


FUNCTIONS: dict[str, Function] = {
    "mlp": _model,
    "softmax": lambda model, state, x: (x * 2).softmax(-1),
    "train": _model,
    "shapes": _model,
    "dropout": lambda model, state, x: F.dropout(model(x), 0.2, True),
    "in-place": _in_place,
    "reduce": lambda model, state, x: x.sum(-1) + x.var(0)[:8],
    "attention": _attention,
}


@pattern(*FUNCTIONS)
def compiled(env: Env, how: str) -> None:
    cuda_only(env, captures_itself=True)
    import torch._dynamo

    torch._dynamo.reset()
    model = mlp(env)
    x = env.static(torch.randn(8, 16, device="cuda"))
    state = env.static(torch.zeros(8, 16, device="cuda"))

    def function(x: torch.Tensor) -> torch.Tensor:
        return FUNCTIONS[how](model, state, x)

    fast: Any = torch.compile(function, mode="reduce-overhead", dynamic=False)
    for i in range(6):
        seed_all(160 + i)
        torch.compiler.cudagraph_mark_step_begin()
        if how == "train":
            loss = fast(x * (i + 1)).square().mean()
            loss.backward()
            env.keep(f"loss{i}", loss.detach())
            env.keep(f"grad{i}", [p.grad for p in model.parameters()])
            model.zero_grad()
        else:
            rows = 4 if how == "shapes" and i % 2 else 8
            with torch.no_grad():
                env.keep(f"out{i}", fast(torch.randn(8, 16, device="cuda")[:rows].contiguous()))
    env.replayed += 4
    torch._dynamo.reset()
