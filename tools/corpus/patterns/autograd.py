"""Training steps with autograd in the graph: custom functions, hooks, checkpoints, transforms, gradient scaling."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import func, nn
from torch.autograd import forward_ad

from corpus.env import REPLAYS, Env, seed_all
from corpus.patterns.registry import pattern


class Squared(torch.autograd.Function):
    """A function with a backward of its own."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return 2 * x * grad


class InPlace(torch.autograd.Function):
    """The same, in place."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.mark_dirty(x)
        return x.mul_(3)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return grad * 3


@dataclass
class Setting:
    """What a training step works on."""

    model: nn.Sequential
    embedding: nn.Embedding
    optimizer: torch.optim.Optimizer
    parameters: list[nn.Parameter]
    x: torch.Tensor
    y: torch.Tensor
    tokens: torch.Tensor
    scale: torch.Tensor
    overflowed: torch.Tensor

    def error(self, out: torch.Tensor) -> torch.Tensor:
        return (out - self.y).square().mean()

    def weights(self) -> dict[str, torch.Tensor]:
        return {name: p.detach() for name, p in self.model.named_parameters()}


def _checkpoint(s: Setting) -> torch.Tensor:
    from torch.utils.checkpoint import checkpoint

    return s.error(checkpoint(s.model, s.x, use_reentrant=False, preserve_rng_state=False))


def _autocast(s: Setting) -> torch.Tensor:
    with torch.autocast(s.x.device.type, dtype=torch.bfloat16, cache_enabled=False):
        out = s.model(s.x)
    return s.error(out.float())


def _double_backward(s: Setting) -> torch.Tensor:
    (grad,) = torch.autograd.grad(s.error(s.model(s.x)), [s.model[0].weight], create_graph=True)
    return grad.square().sum()


LOSSES: dict[str, Callable[[Setting], torch.Tensor]] = {
    "custom": lambda s: s.error(Squared.apply(s.model(s.x))),
    "custom-in-place": lambda s: s.error(InPlace.apply(s.model(s.x) * 1.0)),
    "checkpoint": _checkpoint,
    "embedding": lambda s: s.error(s.model(s.embedding(s.tokens))),
    "autocast": _autocast,
    "double-backward": _double_backward,
}
STEPS = ("plain", "hooks", "accumulate", "dropout", "batchnorm", "weight-norm", "clip", "unscale")


def _step(s: Setting, how: str) -> torch.Tensor:
    loss_of = LOSSES.get(how, lambda s: s.error(s.model(s.x)))
    s.optimizer.zero_grad(set_to_none=how != "accumulate")
    loss = loss_of(s)
    if how == "accumulate":
        (loss / 2).backward()
        loss = loss_of(s)
    if how == "unscale":
        (loss * s.scale).backward()
        s.overflowed.zero_()
        grads = [p.grad for p in s.parameters if p.grad is not None]
        torch._amp_foreach_non_finite_check_and_unscale_(grads, s.overflowed, s.scale.reciprocal())
    else:
        loss.backward()
    if how == "clip":
        nn.utils.clip_grad_norm_(s.parameters, 0.1, foreach=True)
    s.optimizer.step()
    return loss.detach()


def _grad(s: Setting) -> Any:
    return func.grad(lambda w: s.error(func.functional_call(s.model, w, (s.x,))))(s.weights())


def _per_sample(s: Setting) -> Any:
    def loss(weights: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (func.functional_call(s.model, weights, (x[None],)) - y).square().mean()

    return func.vmap(func.grad(loss), (None, 0, 0))(s.weights(), s.x, s.y)


def _forward_mode(s: Setting) -> Any:
    with forward_ad.dual_level():
        out = s.model(forward_ad.make_dual(s.x, s.y.repeat(1, 2)))
        return [t.clone() for t in forward_ad.unpack_dual(out) if t is not None]


TRANSFORMS: dict[str, Callable[[Setting], Any]] = {
    "grad": _grad,
    "vmap": _per_sample,
    "jvp": lambda s: func.jvp(lambda x: s.model(x), (s.x,), (torch.ones_like(s.x),)),
    "hessian": lambda s: func.hessian(lambda x: s.model(x).sum())(s.x[0]),
    "forward-mode": _forward_mode,
}


@pattern(*LOSSES, *STEPS, *TRANSFORMS, eager=True)
def training(env: Env, how: str) -> None:
    s = _setting(env, how)
    env.name("training", {"model": s.model, "x": s.x, "y": s.y, "tokens": s.tokens})

    def body() -> Any:
        return TRANSFORMS[how](s) if how in TRANSFORMS else _step(s, how)

    env.warm(body, 2)
    graph = env.capture(body)
    for i in range(REPLAYS):
        seed_all(110 + i)
        with env.prepare(graph), torch.no_grad():
            s.x.copy_(torch.randn(6, 8, device=env.device))
            s.y.copy_(torch.randn(6, 4, device=env.device))
            s.tokens.copy_(torch.randint(0, 10, (6,), device=env.device))
        env.keep(f"out{i}", graph.replay(seed=1000 + i))
        env.note(f"parameters{i}", [p.detach() for p in s.parameters])
        env.note(f"buffers{i}", list(s.model.buffers()))


def _setting(env: Env, how: str) -> Setting:
    dev = env.device
    seed_all(61)
    between: dict[str, list[nn.Module]] = {"dropout": [nn.Dropout(0.3)], "batchnorm": [nn.BatchNorm1d(12)]}
    with env.guarded():
        layers = [nn.Linear(8, 12), *between.get(how, []), nn.Tanh(), nn.Linear(12, 4)]
        model = nn.Sequential(*layers).to(dev)
        if how == "weight-norm":
            nn.utils.parametrizations.weight_norm(model[0])
        embedding = nn.Embedding(10, 8).to(dev)
    parameters = [*model.parameters(), *embedding.parameters()]
    if how == "hooks":
        for parameter in parameters:
            parameter.register_hook(lambda grad: grad * 0.5)
    return Setting(
        model, embedding, torch.optim.SGD(parameters, lr=0.05, foreach=True), parameters,
        x=env.static(torch.randn(6, 8, device=dev)),
        y=env.static(torch.randn(6, 4, device=dev)),
        tokens=env.static(torch.randint(0, 10, (6,), device=dev)),
        scale=env.static(torch.tensor(8.0, device=dev)),
        overflowed=env.static(torch.zeros((), device=dev)),
    )  # fmt: skip
