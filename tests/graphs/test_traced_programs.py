"""Programs that trace, transform, compile or fake do watched what they do plainly."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.func import functional_call, functionalize, grad, hessian, jacrev, jvp, vmap
from torch.fx.experimental.proxy_tensor import make_fx
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils._python_dispatch import TorchDispatchMode

import shadowgraph as sg
from shadowgraph.graphs.dispatch.calling import call
from shadowgraph.graphs.dispatch.stepping_aside import MADE_FX, TRACED

WATCHING = [{}, {"guard_eager": "auto", "layout": "faithful"}, {"guard_eager": "all", "layout": "faithful"}]


def convolution() -> torch.nn.Module:
    torch.manual_seed(0)
    parts = torch.nn.Conv2d(1, 2, 3), torch.nn.BatchNorm2d(2), torch.nn.ReLU(), torch.nn.MaxPool2d(2)
    return torch.nn.Sequential(*parts).eval()


def encoder() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.0).eval()


PICTURE, WORDS = torch.linspace(0, 1, 64).view(1, 1, 8, 8), torch.linspace(0, 1, 24).view(1, 3, 8)


def jit_trace(make: Callable[[], torch.nn.Module], x: torch.Tensor) -> Any:
    traced = torch.jit.trace(make(), x, check_trace=make is convolution)
    return traced.inlined_graph, [traced(x) for _ in range(3)]


def jit_trace_training() -> Any:
    x = torch.cat([PICTURE, PICTURE * 2])
    traced = torch.jit.trace(convolution().train(), x, check_trace=False)
    return traced.inlined_graph, [traced(x) for _ in range(3)]


def jit_trace_function() -> Any:
    traced = torch.jit.trace(lambda x: x.prod() + torch.linalg.svdvals(x).sum() + torch.zeros(3), torch.eye(3))
    return traced.graph, traced(torch.eye(3) * 2)


def jit_trace_graph() -> Any:
    return torch.jit._get_trace_graph(convolution(), (PICTURE,))[0]


def jit_script() -> Any:
    @torch.jit.script
    def program(x: torch.Tensor) -> torch.Tensor:
        made = torch.zeros(3)
        for at in range(3):
            made = made + x * float(at)
        return made

    return program.graph, [program(torch.ones(3)) for _ in range(3)]


def export() -> Any:
    program = torch.export.export(convolution(), (PICTURE,))
    return program.graph, program.module()(PICTURE)


def symbolic_trace() -> Any:
    traced = torch.fx.symbolic_trace(convolution())
    return traced.graph, traced(PICTURE)


def make_fx_of(mode: str) -> Any:
    def program(x: torch.Tensor) -> torch.Tensor:
        return torch.zeros(3) + x.cos() * torch.tensor([1.0, 2.0, 3.0]) + x.prod()

    traced = make_fx(program, tracing_mode=mode)(torch.ones(3))
    return traced.graph, traced(torch.ones(3))


def vmapped() -> Any:
    torch.manual_seed(3)
    fixed = vmap(lambda x: torch.zeros(3) + x.sin() * torch.arange(3.0) + x.prod())(torch.ones(4, 3))
    random = vmap(lambda x: x + torch.rand(3), randomness="different")(torch.ones(4, 3))
    return fixed, random, vmap(torch.linalg.svdvals)(torch.ones(2, 3, 3))


def differentiated() -> Any:
    x = torch.arange(1.0, 4.0)
    return (
        grad(lambda x: (x * torch.full((3,), 2.0)).sin().prod())(x),
        jvp(lambda x: (x * torch.ones(3)).prod(), (x,), (torch.ones(3),)),
        jacrev(lambda x: x.cumprod(0) + torch.zeros(3))(x),
        hessian(lambda x: (x**3).sum() + x.prod())(x),
    )


def functionalized() -> Any:
    def program(x: torch.Tensor) -> torch.Tensor:
        made = torch.zeros(3)
        made.add_(x)
        made[0] = 2
        return made

    return functionalize(program)(torch.ones(3)), make_fx(functionalize(program))(torch.ones(3)).graph


def called_with_other_parameters() -> Any:
    module = convolution()
    return functional_call(module, {name: value * 2 for name, value in module.state_dict().items()}, PICTURE)


def faked() -> Any:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode() as mode:
        x = torch.empty(3, 4)
        y = convolution()(torch.randn(1, 1, 8, 8))
        z = torch.linalg.svdvals(torch.ones(3, 3)) * x.prod()
    return repr(x), y.shape, type(z).__name__, mode.from_tensor(torch.ones(2)).shape


def compiled(backend: str) -> Any:
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    module = convolution()
    program = torch.compile(lambda x: module(x) + x.prod(), backend=backend, fullgraph=True)
    return program(PICTURE), program(PICTURE + 1), dict(torch._dynamo.utils.counters["stats"])


def compiled_training() -> Any:
    torch._dynamo.reset()
    module = convolution().train()
    torch.compile(module, backend="aot_eager", fullgraph=True)(torch.cat([PICTURE, PICTURE])).sum().backward()
    return [parameter.grad for parameter in module.parameters()]


def wrapping_subclass() -> Any:
    made = (TwoTensor(torch.ones(3), torch.zeros(3)) + 1).sin() * torch.ones(3)
    return type(made).__name__, made.a, made.b, made.prod().a


def dispatch_mode_of_the_programs() -> Any:
    heard: list[str] = []

    class Listening(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            heard.append(str(func))
            return func(*args, **(kwargs or {}))

    x = torch.ones(3, requires_grad=True)
    with Listening():
        (x * 2).prod().backward()
        torch.linalg.svdvals(torch.eye(3))
        x.tolist(), torch.zeros(3).add_(1).to("cpu")
    return heard


PROGRAMS: dict[str, Callable[[], Any]] = {
    "jit.trace": lambda: jit_trace(convolution, PICTURE),
    "jit.trace of a transformer": lambda: jit_trace(encoder, WORDS),
    "jit.trace of training": jit_trace_training,
    "jit.trace of a function": jit_trace_function,
    "jit._get_trace_graph": jit_trace_graph,
    "jit.script": jit_script,
    "export": export,
    "symbolic_trace": symbolic_trace,
    "make_fx real": lambda: make_fx_of("real"),
    "make_fx fake": lambda: make_fx_of("fake"),
    "make_fx symbolic": lambda: make_fx_of("symbolic"),
    "vmap": vmapped,
    "grad, jvp, jacrev, hessian": differentiated,
    "functionalize": functionalized,
    "functional_call": called_with_other_parameters,
    "FakeTensorMode": faked,
    "compile eager": lambda: compiled("eager"),
    "compile aot_eager": lambda: compiled("aot_eager"),
    "compile and train": compiled_training,
    "a wrapping subclass": wrapping_subclass,
    "a dispatch mode": dispatch_mode_of_the_programs,
}


def told(value: Any) -> Any:
    """A result as bytes and words, without names that are made anew each time."""
    if isinstance(value, torch.Tensor):
        return str(value.dtype), tuple(value.shape), value.detach().contiguous().numpy().tobytes()
    if isinstance(value, list | tuple):
        return [told(each) for each in value]
    return re.sub(r"___torch_mangle_\d+\.|#.*|0x[0-9a-f]+", "", str(value))


@pytest.fixture
def dynamo() -> Iterator[None]:
    yield
    torch._dynamo.reset()


@pytest.mark.parametrize("options", WATCHING, ids=["guard", "wrap", "all"])
@pytest.mark.parametrize("name", list(PROGRAMS))
def test_a_program_watched(name: str, options: dict[str, Any], dynamo: None) -> None:
    program = PROGRAMS[name]
    plain = told(program())
    with sg.debug(backend="host", **options) as debugger:
        watched = told(program())
    facts = debugger.facts()
    assert watched == plain
    assert (facts.faults, facts.findings, facts.notes) == ({}, (), ())
    if name.startswith("jit.trace"):
        assert facts.stepped_aside[TRACED] >= 1
    if name.startswith("make_fx") and options.get("guard_eager") == "all":
        assert facts.stepped_aside[MADE_FX] >= 1


def test_a_sharded_tensor(tmp_path: Any) -> None:
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    dist.init_process_group("gloo", rank=0, world_size=1, init_method=f"file://{tmp_path}/store")
    try:
        mesh = init_device_mesh("cpu", (1,))

        def program() -> Any:
            rows = distribute_tensor(torch.arange(12.0).view(4, 3), mesh, [Shard(0)])
            made = (rows + 1) @ distribute_tensor(torch.ones(3, 2), mesh, [Replicate()])
            return made.placements, made.to_local(), made.full_tensor()

        plain = told(program())
        for options in WATCHING:
            with sg.debug(backend="host", **options) as debugger:
                assert told(program()) == plain
            assert debugger.facts().faults == {}
    finally:
        dist.destroy_process_group()


def test_tracing_is_followed_again_when_it_raises() -> None:
    def refuse(x: torch.Tensor) -> torch.Tensor:
        raise ValueError("refused")

    before = torch._C._create_function_from_trace
    with sg.debug(backend="host"):
        with pytest.raises(ValueError, match="refused"):
            torch.jit.trace(refuse, torch.ones(1))
        assert torch._C._len_torch_dispatch_stack() == 1
        assert torch._C._create_function_from_trace is not before
    assert torch._C._create_function_from_trace is before


def test_numbers_that_were_tensors() -> None:
    """TorchScript compares constants by `aten::equal`, which a mode is handed with numbers and which takes none."""
    operator = torch.ops.aten.equal.default
    assert call(operator, (1, 1), {}) is True
    assert call(operator, (torch.tensor(1), 2), None) is False
    with pytest.raises(RuntimeError, match="Expected a value of type"):
        call(operator, ("one", torch.tensor(1)), {})
