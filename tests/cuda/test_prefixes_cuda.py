"""Graphs that take no look behind every node: the culprit by running their first nodes only, the program as without."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from helpers_cuda import guarded, only, overflow, warm_kernels

import shadowgraph as sg
from shadowgraph.debugger import model_of
from shadowgraph.graphs.cuda.driver import driver, raw_graph
from shadowgraph.model.device_nodes import NodeKind
from shadowgraph.model.findings import Status

pytestmark = [
    pytest.mark.gpu,
    # A process that drives several devices is not searched: a kernel of another one might wait for this one.
    pytest.mark.skipif(torch.cuda.device_count() > 1, reason="needs a process that sees one GPU"),
]

COUNT = 32


@pytest.fixture(autouse=True)
def warm() -> None:
    warm_kernels()


@pytest.fixture(params=["isolate", "faithful"])
def watching(request: Any) -> Iterator[Any]:
    with sg.debug(backend="cuda", layout=request.param, infer=False) as debugger:
        yield debugger
        assert debugger.facts().faults == {}


def chain(buffers: list[torch.Tensor], guilty: int) -> Callable[[], None]:
    """Two nodes for each buffer, and one of them writes past the end of one."""

    def body() -> None:
        for place, buffer in enumerate(buffers):
            buffer.add_(1)
            if place == guilty:
                overflow(buffer, 3)
        for buffer in buffers:
            buffer.mul_(2)

    return body


def captured_as(kind: str, body: Callable[[], None]) -> tuple[torch.cuda.CUDAGraph, Any]:
    """A graph that cannot be probed, and what must live as long as it does."""
    if kind == "kept by the program":
        graph = torch.cuda.CUDAGraph(keep_graph=True)
        with torch.cuda.graph(graph):
            body()
        graph.instantiate()
        return graph, None
    graph = torch.cuda.CUDAGraph()
    kept: Any = None
    with torch.cuda.graph(graph):
        if kind == "with events":
            kept = torch.cuda.Event(external=True)
            kept.record()
        if kind == "with an allocation":
            allocate()
        body()
    if kind == "held by the program":
        kept = graph.raw_cuda_graph_exec()
    return graph, kept


def allocate() -> None:
    """An allocation, a set of it and its free, as nodes of the graph that is being captured."""
    from cuda.bindings import runtime

    stream = torch.cuda.current_stream().cuda_stream
    error, address = runtime.cudaMallocAsync(1 << 16, stream)
    assert int(error) == 0
    (error,) = runtime.cudaMemsetAsync(address, 1, 1 << 16, stream)
    assert int(error) == 0
    (error,) = runtime.cudaFreeAsync(address, stream)
    assert int(error) == 0


def expected(steps: int) -> int:
    value = 0
    for _ in range(steps):
        value = (value + 1) * 2
    return value


KINDS = {
    "kept by the program": ("removed", "the program keeps the graph by itself"),
    "held by the program": ("removed", "the program holds its executable form"),
    "with events": ("removed", "events"),
    "with an allocation": ("disabled", "can be made executable only once"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_guilty_node(watching: Any, kind: str, caplog: pytest.LogCaptureFixture) -> None:
    how, why = KINDS[kind]
    buffers = [guarded(watching, 256) for _ in range(COUNT)]
    watching.name("buffers", buffers)
    graph, kept = captured_as(kind, chain(buffers, 7))
    raw = raw_graph(graph)
    nodes, edges = driver().nodes(raw), driver().edges(raw)
    others = {NodeKind.EVENT, NodeKind.ALLOC, NodeKind.FREE} & {n.kind for n in model_of(graph).device_nodes}
    assert bool(others) == kind.startswith("with")
    for _ in range(4):
        graph.replay()
        torch.cuda.synchronize()
    found = only(watching.check())
    culprit = found.culprit
    assert (found.code, found.buffer.name, found.replay, found.past_end) == ("SG101", "buffers[7]", 1, 12)
    assert (culprit.status, culprit.name) == (Status.CONFIRMED, "put")
    assert [frame.function for frame in culprit.stack][:2] == ["overflow", "body"]
    assert culprit.search is not None
    assert (culprit.search.how, culprit.search.runs <= 9) == (how, True)
    assert culprit.search.nodes in (2 * COUNT + 1, 2 * COUNT + 2)
    (said,) = {r.getMessage() for r in caplog.records if "looked at by running its first nodes only" in r.getMessage()}
    assert why in said
    assert [int(buffer[5]) for buffer in buffers] == [expected(4)] * COUNT, "only the replays count"
    assert (driver().nodes(raw), driver().edges(raw)) == (nodes, edges)
    graph.replay()
    assert [int(buffer[5]) for buffer in buffers] == [expected(5)] * COUNT
    del kept


@pytest.mark.parametrize("kind", KINDS)
def test_the_fixed_twin_runs_plainly(watching: Any, kind: str) -> None:
    buffers = [guarded(watching, 256) for _ in range(4)]
    graph, kept = captured_as(kind, chain(buffers, -1))
    for _ in range(4):
        graph.replay()
        torch.cuda.synchronize()
    assert watching.check() == ()
    assert [int(buffer[5]) for buffer in buffers] == [expected(4)] * 4
    del kept


def test_random_numbers_and_untracked_memory_are_as_without(watching: Any) -> None:
    results = []
    for keeps in (False, True):
        torch.manual_seed(7)
        table, counter = guarded(watching, 64), torch.zeros(1, dtype=torch.int64, device="cuda")
        graph = torch.cuda.CUDAGraph(keep_graph=keeps)
        with torch.cuda.graph(graph):
            counter.add_(1)
            noise = torch.rand(64, device="cuda") * counter
            overflow(table, 2)
        if keeps:
            graph.instantiate()
        run = []
        for _ in range(5):
            graph.replay()
            torch.cuda.synchronize()
            run.append((noise.tolist(), int(counter)))
        results.append(run)
        assert [finding.culprit.search is not None for finding in watching.check()][-1] == keeps
    assert results[0] == results[1]


def test_no_room_for_copies(caplog: pytest.LogCaptureFixture) -> None:
    with sg.debug(backend="cuda", locate_memory=1 << 20) as debugger:
        table, large = guarded(debugger, 64), guarded(debugger, 1 << 20)

        def body() -> None:
            large.add_(1)
            overflow(table, 2)

        graph, _ = captured_as("kept by the program", body)
        for _ in range(4):
            graph.replay()
            torch.cuda.synchronize()
        found = only(debugger.check())
    assert found.culprit.status is Status.CANDIDATE
    assert any("there is no room for copies of the" in record.getMessage() for record in caplog.records)
    assert int(large[0]) == 4
