"""Modules, autograd, function transforms, optimisers and custom operators: replays compute what eager code computes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from replaying import Program, Programs, State, assert_same, capture, check, refresh
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")
programs = Programs()


def module(build: Callable[[], nn.Module], *shape: int) -> Callable[[], State]:
    return lambda: {"net": build(), "x": torch.randn(*shape)}


def with_gradients(build: Callable[[], nn.Module], *shape: int) -> Callable[[], State]:
    """A module whose gradients exist before the capture, as `zero_grad(set_to_none=False)` keeps them."""

    def make() -> State:
        net = build()
        for parameter in net.parameters():
            parameter.grad = torch.zeros_like(parameter)
        return {"net": net, "x": torch.randn(*shape)}

    return make


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4))


# -- modules -----------------------------------------------------------------------------------------------------------


@programs.add(module(mlp, 5, 8))
def gelu_mlp(s: State) -> Any:
    return s["net"](s["x"])


@programs.add(module(lambda: mlp().bfloat16(), 5, 8))
def bfloat16_mlp(s: State) -> Any:
    with torch.no_grad():
        return s["net"](s["x"].bfloat16()).float().softmax(-1)


@programs.add(lambda: {"q": torch.randn(2, 2, 5, 8), "k": torch.randn(2, 2, 7, 8), "m": torch.rand(5, 7) > 0.3})
def scaled_dot_product_attention(s: State) -> Any:
    plain = F.scaled_dot_product_attention(s["q"], s["k"], s["k"])
    causal = F.scaled_dot_product_attention(s["k"], s["k"], s["k"], is_causal=True)
    return plain, causal, F.scaled_dot_product_attention(s["q"], s["k"], s["k"], attn_mask=s["m"], dropout_p=0.2)


@programs.add(module(lambda: nn.MultiheadAttention(16, 4, batch_first=True), 2, 5, 16))
def attention_in_training(s: State) -> Any:
    return s["net"](s["x"], s["x"], s["x"])


@programs.add(module(lambda: nn.MultiheadAttention(16, 4, batch_first=True).eval(), 2, 5, 16))
def attention_fast_path(s: State) -> Any:
    with torch.inference_mode():
        return s["net"](s["x"], s["x"], s["x"], need_weights=False)[0]


def encoder() -> nn.Module:
    return nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True)


@programs.add(module(encoder, 2, 5, 16))
def encoder_layer_in_training(s: State) -> Any:
    return s["net"](s["x"])


@programs.add(module(lambda: encoder().eval(), 2, 5, 16))
def encoder_layer_fast_path(s: State) -> Any:
    with torch.no_grad():
        return s["net"](s["x"])


@programs.add(module(lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True)), 2, 3, 6, 6))
def batch_norm_in_training(s: State) -> Any:
    return s["net"](s["x"])


@programs.add(module(lambda: nn.BatchNorm1d(4).eval(), 6, 4))
def batch_norm_in_evaluation(s: State) -> Any:
    return s["net"](s["x"])


@programs.add(module(lambda: nn.InstanceNorm1d(4, track_running_stats=True), 3, 4, 6))
def instance_norm_in_training(s: State) -> Any:
    return s["net"](s["x"])


@programs.add(module(lambda: nn.LSTM(8, 8, num_layers=2, bidirectional=True, dropout=0.2), 4, 2, 8))
def lstm_in_training(s: State) -> Any:
    return s["net"](s["x"])


@programs.add(module(lambda: nn.ModuleList([nn.LSTM(8, 8), nn.GRU(8, 6, num_layers=2)]).eval(), 4, 2, 8))
def lstm_and_gru_without_gradients(s: State) -> Any:
    with torch.no_grad():
        hidden, state = s["net"][0](s["x"])
        return s["net"][1](hidden), state


@programs.add(lambda: {"net": nn.Embedding(10, 4, padding_idx=0), "bag": nn.EmbeddingBag(10, 4), "i": torch.arange(6)})
def embeddings(s: State) -> Any:
    return s["net"](s["i"]), s["bag"](s["i"].view(2, 3))


@programs.add(module(lambda: nn.Sequential(nn.LayerNorm(8), nn.GroupNorm(2, 8), nn.RMSNorm(8), nn.Dropout(0.5)), 4, 8))
def norms_and_dropout(s: State) -> Any:
    return s["net"](s["x"]), F.cross_entropy(s["x"], torch.tensor([0, 1, 2, 3])), F.pad(s["x"], (1, 2)), F.silu(s["x"])


# -- autograd ----------------------------------------------------------------------------------------------------------


@programs.add(with_gradients(mlp, 5, 8))
def backward_accumulates(s: State) -> Any:
    loss = s["net"](s["x"]).square().mean()
    loss.backward()
    return loss


@programs.add(with_gradients(lambda: nn.LSTM(8, 4), 3, 2, 8))
def backward_through_lstm(s: State) -> Any:
    s["net"](s["x"])[0].sum().backward()
    return [p.grad for p in s["net"].parameters()]


@programs.add(with_gradients(encoder, 2, 5, 16))
def backward_through_dropout(s: State) -> Any:
    s["net"](s["x"]).sum().backward()


@programs.add(with_gradients(mlp, 5, 8))
def backward_through_a_checkpoint(s: State) -> Any:
    checkpoint(s["net"], s["x"], use_reentrant=False, preserve_rng_state=False).sum().backward()


@programs.add(with_gradients(mlp, 5, 8))
def second_derivatives(s: State) -> Any:
    x = s["x"].clone().requires_grad_()
    (slope,) = torch.autograd.grad(s["net"](x).sum(), x, create_graph=True)
    slope.square().sum().backward()
    return slope


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        x: torch.Tensor = ctx.saved_tensors[0]
        return 3 * x * x * gradient


@programs.add(lambda: {"x": torch.randn(4, 8)})
def autograd_function(s: State) -> Any:
    x = s["x"].clone().requires_grad_()
    y = Cube.apply(x)  # type: ignore[no-untyped-call]
    y.sum().backward()
    return y, x.grad


@programs.add(lambda: {"x": torch.randn(3, 8), "w": torch.randn(8, 8)})
def function_transforms(s: State) -> Any:
    def loss(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return (x @ w).tanh().sum()

    per_sample = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(s["w"], s["x"])
    rows = torch.func.vmap(lambda row: row.cumsum(0) * 2)(s["x"])
    jacobian = torch.func.jacrev(lambda x: x.sin())(s["x"][0])
    tangent = torch.func.jvp(lambda w: loss(w, s["x"]), (s["w"],), (torch.ones(8, 8),))
    return per_sample, rows, jacobian, tangent, torch.func.hessian(lambda x: (x**3).sum())(s["x"][0])


# -- optimisers --------------------------------------------------------------------------------------------------------


def training(build: Callable[..., torch.optim.Optimizer], **options: Any) -> Callable[[], State]:
    """A model after one eager step, so that the optimiser's state exists; captured graphs need that on CUDA too."""

    def make() -> State:
        net = mlp()
        optimizer = build(net.parameters(), **options)
        net(torch.randn(5, 8)).sum().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
        return {"net": net, "optimizer": optimizer, "x": torch.randn(5, 8)}

    return make


def train(s: State) -> Any:
    s["optimizer"].zero_grad(set_to_none=False)
    loss = s["net"](s["x"]).square().mean()
    loss.backward()
    s["optimizer"].step()
    return loss


OPTIMISERS = {
    "sgd_momentum": training(torch.optim.SGD, lr=0.1, momentum=0.9, nesterov=True),
    "sgd_foreach": training(torch.optim.SGD, lr=0.1, momentum=0.9, weight_decay=0.1, foreach=True),
    "sgd_fused": training(torch.optim.SGD, lr=0.1, momentum=0.9, fused=True),
    "adam_fused": training(torch.optim.Adam, lr=0.1, fused=True),
    "adamw_fused": training(torch.optim.AdamW, lr=0.1, amsgrad=True, fused=True),
    "adagrad_fused": training(torch.optim.Adagrad, lr=0.1, fused=True),
    "rmsprop": training(torch.optim.RMSprop, lr=0.1, momentum=0.5),
    "rmsprop_foreach": training(torch.optim.RMSprop, lr=0.1, foreach=True),
    "rprop": training(torch.optim.Rprop, lr=0.1),
    "adadelta": training(torch.optim.Adadelta, lr=0.1),
}


@pytest.mark.parametrize("make", OPTIMISERS.values(), ids=OPTIMISERS.keys())
def test_an_optimiser_step_is_bit_identical_to_eager(make: Callable[[], State]) -> None:
    check(Program("train", make, train))


@pytest.mark.parametrize("program", programs, ids=lambda program: program.name)
def test_replay_is_bit_identical_to_eager(program: Program) -> None:
    check(program)


# -- custom operators and compiled functions ---------------------------------------------------------------------------

calls: Counter[str] = Counter()


@torch.library.custom_op("shadowgraph_tests::twice_plus", mutates_args={"seen"})
def twice_plus(x: torch.Tensor, seen: torch.Tensor, by: float) -> torch.Tensor:
    calls["twice_plus"] += 1
    seen.add_(1)
    return x * 2 + by


library = torch.library.Library("shadowgraph_tests", "FRAGMENT")
library.define("minus_one(Tensor x) -> Tensor")
library.define("plus_two(Tensor x) -> Tensor")
library.define("halve_(Tensor(a!) x) -> ()")


def minus_one(x: torch.Tensor) -> torch.Tensor:
    calls["minus_one"] += 1
    return x - 1


def halve_(x: torch.Tensor) -> None:
    calls["halve_"] += 1
    x.mul_(0.5)


def plus_two(x: torch.Tensor) -> torch.Tensor:
    calls["plus_two"] += 1
    return x + 2


library.impl("plus_two", plus_two)
library.impl("minus_one", minus_one, "CPU")
library.impl("halve_", halve_, "CompositeExplicitAutograd")


def custom(s: State) -> Any:
    y = torch.ops.shadowgraph_tests.minus_one(twice_plus(s["x"], s["seen"], 0.5))
    torch.ops.shadowgraph_tests.halve_(y)
    with torch.inference_mode():  # which does not take composite operators apart
        return y, torch.ops.shadowgraph_tests.plus_two(s["x"]), torch.subtract(y, 2.0)


def test_the_operators_inside_a_custom_operator_are_captured_and_its_python_is_not_run_again() -> None:
    program = Program("custom", lambda: {"x": torch.randn(3), "seen": torch.zeros(2)}, custom)
    check(program)
    calls.clear()
    state = program.make()
    graph, _ = capture(program, state)
    graph.replay()
    graph.replay()
    assert calls == {"twice_plus": 1, "minus_one": 1, "halve_": 1, "plus_two": 1}
    assert all(node.launch.name.startswith("aten.") for node in graph.model.nodes)
    assert torch.equal(state["seen"], torch.full((2,), 2.0))


def test_a_compiled_function_is_captured_as_operators_and_still_compiles_afterwards() -> None:
    compiled_frames: list[int] = []

    def backend(module: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Callable[..., Any]:
        compiled_frames.append(len(module.graph.nodes))
        return module.forward

    def source(x: torch.Tensor) -> torch.Tensor:
        return x.sin() * 2

    function = torch.compile(source, backend=backend)
    state = {"x": torch.randn(4)}
    graph, out = capture(Program("compiled", lambda: state, lambda s: function(s["x"])), state)
    assert not compiled_frames
    refresh(state)
    graph.replay()
    assert_same(out, source(state["x"]), "a compiled function")
    function(state["x"])
    assert len(compiled_frames) == 1, "the capture left the function eager for good"


def test_a_tensor_subclass_is_unwrapped_before_its_operators_are_captured() -> None:
    from torch.testing._internal.two_tensor import TwoTensor

    def run(s: State) -> Any:
        both: Any = TwoTensor(s["x"], s["y"]) * 2 + 1
        return both.a, both.b

    check(Program("subclass", lambda: {"x": torch.randn(4), "y": torch.randn(4)}, run))
