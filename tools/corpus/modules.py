"""torch.nn modules out of PyTorch's module database: evaluation, training, forward with backward."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from corpus.env import REPLAYS, Env, Skip, seed_all
from corpus.ops import copied_views, shape_of, stand_in_for_expecttest
from corpus.sources import Made


@cache
def modules() -> dict[str, Any]:
    stand_in_for_expecttest()
    from torch.testing._internal.common_modules import module_db

    return {info.name.replace("/", "."): info for info in module_db}


def ids() -> list[str]:
    modes = ("eval", "train", "bwd")
    return [f"modules/{name}/{which}/{mode}" for name in modules() for which in (0, 1) for mode in modes]


def program(pid: str) -> Made:
    """A program: ``modules/NAME/INPUT/MODE``."""
    _, name, which, mode = pid.split("/")
    return Made(lambda env: run_module(env, modules()[name], int(which), mode), True)


def run_module(env: Env, info: Any, which: int, mode: str) -> None:
    dtype = torch.float32
    if dtype not in info.dtypes:
        raise Skip("no float32")
    training, grad = mode != "eval", mode == "bwd"

    def inputs(seed: int) -> Any:
        seed_all(seed)
        got = info.module_inputs_func(info, device=env.device, dtype=dtype, requires_grad=grad, training=training)
        got = [each for each in got if each.forward_input is not None]
        if not got or (which == 1 and len(got) < 2):
            raise Skip("no (second) input")
        return got[0] if which == 0 else got[min(3, len(got) - 1)]

    chosen = inputs(11)
    flat, spec = tree_flatten((tuple(chosen.forward_input.args), dict(chosen.forward_input.kwargs)))
    leaves = [x for x in flat if isinstance(x, torch.Tensor)]
    values = []
    for i in range(REPLAYS):
        other = tree_flatten((tuple(inputs(101 + i).forward_input.args), dict(inputs(101 + i).forward_input.kwargs)))
        same = shape_of(*other) == shape_of(flat, spec)
        values.append([x.detach() for x in (other[0] if same else flat) if isinstance(x, torch.Tensor)])
    seed_all(3)
    with env.guarded():
        module = info.module_cls(*chosen.constructor_input.args, **chosen.constructor_input.kwargs)
        module = module.to(env.device).to(dtype)
    module.train(training)
    env.name("module", module)
    wants = [x.requires_grad for x in leaves]
    statics = [env.static(x) for x in leaves]
    for s, want in zip(statics, wants, strict=False):
        s.requires_grad_(want and grad)
    it = iter(statics)
    args, kwargs = tree_unflatten([next(it) if isinstance(x, torch.Tensor) else x for x in flat], spec)
    needing = [p for p in module.parameters() if p.requires_grad] + [s for s in statics if s.requires_grad]

    def body() -> Any:
        with torch.set_grad_enabled(grad):
            out = module(*args, **kwargs)
            if not grad:
                return out
            outs = [x for x in tree_flatten(out)[0] if isinstance(x, torch.Tensor) and x.requires_grad]
            if not outs:
                raise Skip("no differentiable output")
            loss = sum((x.float() if not x.is_complex() else x.abs()).square().sum() for x in outs)
            grads = torch.autograd.grad(loss, needing, allow_unused=True) if needing else ()
            return tree_map(lambda x: x.detach() if isinstance(x, torch.Tensor) else x, out), [
                g for g in grads if g is not None
            ]

    buffers = list(module.buffers())
    seed_all(1)
    before = [b.detach().clone() for b in buffers]
    env.warm(body, 1)
    with torch.no_grad():
        for b, v in zip(buffers, before, strict=False):
            b.copy_(v)
        for s, v in zip(statics, leaves, strict=False):
            s.copy_(v.detach())
    seed_all(2)
    inside = {s.untyped_storage().data_ptr() for s in statics}
    graph = env.capture(lambda: copied_views(body(), inside))
    for i in range(REPLAYS):
        with env.prepare(graph), torch.no_grad():
            for s, v in zip(statics, values[i], strict=False):
                s.copy_(v)
        out = graph.replay(seed=1000 + i)
        env.keep(f"out{i}", out)
        env.note(f"buffers{i}", buffers)
