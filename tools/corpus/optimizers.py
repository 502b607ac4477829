"""Every optimizer of torch.optim over a small model: single, foreach and fused, capturable and not, five steps."""

from __future__ import annotations

import inspect
import sys
from typing import Any

import torch
from torch import nn
from torch.optim import optimizer

from corpus.env import Env, Skip, seed_all
from corpus.sources import Made

OPTIMIZERS: dict[str, list[dict[str, Any]]] = {
    "SGD": [
        {"lr": 0.1},
        {"lr": 0.1, "momentum": 0.9},
        {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.1},
    ],
    "Adam": [{}, {"amsgrad": True}, {"weight_decay": 0.1, "maximize": True}],
    "AdamW": [{}, {"amsgrad": True}],
    "NAdam": [{}, {"decoupled_weight_decay": True}],
    "RAdam": [{}, {"weight_decay": 0.1}],
    "Adamax": [{}, {"weight_decay": 0.1}],
    "Adadelta": [{}, {"rho": 0.95, "weight_decay": 0.9}],
    "Adagrad": [{}, {"weight_decay": 0.1}],
    "ASGD": [{}, {"weight_decay": 0.1}],
    "RMSprop": [{}, {"momentum": 0.9, "centered": True}],
    "Rprop": [{}, {"etas": (0.4, 1.3)}],
    "Adafactor": [{}],
    "Muon": [{}],
    "SparseAdam": [{}],
    "LBFGS": [{}],
}


def ids() -> list[str]:
    return [
        f"optim/{name}/{at}/{impl}/{capturable}"
        for name, options in OPTIMIZERS.items()
        for at in range(len(options))
        for impl in ("single", "foreach", "fused")
        for capturable in ("capturable", "plain")
    ]


def program(pid: str) -> Made:
    """A program: ``optim/NAME/OPTIONS/IMPL/CAPTURABLE``."""
    _, name, at, impl, capturable = pid.split("/")
    options = OPTIMIZERS[name][int(at)]
    return Made(lambda env: run_optimizer(env, name, options, impl, capturable == "capturable"), True)


def allow_capturable_on_cpu() -> None:
    """`capturable` is for devices only; with graphs on the host it makes the same sense there."""

    def devices(*args: Any, **kwargs: Any) -> list[str]:
        return ["cuda", "xpu", "hpu", "cpu"]

    optimizer._get_capturable_supported_devices = devices
    for name, module in list(sys.modules.items()):
        if name.startswith("torch.optim.") and hasattr(module, "_get_capturable_supported_devices"):
            module._get_capturable_supported_devices = devices


def _arguments(cls: Any, options: dict[str, Any], impl: str, capturable: bool) -> dict[str, Any]:
    """What an optimizer is made with; skips what it does not have."""
    known = inspect.signature(cls.__init__).parameters
    wanted = ["capturable"] * capturable + [impl] * (impl != "single")
    for name in wanted:
        if name not in known:
            raise Skip(f"has no {name}")
    if capturable:
        allow_capturable_on_cpu()
    single = {"foreach": False} if impl == "single" and "foreach" in known else {}
    return {**options, **single, **dict.fromkeys(wanted, True)}


def run_optimizer(env: Env, name: str, options: dict[str, Any], impl: str, capturable: bool) -> None:
    cls = getattr(torch.optim, name, None)
    if cls is None:
        raise Skip("not in this torch")
    given = _arguments(cls, options, impl, capturable)
    seed_all(5)
    with env.guarded():
        bias = name != "Muon"  # which takes matrices only
        layers = nn.Linear(8, 16, bias=bias), nn.Tanh(), nn.Linear(16, 4, bias=bias)
        model = nn.Sequential(*layers).to(env.device)
    x, y = env.static(torch.randn(5, 8, device=env.device)), env.static(torch.randn(5, 4, device=env.device))
    try:
        made = cls(model.parameters(), **given)
    except (TypeError, RuntimeError, ValueError) as error:
        raise Skip(f"{type(error).__name__}: {error}") from error
    env.name("model", model)
    env.name("optimizer", made)

    def body() -> Any:
        made.zero_grad(set_to_none=True)
        loss = (model(x) - y).square().mean()
        loss.backward()
        if name == "LBFGS":
            made.step(lambda: loss)
        else:
            made.step()
        return loss.detach()

    env.warm(body, 3)
    graph = env.capture(body)
    for i in range(5):
        seed_all(200 + i)
        with env.prepare(graph), torch.no_grad():
            x.copy_(torch.randn(5, 8, device=env.device))
            y.copy_(torch.randn(5, 4, device=env.device))
        loss = graph.replay()
        env.keep(f"loss{i}", loss)
        env.note(f"parameters{i}", [p.detach() for p in model.parameters()])
    state = [v for p in model.parameters() for v in made.state[p].values() if isinstance(v, torch.Tensor)]
    env.note("state", state)
