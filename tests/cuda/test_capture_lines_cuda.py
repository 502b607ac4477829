"""Captures that the observer in C++ records: findings in a runner's second graph are those of captures under a mode."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from helpers_cuda import fill, guarded, name_of, only, overflow, warm_kernels
from support.compiled_observer import cache_with_the_library
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

import shadowgraph as sg
from shadowgraph.debugger import model_of
from shadowgraph.graphs.cuda import capture as cuda_capture
from shadowgraph.graphs.cuda.recorded_capture import RecordedCapture
from shadowgraph.graphs.observer.observer import observer

pytestmark = pytest.mark.gpu

LAYOUTS = ["isolate", "faithful"]
WAYS = ["each", "learnt"]
SIZES = (64, 48, 32)  # batch sizes, the largest first, as servers capture them
Body = Callable[[int], Any]


@pytest.fixture(scope="module", autouse=True)
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    home = cache_with_the_library(tmp_path_factory)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(home))
        warm_kernels()
        yield


def debugging(way: str, layout: str = "isolate", **options: Any) -> Any:
    return sg.debug(backend="cuda", layout=layout, operators="observer", capture_lines=way, **options)


def ready() -> None:
    """Wait for the library."""
    assert observer.wait(600), observer.sentence()


class Runner:
    """Captures a body for one batch size after the other, by one line."""

    def __init__(self, body: Body) -> None:
        self.body = body
        self.graphs: dict[int, torch.cuda.CUDAGraph] = {}
        self.results: dict[int, Any] = {}
        self.modes: list[object] = []
        pool = torch.cuda.graph_pool_handle()
        body(SIZES[0])
        torch.cuda.synchronize()
        for size in SIZES:
            graph = self.graphs[size] = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=pool):
                self.modes.append(cuda_capture.current())
                self.results[size] = body(size)


def lines(graph: torch.cuda.CUDAGraph) -> list[tuple[str, int]]:
    model = model_of(graph)
    assert model is not None
    return [(node.launch.name, node.launch.stack[0].line if node.launch.stack else 0) for node in model.nodes]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_later_graphs_have_the_launches_lines_and_tensors_that_a_mode_notes(layout: str) -> None:
    seen: dict[str, Any] = {}
    weight = torch.ones(8, 8, device="cuda")
    source = torch.arange(SIZES[0] * 8, dtype=torch.float32, device="cuda").view(-1, 8)

    def body(size: int) -> Any:
        x = torch.nn.functional.linear(source[:size], weight)
        y = torch.softmax(x.reshape(size, 2, 4), dim=-1)
        scratch = torch.empty(size, 8, device="cuda")
        torch.add(x, 1, out=scratch)
        return (scratch * y.reshape(size, 8)).sum(-1)

    for way in WAYS:
        with debugging(way, layout) as debugger:
            ready()
            runner = Runner(body)
            for graph in runner.graphs.values():
                graph.replay()
            assert debugger.check() == ()
            facts = debugger.report(quiet=True).facts
            assert facts.faults == {}
            assert all(isinstance(mode, RecordedCapture) is (way == "learnt") for mode in runner.modes)
            found = {}
            for size, graph in runner.graphs.items():
                model = model_of(graph)
                assert model is not None
                nodes = [
                    (node.launch.name, node.launch.stack[0].line,
                     [(p.argument, p.access, p.view.shape, p.view.stride, p.view.dtype) for p in node.launch.pointers])
                    for node in model.nodes
                ]  # fmt: skip
                owners = [(node.name, node.launch) for node in model.device_nodes]
                inputs = sorted(buffer.nbytes for buffer in model.inputs.values())
                found[size] = nodes, owners, inputs
            seen[way] = found, debugger.coverage().percent
    assert seen["learnt"] == seen["each"]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("place", ["static", "pool"])
def test_an_overflow_inside_of_the_second_graph(way: str, layout: str, place: str) -> None:
    """Of a static buffer, and of a tensor in the graph's pool: buffer, kernel, line, graph and replay."""
    with debugging(way, layout) as debugger:
        ready()
        table = guarded(debugger, SIZES[0])
        late = torch.zeros(1, dtype=torch.int32, device="cuda")

        def body(size: int) -> Any:
            made = torch.add(table[:size], late)
            made.mul_(2)
            target = table if place == "static" else made
            if size == SIZES[1]:
                overflow(target)
            else:
                fill(target)
            return made

        runner = Runner(body)
        graph = runner.graphs[SIZES[1]]
        planted = inspect.getsourcelines(overflow)[1] + 4  # its launch
        for _ in range(3):
            runner.graphs[SIZES[2]].replay()
            graph.replay()
        found = only([f for f in debugger.check() if f.code == "SG101"])
        debugger.check()
        assert (found.graph, found.phase) == (name_of(graph), "replay")
        found = next(f for f in debugger.findings if f.code == "SG101")
        assert (found.past_end, found.culprit.line, found.culprit.kernel or found.culprit.name) == (4, planted, "put")


@pytest.mark.parametrize("way", WAYS)
def test_a_mutation_by_the_second_graph(way: str) -> None:
    """SG102: an operator writes an input that the program protects."""
    with debugging(way) as debugger:
        ready()
        table = guarded(debugger, SIZES[0])
        debugger.protect(table)

        def body(size: int) -> Any:
            made = table[:size] * 2
            if size == SIZES[1]:
                table[:size].add_(1)  # planted
            return made

        runner = Runner(body)
        graph = runner.graphs[SIZES[1]]
        for _ in range(3):
            runner.graphs[SIZES[2]].replay()
            graph.replay()
        debugger.check()
        found = only([f for f in debugger.findings if f.code == "SG102"])
        assert (found.graph, found.culprit.name) == (name_of(graph), "aten.add_.Tensor")
        assert found.culprit.line == inspect.getsourcelines(body)[1] + 3


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_fixed_twin_is_silent(layout: str) -> None:
    with debugging("learnt", layout) as debugger:
        ready()
        table = guarded(debugger, SIZES[0])

        def body(size: int) -> Any:
            made = table[:size] * 2
            fill(made)
            return made + 1

        runner = Runner(body)
        for _ in range(20):
            for graph in runner.graphs.values():
                graph.replay()
        assert debugger.check() == ()
        assert debugger.report(quiet=True).facts.faults == {}


def test_launches_of_c_functions_take_the_lines_of_the_first_graph() -> None:
    cp = pytest.importorskip("cupy")
    code = 'extern "C" __global__ void one(int* p, long long n) { if (threadIdx.x < n) p[threadIdx.x] = 1; }'
    kernel = cp.RawKernel(code, "one")
    kernel.compile()
    with debugging("learnt") as debugger:
        ready()
        table = guarded(debugger, SIZES[0])

        def body(size: int) -> None:
            table.add_(1)
            with cp.cuda.Stream.from_external(torch.cuda.current_stream()):
                kernel((1,), (64,), (cp.uint64(table.data_ptr()), cp.int64(size)))
            table.mul_(2)

        runner = Runner(body)
        planted = inspect.getsourcelines(body)[1] + 3
        traced = [mode.traced for mode in runner.modes if isinstance(mode, RecordedCapture)]
        assert traced == [True, False, False]
        for at, graph in enumerate(runner.graphs.values()):
            model = model_of(graph)
            assert model is not None
            (node,) = [node for node in model.device_nodes if node.name == "one"]
            assert node.launch is None
            assert node.stack[0].line == planted
            assert node.learnt_from == (name_of(runner.graphs[SIZES[0]]) if at else "")
            assert not model.unlearnt


@pytest.mark.parametrize("replays", [1, 3])
def test_an_overflow_by_a_c_function_in_the_second_graph(replays: int) -> None:
    """The culprit's line is said to be that of the first graph. After one replay nothing is confirmed, and after three
    only if the first one's evidence came before the last began: the culprit is the same."""
    cp = pytest.importorskip("cupy")
    kernel = cp.RawKernel('extern "C" __global__ void past(int* p, long long n) { p[n] = 1; }', "past")
    kernel.compile()
    with debugging("learnt") as debugger:
        ready()
        table = guarded(debugger, SIZES[0])

        def body(size: int) -> None:
            table.add_(1)
            place = table.numel() if size == SIZES[1] else 0
            with cp.cuda.Stream.from_external(torch.cuda.current_stream()):
                kernel((1,), (1,), (cp.uint64(table.data_ptr()), cp.int64(place)))

        runner = Runner(body)
        first, graph = name_of(runner.graphs[SIZES[0]]), runner.graphs[SIZES[1]]
        for _ in range(replays):
            graph.replay()
        debugger.check()
        found = next(f for f in debugger.findings if f.code == "SG101")
        assert (found.graph, found.culprit.name) == (name_of(graph), "past")
        assert found.culprit.line == inspect.getsourcelines(body)[1] + 4
        assert found.culprit.learnt_from == first
        assert f"line as in {first}" in str(debugger.report(quiet=True))


def test_a_second_graph_with_other_operators_has_its_own_lines() -> None:
    with debugging("learnt") as debugger:
        ready()
        table = guarded(debugger, SIZES[0])

        def body(size: int) -> Any:
            made = table[:size] * 2
            if size == SIZES[1]:
                made.neg_()
            return made + 1

        runner = Runner(body)
        first = inspect.getsourcelines(body)[1]
        found = {size: [line - first for _, line in lines(graph)] for size, graph in runner.graphs.items()}
        assert found == {64: [1, 4], 48: [1, 3, 4], 32: [1, 4]}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_backward_that_autograds_thread_captures(layout: str) -> None:
    torch.manual_seed(1)
    weight = torch.randn(16, 16, device="cuda", requires_grad=True)
    rows = torch.randn(4, 16, device="cuda")
    (torch.tanh(rows @ weight)).sum().backward()
    expected, weight.grad = weight.grad, None
    with debugging("learnt", layout) as debugger:
        ready()
        graphed: Any = torch.cuda.make_graphed_callables(lambda x, w: torch.tanh(x @ w), (rows.clone(), weight))
        for _ in range(3):
            weight.grad = None
            graphed(rows, weight).sum().backward()
        facts = debugger.report(quiet=True).facts
        launches = [[node.launch.name for node in model.nodes] for model in debugger.graphs]
    torch.testing.assert_close(weight.grad, expected)
    assert (facts.findings, facts.faults) == ((), {})
    assert "aten.tanh_backward.default" in launches[1]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_capture_leaves_nothing_and_passes_exceptions_on(layout: str) -> None:
    before = [sys.monitoring.get_tool(tool) for tool in range(6)] if sys.version_info >= (3, 12) else []
    source = torch.arange(64, dtype=torch.int32, device="cuda")
    error = ValueError("the program's own")
    with debugging("learnt", layout) as debugger:
        ready()

        def body(size: int) -> Any:
            made = source[:size] + 1
            if size == SIZES[1]:
                raise error
            return made

        with pytest.raises(ValueError, match="the program's own"):
            Runner(body)
        assert cuda_capture.current() is None
        assert not torch._C._cuda_isHistoryEnabled()
        modes = [type(mode).__name__ for mode in _get_current_dispatch_mode_stack()]
        assert [mode for mode in modes if mode != "EagerMode"] == []
        runner = Runner(lambda size: source[:size] * 2)
        for size, graph in runner.graphs.items():
            graph.replay()
            assert runner.results[size].tolist() == [2 * at for at in range(size)]
        assert debugger.report(quiet=True).facts.faults == {}
    assert sys.getprofile() is None
    if before:
        assert [sys.monitoring.get_tool(tool) for tool in range(6)] == before


@pytest.mark.parametrize("mode", ["global", "thread_local", "relaxed"])
def test_capture_error_modes(mode: str) -> None:
    source = torch.arange(64, dtype=torch.int32, device="cuda")
    with debugging("learnt") as debugger:
        ready()
        for _ in range(2):
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, capture_error_mode=mode):
                out = (source * 2).sum()
            graph.replay()
            assert int(out) == 2 * sum(range(64))
        assert debugger.report(quiet=True).facts.faults == {}


def test_a_snapshot_of_one_pool_has_what_one_of_the_allocator_has() -> None:
    """What `CudaGraphs` takes at the end of a capture: the pool's segments, and every allocation of the capture."""
    from shadowgraph.graphs.cuda.allocator_history import History, snapshot_of

    source, history, pool = torch.ones(1000, device="cuda"), History(), torch.cuda.graph_pool_handle()
    assert history.begin()
    try:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool):
            kept = (source * 2).add(1)
        whole, part = torch.cuda.memory._snapshot(), snapshot_of(pool)
    finally:
        history.end()
    ours = [segment for segment in whole["segments"] if tuple(segment["segment_pool_id"]) == tuple(pool)]
    assert ours
    assert [s["address"] for s in part["segments"]] == [s["address"] for s in ours]
    given = [{(e["addr"], e["size"]) for events in s["device_traces"] for e in events if e["action"] == "alloc"}
             for s in (whole, part)]  # fmt: skip
    assert given[0] == given[1]
    assert kept.data_ptr() in {address for address, _ in given[1]}
