"""One replay with a look at memory after each node: the node that changed it, and nothing else is different."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from helpers_cuda import capture, captured, fill, guarded, overflow, warm_kernels

import shadowgraph as sg
from shadowgraph.debugger import model_of
from shadowgraph.graphs.cuda.driver import DriverError, driver, raw_graph
from shadowgraph.model.probes import Hit, Outcome, Probe
from shadowgraph.model.ranges import ByteRange

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def warm() -> None:
    warm_kernels()


@pytest.fixture(params=["isolate", "faithful"])
def watching(request: Any) -> Iterator[Any]:
    with sg.debug(backend="cuda", layout=request.param, locate="off") as debugger:
        yield debugger


def probed(graph: torch.cuda.CUDAGraph, *parts: ByteRange) -> Outcome:
    """What the next replay shows."""
    model, outcomes = model_of(graph), list[Outcome]()
    assert model is not None
    model.probe = Probe(parts, outcomes.append)
    graph.replay()
    (outcome,) = outcomes
    assert model.probe is None
    return outcome


def whole(tensor: torch.Tensor, beyond: int = 0) -> ByteRange:
    start = tensor.data_ptr()
    return ByteRange(start - beyond, start + tensor.nbytes + beyond)


def chain(buffers: list[torch.Tensor], *bugs: int) -> Callable[[], None]:
    def body() -> None:
        for place, buffer in enumerate(buffers):
            buffer.add_(1)
            if place in bugs:
                overflow(buffer, 3)
        for buffer in buffers:
            buffer.mul_(2)

    return body


def test_the_node_that_broke_a_guard(watching: Any) -> None:
    buffers = [guarded(watching, 1024) for _ in range(64)]
    graph, _ = capture(chain(buffers, 7))
    tails = [ByteRange(b.data_ptr() + b.nbytes, b.data_ptr() + b.nbytes + 256) for b in buffers]
    outcome = probed(graph, *tails)
    assert (outcome.refused, outcome.dropped, outcome.replay) == (None, 0, 1)
    end = tails[7].start
    (hit,) = outcome.hits
    assert (hit.node, hit.part, hit.first) == (8, 7, end)
    assert 0 < hit.count <= 12
    assert hit.last < end + 12


def test_two_nodes_and_what_each_wrote(watching: Any) -> None:
    buffers = [guarded(watching, 1024) for _ in range(8)]
    graph, _ = capture(chain(buffers, 2, 5))
    outcome = probed(graph, *(ByteRange(b.data_ptr() + b.nbytes, b.data_ptr() + b.nbytes + 256) for b in buffers))
    assert [(hit.node, hit.part) for hit in outcome.hits] == [(3, 2), (7, 5)]


def test_every_change_of_a_buffer_has_its_node(watching: Any) -> None:
    table = guarded(watching, 100)

    def body() -> None:
        table.add_(1)
        table[10:20].mul_(3)
        table.add_(0)
        table[50:].sub_(1)

    graph, _ = capture(body)
    start = table.data_ptr()
    outcome = probed(graph, whole(table))
    assert outcome.hits == (
        Hit(0, 0, start, start + 396, 100),
        Hit(1, 0, start + 40, start + 76, 10),
        Hit(3, 0, start + 200, start + 396, 50),
    )


def test_results_random_numbers_and_later_replays_are_as_without(watching: Any) -> None:
    x = torch.randn(64, 64, device="cuda")
    results = []
    for probe in (False, True):
        torch.manual_seed(7)
        graph, out = captured(lambda: torch.nn.functional.dropout(x @ x, 0.5).sum(1))
        run = []
        for replay in range(4):
            if probe and replay == 1:
                outcome = probed(graph, whole(x))
                assert (outcome.refused, outcome.hits) == (None, ())
            else:
                graph.replay()
            run.append(out.clone())
        results.append(run)
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))
    assert not torch.equal(results[0][0], results[0][1]), "the numbers must differ from replay to replay"


def test_the_graph_is_as_it_was(watching: Any) -> None:
    buffers = [guarded(watching, 64) for _ in range(8)]
    graph, _ = capture(chain(buffers))
    raw = raw_graph(graph)
    nodes, edges = driver().nodes(raw), driver().edges(raw)
    probed(graph, whole(buffers[0]))
    assert (driver().nodes(raw), driver().edges(raw)) == (nodes, edges)


def test_branches_run_one_after_the_other_once(watching: Any) -> None:
    left, right = guarded(watching, 4096), guarded(watching, 4096)
    side = torch.cuda.Stream()

    def body() -> None:
        left.add_(1)
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            right.add_(2)
            right.mul_(2)
        left.add_(3)
        torch.cuda.current_stream().wait_stream(side)
        left.add_(right)

    graph, _ = capture(body)
    outcome = probed(graph, whole(left), whole(right))
    assert [(hit.node, hit.part) for hit in outcome.hits] == [(0, 0), (1, 1), (2, 1), (3, 0), (4, 0)]
    assert (int(left[0]), int(right[0])) == (8, 4)


def test_a_pool_with_two_graphs(watching: Any) -> None:
    source = torch.arange(64, dtype=torch.int32, device="cuda")
    handle = torch.cuda.graph_pool_handle()
    first, a = capture(lambda: source * 2, pool=handle)
    second, b = capture(lambda: source * 3, pool=handle)
    first.replay()
    assert probed(second, whole(b)).hits[0].node == 0
    assert probed(first, whole(a)).refused is None
    first.replay()
    second.replay()
    assert (a.tolist(), b.tolist()) == ([2 * i for i in range(64)], [3 * i for i in range(64)])


def test_large_memory(watching: Any) -> None:
    big = torch.zeros(64 << 20, dtype=torch.uint8, device="cuda")

    def body() -> None:
        big[1 << 20 : (1 << 20) + 5].add_(1)
        big[-1:].add_(1)

    graph, _ = captured(body)
    hits = probed(graph, whole(big)).hits
    start = big.data_ptr()
    assert hits == (
        Hit(0, 0, start + (1 << 20), start + (1 << 20) + 4, 5),
        Hit(1, 0, start + (64 << 20) - 1, start + (64 << 20) - 1, 1),
    )


def test_a_graph_that_the_program_keeps_runs_plainly(watching: Any) -> None:
    table = guarded(watching, 64)
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    with torch.cuda.graph(graph):
        table.add_(1)
    graph.instantiate()
    outcome = probed(graph, whole(table))
    assert (outcome.hits, outcome.refused) == ((), "the program keeps the graph by itself")
    assert int(table[0]) == 1


def test_a_graph_whose_executable_form_the_program_holds_runs_plainly(watching: Any) -> None:
    table = guarded(watching, 64)
    graph, _ = capture(lambda: table.add_(1))
    handle = graph.raw_cuda_graph_exec()
    outcome = probed(graph, whole(table))
    assert (outcome.hits, outcome.refused) == ((), "the program holds its executable form")
    assert graph.raw_cuda_graph_exec() == handle
    assert int(table[0]) == 1


def test_an_interrupt_while_probes_are_put_in(watching: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    buffers = [guarded(watching, 64) for _ in range(4)]
    graph, _ = capture(chain(buffers))
    raw, model = raw_graph(graph), model_of(graph)
    assert model is not None
    nodes, add, calls = driver().nodes(raw), type(driver()).add_kernel, []

    def interrupted(*arguments: Any) -> int:
        if len(calls) == 3:
            raise KeyboardInterrupt
        calls.append(1)
        return add(*arguments)

    monkeypatch.setattr(type(driver()), "add_kernel", interrupted)
    model.probe = Probe((whole(buffers[0]),), lambda outcome: None)
    with pytest.raises(KeyboardInterrupt):
        graph.replay()
    monkeypatch.undo()
    assert driver().nodes(raw) == nodes, "none of ours is left in it"
    graph.replay()
    assert int(buffers[0][0]) == 2, "the interrupted replay did not run"


def test_memory_is_given_back(watching: Any) -> None:
    big = torch.zeros(256 << 20, dtype=torch.uint8, device="cuda")
    graph, _ = capture(lambda: big[:8].add_(1))
    graph.replay()
    torch.cuda.synchronize()
    kept: list[int] = []
    while len(kept) < 40 and min(kept, default=big.nbytes) > 16 << 20:  # other processes take memory of the card too
        before = torch.cuda.mem_get_info()[0]
        assert probed(graph, whole(big)).refused is None
        kept.append(before - torch.cuda.mem_get_info()[0])
    assert min(kept) <= 16 << 20, kept


@pytest.mark.parametrize("what", ["try_instantiate", "add_kernel", "add_edges"])
def test_where_the_driver_refuses_the_replay_is_plain(
    watching: Any, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    buffers = [guarded(watching, 64) for _ in range(4)]
    graph, _ = capture(chain(buffers))
    raw = raw_graph(graph)
    nodes = driver().nodes(raw)

    def refuse(*_: Any) -> Any:
        raise DriverError("no")

    monkeypatch.setattr(type(driver()), what, refuse)
    outcome = probed(graph, whole(buffers[0]))
    assert (outcome.refused, outcome.hits) == ("no", ())
    monkeypatch.undo()
    assert driver().nodes(raw) == nodes
    graph.replay()
    assert int(buffers[0][0]) == 6, "two replays: (0 + 1) * 2, then (2 + 1) * 2"


def test_training_under_make_graphed_callables_is_probed(watching: Any) -> None:
    layer = torch.nn.Linear(32, 32, device="cuda")
    x = torch.randn(4, 32, device="cuda", requires_grad=True)
    graphed = torch.cuda.make_graphed_callables(layer, (x,))
    plain = layer.weight.detach().clone()
    outcomes = []
    for model in watching.graphs:
        model.probe = Probe((whole(layer.weight),), outcomes.append)
    graphed(torch.ones(4, 32, device="cuda")).sum().backward()
    torch.cuda.synchronize()
    assert [(outcome.refused, outcome.hits) for outcome in outcomes] == [(None, ()), (None, ())]
    assert torch.equal(layer.weight, plain)
    assert torch.allclose(layer.weight.grad, torch.full_like(plain, 4.0))


def test_a_fill_after_a_probed_replay_is_seen(watching: Any) -> None:
    """The checks at both ends of a probed replay are as ever."""
    table = guarded(watching, 64)
    graph, _ = capture(lambda: fill(table, 2))
    probed(graph, whole(table))
    (found,) = watching.check()
    assert (found.code, found.phase, found.replay, found.past_end) == ("SG101", "replay", 1, 8)
