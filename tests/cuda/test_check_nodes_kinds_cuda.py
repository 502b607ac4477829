"""Check nodes in graphs of other makings: programmatic edges, cudagraph trees, conditional nodes."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from helpers_cuda import guarded, only, overflow, warm_kernels
from test_conditional_cuda import add_conditional

import shadowgraph as sg
from shadowgraph.debugger import model_of
from shadowgraph.graphs.cuda.driver import driver, raw_graph

pytestmark = pytest.mark.gpu


@triton.jit(do_not_specialize=["size"])
def after_the_one_before(target, source, size, BLOCK: tl.constexpr):
    """Begin before the kernel before ends, wait for what it stores, then add one to it."""
    tl.extra.cuda.gdc_launch_dependents()
    tl.extra.cuda.gdc_wait()
    lane = tl.arange(0, BLOCK)
    tl.store(target + lane, tl.load(source + lane, mask=lane < size) + 1, mask=lane < size)


@pytest.fixture
def debugger() -> Iterator[sg.Debugger]:
    warm_kernels()
    with sg.debug(backend="cuda", watch_eager="sampled") as made:
        yield made


def programmatic(graph: int) -> int:
    """How many edges let the second kernel begin before the first has ended."""
    calls, count = driver(), ctypes.c_size_t()
    raw = ctypes.c_void_p(graph)
    calls.call("cuGraphGetEdges_v2", raw, None, None, None, ctypes.byref(count))
    ends = [(ctypes.c_void_p * count.value)() for _ in range(2)]
    data = (ctypes.c_uint8 * 8 * count.value)()
    calls.call("cuGraphGetEdges_v2", raw, *ends, data, ctypes.byref(count))
    return sum(edge[2] == 1 for edge in data)  # CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC


def test_programmatic_edges_stay_and_each_replay_is_checked(debugger: sg.Debugger) -> None:
    a, b = guarded(debugger, 64), guarded(debugger, 64)

    def body() -> None:
        after_the_one_before[(1,)](b, a, 64, BLOCK=64, launch_pdl=True)
        after_the_one_before[(1,)](a, b, 64, BLOCK=64, launch_pdl=True)
        after_the_one_before[(1,)](b, a, 64, BLOCK=64, launch_pdl=True)

    body()
    a.zero_()
    graph: Any = torch.cuda.CUDAGraph(keep_graph=True)
    with torch.cuda.graph(graph):
        body()
    if not programmatic(raw_graph(graph)):
        pytest.fail("invalid: the capture has no programmatic edge")
    graph.instantiate()
    model = model_of(graph)
    assert model is not None
    assert model.check_nodes
    for _ in range(50):
        graph.replay()
    torch.cuda.synchronize()
    assert a.tolist() == [100] * 64, "two additions a replay"
    assert debugger.check() == ()
    overflow(b)
    graph.replay()
    found = only(debugger.check())
    assert (found.code, found.past_end, found.phase, found.replay) == ("SG101", 4, "prepare", 51)


@pytest.mark.parametrize("extra", [0, 4])
def test_a_conditional_node_of_a_graph_that_the_program_keeps(debugger: sg.Debugger, extra: int) -> None:
    table, target = guarded(debugger, 64), guarded(debugger, 16, dtype=torch.uint8)
    graph: Any = torch.cuda.CUDAGraph(keep_graph=True)
    with torch.cuda.graph(graph):
        table.add_(1)
    raw, beyond = raw_graph(graph), SimpleNamespace(data_ptr=target.data_ptr, nbytes=16 + extra)
    add_conditional(raw, driver().nodes(raw)[-1], beyond)
    graph.instantiate()
    for _ in range(20):
        graph.replay()
    torch.cuda.synchronize()
    assert target.tolist() == [3] * 16, "precondition: the branch is taken"
    if extra:
        found = only(debugger.check())
        assert (found.code, found.past_end) == ("SG101", extra)
    else:
        assert debugger.check() == ()
    counts = debugger.facts().replays
    assert counts.made == counts.checked == 20


def test_each_replay_of_cudagraph_trees_is_checked(debugger: sg.Debugger) -> None:
    from torch._inductor.cudagraph_trees import reset_cudagraph_trees

    torch._dynamo.reset()
    reset_cudagraph_trees()
    table = guarded(debugger, 64, dtype=torch.float32)

    @torch.compile(mode="reduce-overhead")
    def step(x: torch.Tensor) -> torch.Tensor:
        return (x * 2 + table).relu()

    x = torch.ones(64, device="cuda")
    for _ in range(40):
        torch.compiler.cudagraph_mark_step_begin()
        y = step(x).clone()
    assert y.tolist() == [2.0] * 64
    assert debugger.check() == ()
    counts = debugger.facts().replays
    if not counts.made:
        pytest.fail("invalid: nothing was replayed")
    assert counts.checked == counts.made
    overflow(table)
    torch.compiler.cudagraph_mark_step_begin()
    step(x)
    found = only(debugger.check())
    assert (found.code, found.past_end, found.culprit.name) == ("SG101", 4, "put")
    torch._dynamo.reset()
    reset_cudagraph_trees()
