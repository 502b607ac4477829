"""What a graph cannot hold ends the capture with one line that names the operation and the program's line."""

from __future__ import annotations

import contextlib
import inspect
import io
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch._dynamo
from torch.utils.checkpoint import checkpoint

from shadowgraph.common.errors import CaptureError
from shadowgraph.graphs.host.graph import HostGraph, host_graph

x = torch.arange(4.0)
other = torch.ones(4)
mask = torch.tensor([True, False, True, False])
start = torch.get_rng_state()
counts = torch.tensor([1, 2, 0, 1])

REFUSED: list[tuple[str, Callable[[], Any]]] = [
    ("aten.nonzero.default", lambda: x.nonzero()),
    ("aten.nonzero.default", lambda: torch.where(mask)),
    ("Tensor.item()", lambda: x.sum().item()),
    ("Tensor.item()", lambda: float(x[0])),
    ("Tensor.item()", lambda: int(x[1])),
    ("Tensor.item()", lambda: bool(x.any())),
    ("Tensor.item()", lambda: 1.0 in x),
    ("Tensor.item()", lambda: x[: counts[0]]),
    ("Tensor.item()", lambda: f"{x[0]:.3f}"),
    ("Tensor.tolist()", lambda: x.tolist()),
    ("Tensor.numpy()", lambda: x.numpy()),
    ("numpy.asarray of a tensor", lambda: np.asarray(x)),
    ("Tensor.__dlpack__()", lambda: np.from_dlpack(x)),
    ("aten.index.Tensor", lambda: x[mask]),
    ("aten.index_put_.default", lambda: x.__setitem__(mask, other[:2])),
    ("aten.masked_select.default", lambda: x.masked_select(mask)),
    ("aten._unique2.default", lambda: x.unique()),
    ("aten.unique_consecutive.default", lambda: x.unique_consecutive()),
    ("aten.repeat_interleave.Tensor", lambda: x.repeat_interleave(counts)),
    ("aten.bincount.default", lambda: torch.bincount(counts)),
    ("torch.equal()", lambda: torch.equal(x, other)),
    ("aten.allclose.default", lambda: torch.allclose(x, other)),
    ("print of a tensor", lambda: print(x)),
    ("print of a tensor", lambda: print(x[0])),
    ("print of a tensor", lambda: f"{x}"),
    ("pickling of a tensor", lambda: pickle.dumps(x)),
    ("pickling of a tensor", lambda: torch.save(x, io.BytesIO())),
    ("aten._to_sparse.default", lambda: x.to_sparse()),
    ("sparse", lambda: torch.sparse_coo_tensor(torch.tensor([[0, 1]]), other[:2], (4,))),
    ("aten.to_mkldnn.default", lambda: x.to_mkldnn()),
    ("nested", lambda: torch.nested.as_nested_tensor([x, other[:2]])),
    ("aten.quantize_per_tensor.default", lambda: torch.quantize_per_tensor(x, 0.1, 0, torch.qint8)),
    ("higher-order operator cond", lambda: torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,))),
    ("aten.rand.default", lambda: (torch.manual_seed(1), torch.rand(3))),
    ("aten.rand.default", lambda: (torch.rand(3), torch.default_generator.set_state(start), torch.rand(3))),
]


def line_of(function: Callable[[], Any]) -> str:
    return f"{__file__}:{inspect.getsourcelines(function)[1]}"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("name", "refused"), REFUSED, ids=[f"{i}-{name}" for i, (name, _) in enumerate(REFUSED)])
def test_one_line_names_the_operation_and_where_it_is(name: str, refused: Callable[[], Any]) -> None:
    graph = HostGraph()
    with pytest.raises(CaptureError) as caught, host_graph(graph):
        x.add_(1)
        refused()
    message = str(caught.value)
    assert message.startswith("cannot capture ")
    assert name in message
    assert line_of(refused) in message
    assert "\n" not in message
    assert torch.equal(x, torch.arange(4.0)), "a refused capture puts its inputs back too"
    with host_graph(graph):
        y = x * 2
    graph.replay()
    assert torch.equal(y, x * 2)


def test_random_numbers_of_a_recomputed_checkpoint_are_refused() -> None:
    dropout, inputs = torch.nn.Dropout(0.5), torch.ones(8, requires_grad=True)
    with (
        pytest.raises(CaptureError, match="the generator was seeded or set inside the capture"),
        host_graph(HostGraph()),
    ):
        checkpoint(dropout, inputs, use_reentrant=False).sum().backward()


def test_a_swallowed_refusal_makes_the_end_of_the_capture_raise() -> None:
    graph = HostGraph()
    graph.capture_begin()
    try:
        x.sum().item()
    except CaptureError as error:
        first = error
    with contextlib.suppress(CaptureError):
        x.tolist()
    torch.ones(2)
    with pytest.raises(CaptureError) as caught:
        graph.capture_end()
    assert caught.value is first, "the first refusal is the one to mend"
    with pytest.raises(CaptureError, match="holds no capture to replay"):
        graph.replay()


def test_values_made_from_python_data_in_the_capture_may_be_read() -> None:
    graph = HostGraph()
    with host_graph(graph):
        sizes = torch.tensor([2, 3])
        assert sizes.tolist() == [2, 3]
        assert int(sizes[1]) == 3
        assert repr(sizes) == "tensor([2, 3])"
        y = x[: sizes[0]] + 1
    graph.replay()
    assert torch.equal(y, torch.tensor([1.0, 2.0]))


def test_a_constant_that_the_graph_wrote_may_not_be_read() -> None:
    with pytest.raises(CaptureError, match="item"), host_graph(HostGraph()):
        size = torch.tensor([2.0])
        size.add_(x[0])
        size.item()


def test_moves_to_the_host_are_allowed() -> None:
    graph = HostGraph()
    with host_graph(graph):
        y = (x * 2).cpu().to("cpu", torch.float64).to(device="cpu")
    graph.replay()
    assert torch.equal(y, x.double() * 2)


def test_a_shape_that_is_given_is_no_shape_that_depends_on_data() -> None:
    graph = HostGraph()
    with host_graph(graph):
        y = x.repeat_interleave(counts, output_size=4)
    graph.replay()
    assert torch.equal(y, x.repeat_interleave(counts))


def test_an_assertion_is_checked_at_replay_and_not_at_capture() -> None:
    flag = torch.zeros(1)
    graph = HostGraph()
    with host_graph(graph):
        torch.ops.aten._assert_async.msg(flag, "the flag must be set")
        inverse = torch.linalg.inv(flag.view(1, 1))
    with pytest.raises(RuntimeError, match="the flag must be set"):
        graph.replay()
    flag.fill_(2)
    graph.replay()
    assert inverse.item() == 0.5


def test_a_replay_inside_a_capture_is_refused() -> None:
    inner = HostGraph()
    with host_graph(inner):
        x * 2
    with pytest.raises(CaptureError, match=r"HostGraph\.replay"), host_graph(HostGraph()):
        inner.replay()
    inner.replay()
