"""Reads and writes through views of static buffers, and through lists of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from corpus.env import REPLAYS, Env, seed_all
from corpus.patterns.registry import pattern

View = Callable[[torch.Tensor, torch.Tensor], Any]


def _slice(x: torch.Tensor, y: torch.Tensor) -> None:
    y[1:4].copy_(x[2:5])
    y[4:] += 1


def _column(x: torch.Tensor, y: torch.Tensor) -> None:
    y[:, 3] = x[:, 2]
    y[:, ::2].mul_(0.5)


def _diagonal(x: torch.Tensor, y: torch.Tensor) -> None:
    y.diagonal().copy_(x.diagonal())
    torch.diagonal(y, 1).add_(2)


def _expand(x: torch.Tensor, y: torch.Tensor) -> None:
    y.copy_(x[0].expand(6, 8))
    y.add_(x[:, :1].expand(6, 8))


def _permute(x: torch.Tensor, y: torch.Tensor) -> None:
    y.t().copy_(x.permute(1, 0))
    y.view(2, 3, 8).permute(2, 0, 1).sin_()


def _select(x: torch.Tensor, y: torch.Tensor) -> None:
    y.select(0, 5).copy_(x.select(0, 0))
    y[2].zero_()


def _split(x: torch.Tensor, y: torch.Tensor) -> None:
    for a, b in zip(y.split(4, 1), x.split(4, 1), strict=True):
        a.copy_(b.flip(1))


def _chunk(x: torch.Tensor, y: torch.Tensor) -> None:
    a, b = y.chunk(2, 0)
    a.add_(x[:3])
    b.sub_(x[3:])


def _bytes(x: torch.Tensor, y: torch.Tensor) -> None:
    y.view(torch.int32).copy_(x.view(torch.int32))
    y.view(torch.uint8)[0].zero_()


def _complex(x: torch.Tensor, y: torch.Tensor) -> None:
    torch.view_as_complex(y.view(6, 4, 2)).copy_(torch.view_as_complex(x.view(6, 4, 2)).conj())


def _reshape(x: torch.Tensor, y: torch.Tensor) -> None:
    y.reshape(-1)[3:40:5] = x.reshape(-1)[:8]


def _flip(x: torch.Tensor, y: torch.Tensor) -> None:
    y.copy_(x.flip(0))
    y[::2] = x[1::2]


def _overlap(x: torch.Tensor, y: torch.Tensor) -> None:
    y.copy_(x)
    y[:-1].copy_(y[1:].clone())


VIEWS: dict[str, View] = {
    "slice": _slice,
    "column": _column,
    "diagonal": _diagonal,
    "strided": lambda x, y: y.as_strided((3, 4), (16, 2)).copy_(x[:3, :4]),
    "unfold": lambda x, y: y[:, :7].copy_(x.unfold(1, 2, 1).sum(-1)),
    "expand": _expand,
    "permute": _permute,
    "select": _select,
    "split": _split,
    "chunk": _chunk,
    "bytes": _bytes,
    "complex": _complex,
    "reshape": _reshape,
    "narrow": lambda x, y: y.narrow(1, 2, 3).copy_(x.narrow_copy(1, 0, 3)),
    "flip": _flip,
    "overlap": _overlap,
}


@pattern(*VIEWS, eager=True)
def views(env: Env, how: str) -> None:
    seed_all(51)
    x = env.static(torch.randn(6, 8, device=env.device))
    y = env.static(torch.zeros(6, 8, device=env.device))
    env.name("views", {"x": x, "y": y})

    @torch.no_grad()
    def body() -> Any:
        VIEWS[how](x, y)
        return y * 2

    env.warm(body, 1)
    y.zero_()
    graph = env.capture(body)
    for i in range(REPLAYS):
        seed_all(80 + i)
        with env.prepare(graph):
            x.copy_(torch.randn(6, 8, device=env.device))
        env.keep(f"out{i}", graph.replay())
        env.note(f"y{i}", y)


Tensors = list[torch.Tensor]


def _both(name: str) -> Callable[[Tensors, Tensors], Tensors]:
    """In place with another list, then out of place with a number."""

    def apply(a: Tensors, b: Tensors) -> Tensors:
        getattr(torch, f"_foreach_{name}_")(a, b)
        made: Tensors = getattr(torch, f"_foreach_{name}")(a, 2.0)
        return made

    return apply


def _unary(name: str) -> Callable[[Tensors, Tensors], Tensors]:
    def apply(a: Tensors, b: Tensors) -> Tensors:
        made: Tensors = getattr(torch, f"_foreach_{name}")(a)
        getattr(torch, f"_foreach_{name}_")(b)
        return made

    return apply


def _then(name: str, *rest: Any) -> Callable[[Tensors, Tensors], Tensors]:
    """In place, with `rest` as further arguments after the list that it changes, then something that reads it."""

    def apply(a: Tensors, b: Tensors) -> Tensors:
        getattr(torch, f"_foreach_{name}_")(a, *(b if each is LIST else each for each in rest))
        return [x + 1 for x in a]

    return apply


LIST = object()
FOREACH = {
    **{name: _both(name) for name in ("add", "mul", "sub", "div", "maximum", "pow")},
    **{name: _unary(name) for name in ("sqrt", "exp", "abs", "neg", "reciprocal", "sigmoid", "sign")},
    "addcmul": _then("addcmul", LIST, LIST, 0.5),
    "addcdiv": _then("addcdiv", LIST, LIST, 0.5),
    "lerp": _then("lerp", LIST, 0.3),
    "norm": lambda a, b: torch._foreach_norm(a, 2),
    "clamp_max": _then("clamp_max", 0.9),
    "copy": _then("copy", LIST),
    "zero": _then("zero"),
}


@pattern(*FOREACH, eager=True)
def foreach(env: Env, how: str) -> None:
    """Operators over lists of tensors."""
    dev = env.device
    seed_all(53)
    shapes = [(3,), (4, 5), (1,), (2, 3, 4), (130,)]
    a, b = ([env.static(torch.rand(shape, device=dev) + 0.5) for shape in shapes] for _ in range(2))
    env.name("lists", {"a": a, "b": b})

    @torch.no_grad()
    def body() -> Any:
        return FOREACH[how](a, b)

    env.warm(body, 1)
    graph = env.capture(body)
    for i in range(REPLAYS):
        seed_all(95 + i)
        with env.prepare(graph):
            for tensor in (*a, *b):
                tensor.copy_(torch.rand(tensor.shape, device=dev) + 0.5)
        env.keep(f"out{i}", graph.replay())
        env.note(f"state{i}", [*a, *b])
