"""PyTorch's operator test database: forward, backward, in-place and out= programs."""

from __future__ import annotations

import importlib.util
import itertools
import sys
import types
import unittest
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from corpus.env import REPLAYS, Env, Skip, seed_all
from corpus.sources import Made

UNDEFINED = ("empty", "resize_", "new_empty")  # their results hold whatever was there
LARGEST = 1 << 22  # elements


def stand_in_for_expecttest() -> None:
    """torch's test utilities import a package of which their databases need nothing but one base class."""
    if "expecttest" not in sys.modules and importlib.util.find_spec("expecttest") is None:
        stub = types.ModuleType("expecttest")
        stub.TestCase = unittest.TestCase  # type: ignore[attr-defined]
        sys.modules["expecttest"] = stub


@cache
def database() -> dict[str, Any]:
    """Operators by name and variant."""
    stand_in_for_expecttest()
    from torch.testing._internal.common_methods_invocations import op_db

    # random operators seed the generator first, which a capture cannot hold; here the program seeds before each replay
    for name, module in list(sys.modules.items()):
        if name.startswith("torch.testing._internal") and hasattr(module, "wrapper_set_seed"):
            module.wrapper_set_seed = lambda op, *args, **kwargs: op(*args, **kwargs)
    found: dict[str, Any] = {}
    for op in op_db:
        key = op.name + (f"+{op.variant_test_name}" if op.variant_test_name else "")
        found.setdefault(key, op)
    return found


def ids() -> list[str]:
    return [f"ops/{key}/{sample}/{mode}" for key, op in database().items() for sample, mode in _forms(op)]


def _forms(op: Any) -> Iterator[tuple[int, str]]:
    has = {"inplace": op.get_inplace() is not None, "out": op.supports_out, "bwd": op.supports_autograd}
    yield from ((0, mode) for mode in ("fwd", "bwd", "inplace", "out") if has.get(mode, True))
    yield from ((1, mode) for mode in ("fwd", "bwd") if has.get(mode, True))


def dtype_for(op: Any, device: str, mode: str) -> torch.dtype:
    supported = op.supported_backward_dtypes(device) if mode == "bwd" else op.supported_dtypes(device)
    for dtype in (torch.float32, torch.int64, torch.complex64, torch.bool, torch.float16, torch.bfloat16):
        if dtype in supported:
            return dtype
    raise Skip(f"no dtype for {mode}")


def tensors_of(sample: Any) -> tuple[list[Any], Any]:
    return tree_flatten((sample.input, tuple(sample.args), dict(sample.kwargs)))


def shape_of(flat: list[Any], spec: Any) -> Any:
    return (
        str(spec),
        tuple(
            (tuple(x.shape), x.dtype, x.layout, tuple(x.stride()) if x.layout == torch.strided else ())
            if isinstance(x, torch.Tensor)
            else ("value", repr(x))
            for x in flat
        ),
    )


PICK = (0, 3)  # which of an operator's samples
_made: dict[Any, Any] = {}


def samples(op: Any, device: str, dtype: torch.dtype, which: int, grad: bool, seed: int) -> Any:
    """A sample, made once for all runs of a program."""
    key = (id(op), device, dtype, which, grad, seed)
    if _made and next(iter(_made))[:5] != key[:5]:
        _made.clear()
    if key not in _made:
        _made[key] = _sample(op, device, dtype, which, grad, seed)
    return _made[key]


def _sample(op: Any, device: str, dtype: torch.dtype, which: int, grad: bool, seed: int) -> Any:
    seed_all(seed)
    got = list(itertools.islice(op.sample_inputs(device, dtype, requires_grad=grad), PICK[1] + 1))
    if not got:
        raise Skip("no samples")
    if which == 1 and len(got) == 1:
        raise Skip("only one sample")
    return got[0] if which == 0 else got[min(PICK[which], len(got) - 1)]


def program(pid: str) -> Made:
    """A program: ``ops/NAME/SAMPLE/MODE``."""
    _, key, which, mode = pid.split("/")
    op = database()[key]
    return Made(lambda env: run_op(env, op, int(which), mode), True)


def run_op(env: Env, op: Any, which: int, mode: str) -> None:
    dtype, grad = dtype_for(op, env.device, mode), mode == "bwd"
    chosen = samples(op, env.device, dtype, which, grad, 11)
    flat, spec = tensors_of(chosen)
    leaves = [x for x in flat if isinstance(x, torch.Tensor)]
    if any(x.layout != torch.strided for x in leaves):
        raise Skip("sparse sample")
    if sum(x.numel() for x in leaves) > LARGEST:
        raise Skip("large sample")
    values = [_values(op, env.device, dtype, which, grad, 101 + i, flat, spec) for i in range(REPLAYS)]
    statics = [env.static(x) for x in leaves]
    env.name("sample", statics)
    if grad:
        for static, leaf in zip(statics, leaves, strict=True):
            static.requires_grad_(leaf.requires_grad)
        if not any(static.requires_grad for static in statics):
            raise Skip("nothing requires grad")
    given = iter(statics)
    call = tree_unflatten([next(given) if isinstance(x, torch.Tensor) else x for x in flat], spec)
    env.undefined = any(word in op.name for word in UNDEFINED)
    body = _BODIES[mode](env, op, chosen, call, statics)

    def stepped() -> Any:
        with torch.set_grad_enabled(grad):
            return body()

    @torch.no_grad()
    def refresh(new: list[torch.Tensor]) -> None:
        for static, value in zip(statics, new, strict=True):
            static.copy_(value)

    seed_all(1)
    before = [(s.shape, s.stride()) for s in statics]
    env.warm(stepped, 1)
    if before != [(s.shape, s.stride()) for s in statics]:
        raise Skip("changes a tensor's shape in place, and no bytes")
    refresh([x.detach() for x in leaves])
    seed_all(2)
    inside = {s.untyped_storage().data_ptr() for s in statics}
    graph = env.capture(lambda: copied_views(stepped(), inside))
    for i in range(REPLAYS):
        with env.prepare(graph):
            refresh(values[i])
        env.keep(f"out{i}", graph.replay(seed=1000 + i))
        env.note(f"in{i}", statics)


def _values(
    op: Any, device: str, dtype: torch.dtype, which: int, grad: bool, seed: int, flat: list[Any], spec: Any
) -> list[torch.Tensor]:
    """What a replay's inputs are set to: another sample of the same form, or the first one again."""
    other = tensors_of(samples(op, device, dtype, which, grad, seed))
    same = shape_of(*other) == shape_of(flat, spec)
    return [x.detach() for x in (other[0] if same else flat) if isinstance(x, torch.Tensor)]


def _forward(env: Env, op: Any, chosen: Any, call: Any, statics: list[torch.Tensor]) -> Callable[[], Any]:
    input_, args, kwargs = call
    return lambda: op(input_, *args, **kwargs)


def _in_place(env: Env, op: Any, chosen: Any, call: Any, statics: list[torch.Tensor]) -> Callable[[], Any]:
    input_, args, kwargs = call
    variant = op.get_inplace()
    return lambda: variant(input_, *args, **kwargs)


def _out(env: Env, op: Any, chosen: Any, call: Any, statics: list[torch.Tensor]) -> Callable[[], Any]:
    input_, args, kwargs = call
    seed_all(1)
    with torch.no_grad():
        flat, spec = tree_flatten(op(input_, *args, **kwargs))
    if not flat or not all(isinstance(x, torch.Tensor) for x in flat):
        raise Skip("no tensor outputs")
    made = [env.static(torch.zeros_like(x)) for x in flat]
    env.name("outs", made)
    outs = tree_unflatten(made, spec)
    return lambda: op(input_, *args, out=outs, **kwargs)


def _backward(env: Env, op: Any, chosen: Any, call: Any, statics: list[torch.Tensor]) -> Callable[[], Any]:
    input_, args, kwargs = call

    def differentiable() -> list[torch.Tensor]:
        out = tree_flatten(post(chosen, op(input_, *args, **kwargs)))[0]
        return [x for x in out if isinstance(x, torch.Tensor) and x.requires_grad]

    seed_all(1)
    example = differentiable()
    if not example:
        raise Skip("no differentiable output")
    cotangents = [env.static(_cotangent(x)) for x in example]
    needing = [s for s in statics if s.requires_grad]
    del example

    def body() -> Any:
        out = differentiable()
        grads = torch.autograd.grad(out, needing, cotangents, allow_unused=True)
        return [x.detach() for x in out], [g for g in grads if g is not None]

    return body


def _cotangent(x: torch.Tensor) -> torch.Tensor:
    if x.dtype.is_floating_point or x.dtype.is_complex:
        return torch.randn(x.shape, dtype=x.dtype, device=x.device)
    return torch.ones_like(x)


_BODIES = {"fwd": _forward, "bwd": _backward, "inplace": _in_place, "out": _out}


def post(sample: Any, out: Any) -> Any:
    """An output as the sample says that it is differentiated."""
    process = getattr(sample, "output_process_fn_grad", None)
    return process(out) if process is not None else out


def copied_views(out: Any, inside: set[int]) -> Any:
    """Views of inputs are cloned, so that the graph holds a node that reads them."""

    def each(x: Any) -> Any:
        if isinstance(x, torch.Tensor) and x.layout == torch.strided and not x.is_meta:
            try:
                if x.numel() and x.untyped_storage().data_ptr() in inside:
                    return x.detach().clone()
            except Exception:
                return x
        return x

    return tree_map(each, out)
