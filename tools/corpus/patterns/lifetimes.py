"""How long things live: outputs dropped, graphs captured again, pools shared, memory that comes and goes."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from corpus.env import REPLAYS, Captured, Env, seed_all
from corpus.patterns.registry import pattern


class Work:
    """A static input, and some work over it."""

    def __init__(self, env: Env) -> None:
        seed_all(81)
        self.env, self.dev = env, env.device
        self.x = env.static(torch.randn(16, 16, device=self.dev))
        env.name("x", {"x": self.x})

    def __call__(self, rows: int = 16, times: int = 4) -> torch.Tensor:
        made = self.x[:rows]
        for _ in range(times):
            made = (made * 1.5).tanh() + made.mean()
        return made

    def refresh(self, i: int) -> None:
        seed_all(130 + i)
        self.x.copy_(torch.randn(16, 16, device=self.dev))


def _run(work: Work, size: int, out: Callable[[torch.Tensor, torch.Tensor], Any], after: Any = None) -> Captured:
    """Capture work and a large buffer; `after` the capture something happens; memory comes and goes between replays."""
    env = work.env
    large = env.static(torch.zeros(size, device=work.dev))

    def body() -> Any:
        return out(work(), large)

    env.warm(body, 1)
    large.zero_()
    graph = env.capture(body)
    if after is not None:
        after(graph)
    for i in range(REPLAYS):
        work.refresh(i)
        junk = [torch.full((64,), float(i), device=work.dev) for _ in range(5)]
        env.keep(f"out{i}", graph.replay())
        env.note(f"large{i}", [large[:16], junk[0]])
        del junk
    return graph


def _copy(made: torch.Tensor, large: torch.Tensor) -> Any:
    copied = made.clone()
    del made
    return copied + large[0]


def _in_place(made: torch.Tensor, large: torch.Tensor) -> Any:
    large.add_(made.sum())
    return large * 2, made


def _views(made: torch.Tensor, large: torch.Tensor) -> Any:
    copied = made.clone()
    return copied[3:7], copied[:, ::2]


def _drop_outputs(work: Work) -> None:
    others = []

    def drop(graph: Captured) -> None:
        graph.forget_outputs()
        others.append(work.env.capture(lambda: work.x.sum()))

    _run(work, 1 << 10, _copy, drop)
    work.env.keep("sum", others[0].replay())


def _captured_again(work: Work, shrink: int = 0, reset_first: bool = False) -> None:
    env = work.env
    raw = env.new_graph() if env.kind != "eager" else None
    for turn in range(3):
        rows = 16 - shrink * turn
        if raw is not None and (turn or reset_first):  # as torch asks for, before another capture
            raw.reset()
        graph = env.capture(lambda rows=rows, turn=turn: work(rows, turn + 1), graph=raw)  # type: ignore[misc]
        for i in range(2):
            work.refresh(i)
            env.keep(f"out{turn}{i}", graph.replay())


def _several(work: Work, count: int, pooled: bool, between: Any = None) -> None:
    """Graphs of other sizes, replayed in order and in reverse."""
    pool = work.env.pool() if pooled else None
    graphs = []
    for at in range(count):
        graphs.append(work.env.capture(lambda at=at: work(16 - at, 2 + at % 3), pool=pool))  # type: ignore[misc]
        if between is not None:
            between()
    for i in range(REPLAYS):
        work.refresh(i)
        for at, graph in enumerate(graphs if i % 2 == 0 else reversed(graphs)):
            work.env.keep(f"out{i}{at}", graph.replay())


def _chained(work: Work, pooled: bool) -> None:
    """Each graph goes on from a buffer that the one before it has written."""
    env = work.env
    middle = env.static(torch.zeros(16, 16, device=work.dev))
    pool = env.pool() if pooled else None

    def begin() -> torch.Tensor:
        return middle.copy_(work())

    def go_on(at: int) -> torch.Tensor:
        return middle.mul_(0.5).add_(at) + at

    graphs = [env.capture(begin, pool=pool)]
    graphs += [env.capture(lambda at=at: go_on(at), pool=pool) for at in (1, 2)]  # type: ignore[misc]
    for i in range(REPLAYS):
        work.refresh(i)
        for at, graph in enumerate(graphs):
            env.keep(f"out{i}{at}", graph.replay())


class Counted(nn.Module):
    """A module with buffers that its forward changes."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.register_buffer("seen", torch.zeros(16))
        self.norm = nn.BatchNorm1d(16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count += 1
        self.seen.lerp_(x.mean(0), 0.1)
        normed: torch.Tensor = self.norm(x)
        return normed + self.seen


def _nested_buffers(work: Work) -> None:
    env = work.env
    with env.guarded():
        module = nn.Sequential(Counted(), nn.Sequential(Counted(), nn.Linear(16, 16))).to(work.dev).train()
    env.name("module", module)
    env.warm(lambda: module(work.x), 1)
    graph = env.capture(lambda: module(work.x))
    for i in range(REPLAYS):
        work.refresh(i)
        env.keep(f"out{i}", graph.replay())
        env.note(f"buffers{i}", list(module.buffers()))
        env.keep(f"count{i}", int(module[0].count))


def _empty(work: Work) -> None:
    """Tensors of no elements and of one."""
    env, dev = work.env, work.dev
    empty = env.static(torch.zeros(0, 16, device=dev))
    scalar = env.static(torch.tensor(2.0, device=dev))

    def body() -> Any:
        return torch.cat([empty, work.x]) * scalar, empty + 1, work.x[5:5].sum(), torch.zeros(0, device=dev)

    env.warm(body, 1)
    graph = env.capture(body)
    for i in range(REPLAYS):
        work.refresh(i)
        scalar.fill_(float(i))
        env.keep(f"out{i}", graph.replay())


LIFETIMES: dict[str, Callable[[Work], Any]] = {
    "temporaries": lambda work: _run(work, 1 << 10, _copy),
    "drop-outputs": _drop_outputs,
    "collect": lambda work: _run(work, 1 << 10, _copy, lambda graph: gc.collect()),
    "large": lambda work: _run(work, 1 << 20, _in_place),
    "hold-view": lambda work: _run(work, 1 << 10, _views),
    "capture-again": _captured_again,
    "capture-smaller": lambda work: _captured_again(work, shrink=4),
    "reset": lambda work: _captured_again(work, reset_first=True),
    "own-pools": lambda work: _several(work, 3, pooled=False),
    "one-pool": lambda work: _several(work, 3, pooled=True),
    "many": lambda work: _several(work, 12, pooled=True),
    "freed-between": lambda work: _several(work, 3, False, lambda: torch.randn(1000, device=work.dev)),
    "chain": lambda work: _chained(work, pooled=False),
    "chain-one-pool": lambda work: _chained(work, pooled=True),
    "nested-buffers": _nested_buffers,
    "empty": _empty,
}


@pattern(*LIFETIMES)
@torch.no_grad()
def lifetimes(env: Env, how: str) -> None:
    work = Work(env)
    env.warm(work, 1)
    LIFETIMES[how](work)
