"""Which operators count as a wait of the host for the current stream; tensors of a GPU are fake."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from shadowgraph.graphs.dispatch import host_waits
from shadowgraph.tracking.stream_order import order

STREAM, OTHER = 7, 8


class Noted(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        host_waits.note(func, args, kwargs or {})
        return func(*args, **kwargs or {})


@pytest.fixture(autouse=True)
def observed() -> Iterator[None]:
    assert order.current is None, "invalid: this process has real streams"
    order.attach(lambda: STREAM)
    yield
    order.detach()


def noted() -> Callable[[], bool]:
    """Launch on the stream; the result says whether the host knows the launch to be over."""
    number = order.launched(STREAM)
    return lambda: order.known(OTHER, STREAM) >= number


aten = torch.ops.aten
GPU, HOST, INDEX, MASK, NUMBER, HOST_INDEX = "gpu", "host", "index", "mask", "number", "host index"


@pytest.mark.parametrize(
    ("operator", "args", "waits"),
    [
        (aten.copy_.default, (GPU, GPU), False),
        (aten.copy_.default, (GPU, HOST), True),
        (aten.copy_.default, (HOST, GPU), True),
        (aten.copy_.default, (GPU, HOST, True), False),
        (aten.copy_.default, (HOST, GPU, True), False),
        (aten.index.Tensor, (GPU, [INDEX]), False),
        (aten.index.Tensor, (GPU, [None, INDEX]), False),
        (aten.index.Tensor, (GPU, [MASK]), True),
        (aten.index.Tensor, (GPU, [HOST_INDEX]), True),
        (aten.index_put_.default, (GPU, [INDEX], GPU), False),
        (aten.index_put_.default, (GPU, [MASK], GPU), True),
        (aten.masked_fill_.Scalar, (GPU, MASK, 1.0), False),
        (aten.masked_fill_.Tensor, (GPU, MASK, NUMBER), True),
        (aten.index_copy_.default, (GPU, 0, INDEX, GPU), False),
        (aten._local_scalar_dense.default, (NUMBER,), True),
        (aten.nonzero.default, (MASK,), True),
        (aten.equal.default, (GPU, GPU), True),
        (aten.multinomial.default, (GPU, 2), True),
        (aten.linalg_inv_ex.default, (GPU,), True),
        (aten.view.default, (GPU, [16]), False),
        (aten.empty.memory_format, ([4],), False),
    ],
)
def test_operators_on_a_gpu(operator: OpOverload, args: tuple[Any, ...], waits: bool) -> None:
    with FakeTensorMode():
        tensors = {
            GPU: torch.empty(4, 4, device="cuda"),
            HOST: torch.empty(4, 4),
            INDEX: torch.empty(4, dtype=torch.int64, device="cuda"),
            MASK: torch.empty(4, dtype=torch.bool, device="cuda"),
            NUMBER: torch.empty((), device="cuda"),
            HOST_INDEX: torch.empty(4, dtype=torch.int64),
        }
    is_over = noted()
    host_waits.note(operator, tuple(_filled(each, tensors) for each in args), {})
    assert is_over() is waits


def _filled(value: Any, tensors: dict[str, torch.Tensor]) -> Any:
    if isinstance(value, list):
        return [_filled(each, tensors) for each in value]
    return tensors[value] if isinstance(value, str) else value


@pytest.mark.parametrize(("device", "waits"), [("cpu", True), ("cuda", False), (None, False)])
def test_a_copy_that_makes_a_tensor(device: str | None, waits: bool) -> None:
    with FakeTensorMode():
        tensor = torch.empty(4, device="cuda")
    to = {"device": torch.device(device)} if device is not None else {"dtype": torch.float16}
    is_over = noted()
    host_waits.note(aten._to_copy.default, (tensor,), {**to, "non_blocking": True})
    assert not is_over()
    host_waits.note(aten._to_copy.default, (tensor,), to)
    assert is_over() is waits


@pytest.mark.parametrize(
    "call",
    [
        lambda x: x.add_(1).mul_(x).zero_().fill_(3.0),
        lambda x: torch.cumsum(x, 0, out=torch.empty_like(x)),
        lambda x: torch.cat([x, x @ x]).softmax(0).argmax(),
        lambda x: torch.where(x > 0, x, 0.0).masked_fill_(x > 0, 1.0),
        lambda x: torch.nn.functional.layer_norm(torch.nn.functional.gelu(x), (4,)),
        lambda x: x.view(16)[2:].reshape(7, 2).t().contiguous().half(),
        lambda x: torch.arange(8).sort()[0].roll(1).flip(0).clamp(max=3),
        lambda x: torch.nn.functional.linear(x, x, x[0]).sum(-1).uniform_(),
        lambda x: torch.stack([x, x]).max(0)[0].scatter_(0, torch.zeros(1, 4, dtype=torch.int64), 1.0),
    ],
)
@pytest.mark.parametrize("inference", [False, True])
def test_common_operators_do_not_wait(call: Callable[[torch.Tensor], Any], inference: bool) -> None:
    with torch.inference_mode(inference):
        x = torch.ones(4, 4)
        is_over = noted()
        with Noted():
            call(x)
    assert not is_over()


def test_an_operator_of_a_library_may() -> None:
    with torch.library._scoped_library("shadowgraph_waits", "DEF") as library:
        library.define("op(Tensor x) -> Tensor")
        library.impl("op", lambda x: x.clone(), "CompositeExplicitAutograd")
        is_over = noted()
        with Noted():
            torch.ops.shadowgraph_waits.op(torch.zeros(2))
        assert is_over()
