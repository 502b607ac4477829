"""Random chains of operators over a few static buffers: views, in-place, out-of-place, reductions, copies."""

from __future__ import annotations

import random
from typing import Any

import torch

from corpus.env import REPLAYS, Env, seed_all
from corpus.sources import Made

COUNT = 200


def ids() -> list[str]:
    return [f"fuzz/{n}/{length}" for n in range(COUNT) for length in ((8,) if n % 2 else (25,))]


def program(pid: str) -> Made:
    """A program: ``fuzz/SEED/LENGTH``."""
    _, seed, length = pid.split("/")
    return Made(lambda env: run(env, int(seed), int(length)), True)


def run(env: Env, n: int, length: int) -> None:
    rng = random.Random(n)
    rows, cols = rng.choice([(4, 8), (3, 5), (7, 16), (1, 33), (16, 4)])
    seed_all(n)
    dev = env.device
    a = env.static(torch.randn(rows, cols, device=dev))
    b = env.static(torch.randn(rows, cols, device=dev))
    w = env.static(torch.randn(cols, cols, device=dev) / cols**0.5)
    index = env.static(torch.randint(0, rows, (rows,), device=dev))
    pages = env.static(torch.randperm(rows, device=dev).int())
    flags = env.static(torch.rand(rows, cols, device=dev) > 0.5)
    out = env.static(torch.zeros(rows, cols, device=dev))
    table = env.static(torch.zeros(rows + 3, cols, device=dev))
    statics = {"index": index, "pages": pages, "flags": flags, "out": out, "table": table}
    env.name("fuzz", {"a": a, "b": b, "w": w, **statics})
    plan = [(rng.choice(sorted(OPS)), rng.random(), rng.randrange(1 << 30)) for _ in range(length)]

    def body() -> Any:
        live = [a, b]
        for name, p, r in plan:
            x, y = live[r % len(live)], live[(r // 7) % len(live)]
            made = OPS[name]({**statics, "x": x, "y": y, "w": w, "p": p, "r": r, "rows": rows, "cols": cols})
            if made is not None:
                live.append(made)
                if len(live) > 6:
                    live.pop(2)  # frees memory within the capture
        return [t.clone() for t in live[2:]]

    def values(seed: int) -> None:
        seed_all(seed)
        with torch.no_grad():
            a.copy_(torch.randn(rows, cols, device=dev))
            b.copy_(torch.randn(rows, cols, device=dev))
            index.copy_(torch.randint(0, rows, (rows,), device=dev))
            pages.copy_(torch.randperm(rows, device=dev))
            flags.copy_(torch.rand(rows, cols, device=dev) > 0.5)
            table.zero_()
            out.zero_()

    with torch.no_grad():
        env.warm(body, 1)
        values(5)
        graph = env.capture(body)
        for i in range(REPLAYS):
            with env.prepare(graph):
                values(50 + i)
            env.keep(f"made{i}", graph.replay(seed=1000 + i))
            env.note(f"state{i}", [a, b, out, table])


def squash(x: Any) -> Any:
    return torch.nan_to_num(x).clamp(-4, 4)


def _slice(g: Any) -> None:
    n = 1 + g["r"] % g["rows"]
    g["out"][:n].copy_(g["x"][:n])


def _columns(g: Any) -> None:
    n = 1 + g["r"] % g["cols"]
    g["out"][:, :n].add_(squash(g["y"])[:, :n])


def _rows_to_table(g: Any) -> None:
    g["table"].index_copy_(0, g["pages"].long(), squash(g["x"]))


def _setitem(g: Any) -> None:
    g["table"][g["r"] % g["rows"]] = squash(g["y"])[0]


def _inplace(name: str, *args: Any) -> Any:
    def f(g: Any) -> None:
        getattr(g["out"], name)(*args)

    return f


OPS: dict[str, Any] = {
    "add": lambda g: g["x"] + g["y"],
    "mul": lambda g: squash(g["x"] * g["y"]),
    "matmul": lambda g: squash(g["x"] @ g["w"]),
    "relu": lambda g: g["x"].relu(),
    "tanh": lambda g: g["x"].tanh(),
    "softmax": lambda g: g["x"].softmax(-1),
    "norm": lambda g: torch.nn.functional.layer_norm(g["x"], (g["cols"],)),
    "sort": lambda g: g["x"].sort(-1).values,
    "topk": lambda g: (
        g["x"].topk(min(3, g["cols"]), -1).values.sum(-1, keepdim=True).expand(g["rows"], g["cols"]) * 1.0
    ),
    "cumsum": lambda g: squash(g["x"].cumsum(-1)),
    "gather": lambda g: g["x"][g["index"]],
    "select": lambda g: g["x"].index_select(0, g["pages"].long()),
    "where": lambda g: torch.where(g["flags"], g["x"], g["y"]),
    "flip": lambda g: g["x"].flip(0),
    "transpose": lambda g: g["x"].t().contiguous().t(),
    "roll": lambda g: g["x"].roll(1, 1),
    "cat": lambda g: torch.cat([g["x"], g["y"]])[::2][: g["rows"]].contiguous() if g["rows"] > 1 else None,
    "stack": lambda g: torch.stack([g["x"], g["y"]]).mean(0),
    "outer": lambda g: squash(torch.outer(g["x"][:, 0], g["y"][0])),
    "rand": lambda g: g["x"] + torch.rand_like(g["x"]),
    "dropout": lambda g: torch.nn.functional.dropout(g["x"], 0.3, True),
    "half": lambda g: g["x"].half().float(),
    "bf16": lambda g: g["x"].bfloat16().float(),
    "view": lambda g: g["out"].view(-1).view(g["rows"], g["cols"]),
    "zeros": lambda g: torch.zeros_like(g["x"]),
    "arange": lambda g: torch.arange(g["rows"] * g["cols"], device=g["x"].device).view(g["rows"], g["cols"]).float(),
    "onehot": lambda g: squash(
        torch.zeros(g["rows"], g["rows"], device=g["x"].device).scatter_(1, g["index"].view(-1, 1), 1.0) @ g["x"]
    ),
    "maxpool": lambda g: torch.nn.functional.avg_pool1d(g["x"][None], 3, 1, 1)[0],
    "unfold": lambda g: (
        g["x"].unfold(1, 2, 1).sum(-1).sum(-1, keepdim=True).expand(g["rows"], g["cols"]).clone()
        if g["cols"] > 1
        else None
    ),
    "i_copy_rows": _slice,
    "i_columns": _columns,
    "i_table": _rows_to_table,
    "i_setitem": _setitem,
    "i_zero": _inplace("zero_"),
    "i_add": _inplace("add_", 1.0),
    "i_mul": _inplace("mul_", 0.5),
    "i_clamp": _inplace("clamp_", -2.0, 2.0),
    "i_masked": lambda g: (
        g["out"].masked_fill_(g["flags"], 0.25) and None
        if False
        else (g["out"].masked_fill_(g["flags"], 0.25), None)[1]
    ),
    "i_index_add": lambda g: (g["table"].index_add_(0, g["pages"].long(), squash(g["x"])), None)[1],
    "i_scatter": lambda g: (g["out"].scatter_(0, g["pages"].long().view(-1, 1), squash(g["x"])[:, :1]), None)[1],
    "i_put": lambda g: (g["table"].index_put_((g["pages"].long(),), squash(g["y"])), None)[1],
    "i_foreach": lambda g: (torch._foreach_add_([g["out"], g["table"]], 0.5), None)[1],
    "i_copy_": lambda g: (g["out"].copy_(g["x"]), None)[1],
    "i_diag": lambda g: (g["out"].diagonal().fill_(1.0), None)[1],
    "i_strided": lambda g: (g["out"].as_strided((g["rows"],), (g["cols"],)).add_(1.0), None)[1],
    "i_out": lambda g: (torch.add(squash(g["x"]), squash(g["y"]), out=g["out"]), None)[1],
}
