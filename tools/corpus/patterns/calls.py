"""Captures of several streams, captures by a call of torch's, functions that torch traces before their capture."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from corpus.env import REPLAYS, Env, seed_all
from corpus.patterns.registry import cuda_only, pattern


def _fork_disjoint(x: torch.Tensor, y: torch.Tensor, at: int) -> Any:
    y[32:].copy_(x[32:] * 2)


def _fork_atomic(x: torch.Tensor, y: torch.Tensor, at: int) -> Any:
    rows = torch.arange(64, device=x.device) // 2
    return torch.zeros(64, device=x.device).index_add_(0, rows, x[0])


def _fork(x: torch.Tensor, y: torch.Tensor, at: int) -> Any:
    return (x @ x) * (at + 1)


FORKS = {"join": _fork, "disjoint": _fork_disjoint, "three": _fork, "event": _fork, "atomic": _fork_atomic}


@pattern(*FORKS)
def streams(env: Env, how: str) -> None:
    """Work on side streams that the capture forks to and joins."""
    cuda_only(env)
    x = env.static(torch.randn(64, 64, device="cuda"))
    y = env.static(torch.zeros(64, 64, device="cuda"))
    env.name("streams", {"x": x, "y": y})
    sides = [torch.cuda.Stream() for _ in range(2 if how == "three" else 1)]

    def body() -> Any:
        main = torch.cuda.current_stream()
        outs = []
        for at, side in enumerate(sides):
            side.wait_stream(main)
            with torch.cuda.stream(side):
                outs.append(FORKS[how](x, y, at))
        if how == "disjoint":
            y[:32].copy_(x[:32] * 3)
        else:
            outs.append(x.sum(0))
        for side in sides:
            if how == "event":
                event = torch.cuda.Event()
                event.record(side)
                main.wait_event(event)
            else:
                main.wait_stream(side)
        return [out + 1 for out in outs if out is not None], y + 1

    env.warm(body, 1)
    graph = env.capture(body)
    for i in range(REPLAYS):
        seed_all(140 + i)
        x.copy_(torch.randn(64, 64, device="cuda"))
        env.keep(f"out{i}", graph.replay())


@pattern("module", "train", "two")
def graphed_callables(env: Env, how: str) -> None:
    """``torch.cuda.make_graphed_callables``: forward and backward are captured inside."""
    cuda_only(env, captures_itself=True)
    seed_all(91)
    with env.guarded():
        first, second = nn.Linear(8, 16).cuda(), nn.Linear(16, 4).cuda()
    learns = how != "module"
    sample = torch.randn(5, 8, device="cuda", requires_grad=learns)
    make = torch.cuda.make_graphed_callables
    if how == "two":
        middle = torch.randn(5, 16, device="cuda", requires_grad=True)
        one, other = make((first, second), ((sample,), (middle,)))
    else:
        one, other = make(first, (sample,)), second
    optimizer = torch.optim.SGD([*first.parameters(), *second.parameters()], lr=0.1)
    for i in range(4):
        seed_all(150 + i)
        x = torch.randn(5, 8, device="cuda", requires_grad=learns)
        loss = other(one(x).relu()).square().mean()
        if learns:
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        env.keep(f"loss{i}", loss.detach())
        env.note(f"parameters{i}", [p.detach() for p in first.parameters()])
    env.replayed += 4


def _convolutions() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(8, 4)
    )


def _transformer() -> nn.Module:
    return nn.TransformerEncoderLayer(16, 4, 32, batch_first=True)


def _perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 8))


# A model, and the shape of its input.
MODELS = {
    "convolutions": (_convolutions, (2, 3, 4, 4)),
    "transformer": (_transformer, (2, 6, 16)),
    "perceptron": (_perceptron, (4, 16)),
}


def _scripted(model: nn.Module, x: torch.Tensor) -> Any:
    return torch.jit.trace(model, (x,), check_trace=False)


def _exported(model: nn.Module, x: torch.Tensor) -> Any:
    return torch.export.export(model, (x,)).module()


def _transformed(model: nn.Module, x: torch.Tensor) -> Any:
    return torch.func.vmap(lambda row: model(row[None])[0])


TRACED: dict[str, Callable[[nn.Module, torch.Tensor], Any]] = {
    "jit": _scripted,
    "export": _exported,
    "fx": lambda model, x: torch.fx.symbolic_trace(model),
    "vmap": _transformed,
}


NOT_TRACED = "fx-transformer"  # which torch cannot
READS_SIZES = "jit-transformer"  # what came of it asks the host for sizes, which no graph can hold


@pattern(*(each for each in (f"{how}-{model}" for how in TRACED for model in MODELS) if each != NOT_TRACED))
def traced(env: Env, how: str) -> None:
    """A model that torch traces, and a capture of what came of it."""
    way, name = how.split("-")
    make, shape = MODELS[name]
    seed_all(92)
    with env.guarded():
        model = make().to(env.device).eval()
    x = env.static(torch.randn(shape, device=env.device))
    env.name("traced", {"model": model, "x": x})
    function = TRACED[way](model, x)

    captured = model if how == READS_SIZES else function

    @torch.no_grad()
    def body() -> Any:
        return captured(x)

    with torch.no_grad():
        env.keep("traced", function(x))

    env.warm(body, 3)
    graph = env.capture(body)
    for i in range(REPLAYS):
        seed_all(170 + i)
        with env.prepare(graph):
            x.copy_(torch.randn(shape, device=env.device))
        env.keep(f"out{i}", graph.replay())
