"""Who hears of the nodes of a replay, and when: operators together, but before anything looks who wrote what."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
import torch
from blocks import buffer_of, intact

from shadowgraph.graphs.events import Listener, listeners
from shadowgraph.graphs.host.graph import HostGraph, host_graph
from shadowgraph.model.graphs import Graph, Node
from shadowgraph.tracking.allocator import HostAllocator
from shadowgraph.tracking.stores import StoreLog


class Patient(Listener):
    """Hears of operators together."""

    wants_each_node = False

    def __init__(self) -> None:
        self.heard: list[tuple[str, ...]] = []

    def node_ran(self, graph: Graph, node: Node, stores: StoreLog | None) -> None:
        self.heard.append((node.launch.name,))

    def nodes_ran(self, graph: Graph, nodes: Sequence[Node]) -> None:
        self.heard.append(tuple(node.launch.name.split(".")[1] for node in nodes))


class Strict(Listener):
    """Hears of each node when it has run."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    def node_ran(self, graph: Graph, node: Node, stores: StoreLog | None) -> None:
        self.heard.append(node.launch.name)


@pytest.fixture
def patient(allocator: HostAllocator) -> Iterator[Patient]:
    listener = Patient()
    listeners.append(listener)
    yield listener
    listeners.remove(listener)


def test_operators_are_told_together_and_before_code_of_the_programs_runs(patient: Patient) -> None:
    x, before = torch.zeros(4), []

    def own() -> None:
        before.append(list(patient.heard))

    graph = HostGraph()
    with host_graph(graph):
        x.add_(1)
        x.mul_(2)
        graph.call(own)
        x.sub_(3)
    graph.replay()
    assert before == [[("add_", "mul_")]]
    assert [each[0] for each in patient.heard[1:]] == [graph.model.nodes[2].launch.name, "sub_"]


def test_those_that_ran_are_told_where_a_node_raises(patient: Patient) -> None:
    x = torch.zeros(4)

    def fail() -> None:
        raise ValueError("asked for")

    graph = HostGraph()
    with host_graph(graph):
        x.add_(1)
        graph.call(fail)
        x.mul_(2)
    with pytest.raises(ValueError, match="asked for"):
        graph.replay()
    assert patient.heard == [("add_",)]


@pytest.mark.usefixtures("policy")
def test_operators_are_told_before_a_broken_guard_makes_way(patient: Patient, allocator: HostAllocator) -> None:
    x, graph, place = torch.zeros(4), HostGraph(), []
    with host_graph(graph):
        one = torch.ones(100)
        view = allocator.arena.view(one.data_ptr() + 400, one.data_ptr() + 404)
        place.append(torch.from_numpy(view))  # an operator of the graph's own that writes where it must not
        del one
        place[0].add_(1)
        two = torch.ones(100)
        x.add_(1)
    known: list[list[tuple[str, ...]]] = []
    allocator.guards.last_check = lambda b: None if intact(allocator, b) else known.append(list(patient.heard))
    for _ in range(3):
        patient.heard.clear()
        known.clear()
        graph.replay()
        assert [names[-1] for names in known[-1]] == ["add_"], "the one that did it, and not the one after it"
        assert intact(allocator, buffer_of(two))


def test_a_listener_that_wants_each_node_hears_of_each_as_it_runs(patient: Patient) -> None:
    strict = Strict()
    listeners.append(strict)
    try:
        x = torch.zeros(4)
        graph = HostGraph()
        with host_graph(graph):
            x.add_(1)
            x.mul_(2)
        graph.replay()
    finally:
        listeners.remove(strict)
    assert strict.heard == ["aten.add_.Tensor", "aten.mul_.Tensor"]
    assert patient.heard == [("aten.add_.Tensor",), ("aten.mul_.Tensor",)]
