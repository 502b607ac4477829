"""Host functions in a host graph: when they run, what they keep, what they are called, and their errors."""

from __future__ import annotations

import functools

import pytest
import torch

from shadowgraph.common.errors import CaptureError, FreedInputError
from shadowgraph.graphs.host.graph import HostGraph, host_graph


def test_a_callable_runs_at_each_replay_and_not_at_capture() -> None:
    seen: list[float] = []
    x, graph = torch.zeros(2), HostGraph()

    def host_node(source: torch.Tensor, target: torch.Tensor, factor: float) -> None:
        seen.append(source[0].item())
        target.copy_(source * factor)

    with host_graph(graph):
        y, z = x + 1, torch.empty(2)
        graph.call(host_node, y, z, factor=10.0, reads=(y,), writes=(z,))
        out = z - 1
    assert not seen
    for value in (1.0, 2.0):
        x.fill_(value)
        graph.replay()
        assert torch.equal(out, torch.full((2,), (value + 1) * 10 - 1))
    assert seen == [2.0, 3.0]
    node = next(node for node in graph.model.nodes if node.launch.kind == "callable")
    assert node.launch.name.endswith("host_node")
    assert [(p.argument, p.access) for p in node.launch.pointers] == [("reads[0]", "read"), ("writes[0]", "write")]


def test_a_callable_keeps_no_argument_alive_and_a_freed_one_is_named() -> None:
    x, graph = torch.zeros(7), HostGraph()
    with host_graph(graph):
        graph.call(lambda t: t.add_(1), x)
    graph.replay()
    assert torch.equal(x, torch.ones(7))
    del x
    with pytest.raises(FreedInputError, match=r"float32\[7\]"):
        graph.replay()


def test_an_error_in_a_callable_ends_the_replay_and_the_next_one_is_whole() -> None:
    fail, graph = [True], HostGraph()

    def host_node() -> None:
        if fail:
            raise RuntimeError("not now")

    with torch.no_grad(), host_graph(graph):
        y = torch.ones(2)
        graph.call(host_node)
        y.add_(1)
    with pytest.raises(RuntimeError, match="not now"):
        graph.replay()
    assert torch.is_grad_enabled()
    fail.clear()
    graph.replay()
    assert torch.equal(y, torch.full((2,), 2.0))


def test_call_outside_a_capture_is_refused() -> None:
    with pytest.raises(CaptureError, match="inside a capture"):
        HostGraph().call(print)


class Doubler:
    """A callable without a name of its own."""

    def __call__(self, x: torch.Tensor) -> None:
        x.mul_(2)


def test_callables_are_called_the_same_in_every_run() -> None:
    graph, x = HostGraph(), torch.ones(2)
    with host_graph(graph):
        graph.call(functools.partial(functools.partial(torch.Tensor.add_, x), 2))
        graph.call(Doubler(), x)
        graph.call(Doubler().__call__, x)
    assert [node.launch.name for node in graph.model.nodes] == [
        torch.Tensor.add_.__qualname__,
        "Doubler",
        "Doubler.__call__",
    ]
    graph.replay()
    assert x.tolist() == [12, 12]
