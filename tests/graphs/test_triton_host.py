"""Triton launches in a capture: recorded with their grid, replayed over the same memory, damage left to the replays."""

# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from triton.runtime import autotuner, interpreter
from triton.tools.tensor_descriptor import TensorDescriptor

from shadowgraph.common.errors import FreedInputError
from shadowgraph.common.finalizer_safe_lock import run_deferred
from shadowgraph.graphs.host.graph import HostGraph, host_graph
from shadowgraph.model.buffers import Role
from shadowgraph.model.graphs import Node
from shadowgraph.tracking.allocator import host_allocator

pytestmark = pytest.mark.filterwarnings("ignore:Conversion of an array")


@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < n
    tl.store(out_ptr + at, tl.load(x_ptr + at, mask=mask) + tl.load(y_ptr + at, mask=mask), mask=mask)


@triton.jit
def scalar_kernel(out_ptr, value, SHIFT: tl.constexpr):
    tl.store(out_ptr + tl.program_id(1) + SHIFT, value * (tl.program_id(0) + 1))


@triton.jit
def transpose_kernel(x_ptr, out_ptr, M: tl.constexpr, N: tl.constexpr):
    rows, columns = tl.arange(0, M)[:, None], tl.arange(0, N)[None, :]
    tl.store(out_ptr + columns * M + rows, tl.load(x_ptr + rows * N + columns))


@triton.jit
def atomic_kernel(x_ptr, total_ptr, largest_ptr, flag_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n, other=0)
    tl.atomic_add(total_ptr, tl.sum(x))
    tl.atomic_max(largest_ptr + at % 2, x, mask=at < n)
    tl.atomic_cas(flag_ptr, 0, tl.program_id(0) + 5)


@triton.jit
def block_pointer_kernel(x_ptr, out_ptr, M, N, BM: tl.constexpr, BN: tl.constexpr):
    at = (tl.program_id(0) * BM, 0)
    source = tl.make_block_ptr(x_ptr, (M, N), (N, 1), at, (BM, BN), (1, 0))
    target = tl.make_block_ptr(out_ptr, (M, N), (N, 1), at, (BM, BN), (1, 0))
    for _ in range(0, N, BN):
        tl.store(target, tl.load(source, boundary_check=(0, 1)) * 2, boundary_check=(0, 1))
        source, target = tl.advance(source, (0, BN)), tl.advance(target, (0, BN))


@triton.jit
def descriptor_kernel(source, target, BM: tl.constexpr, BN: tl.constexpr):
    row, column = tl.program_id(0) * BM, tl.program_id(1) * BN
    target.store([row, column], source.load([row, column]) + 1)


@triton.jit
def device_descriptor_kernel(x_ptr, out_ptr, M, N, BM: tl.constexpr, BN: tl.constexpr):
    source = tl.make_tensor_descriptor(x_ptr, shape=[M, N], strides=[N, 1], block_shape=[BM, BN])
    target = tl.make_tensor_descriptor(out_ptr, shape=[M, N], strides=[N, 1], block_shape=[BM, BN])
    target.store([tl.program_id(0) * BM, 0], source.load([tl.program_id(0) * BM, 0]) + 1)


@triton.autotune([triton.Config({"BLOCK": 16}), triton.Config({"BLOCK": 32}), triton.Config({"BLOCK": 64})], key=["n"])
@triton.jit
def tuned_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + at, tl.load(out_ptr + at, mask=at < n) + tl.load(x_ptr + at, mask=at < n), mask=at < n)


@triton.heuristics({"BLOCK": lambda arguments: triton.next_power_of_2(arguments["n"])})
@triton.jit
def heuristic_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(out_ptr + at, tl.load(x_ptr + at, mask=at < n) * 3, mask=at < n)


@triton.jit
def fill_kernel(out_ptr, index_ptr, value, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + tl.load(index_ptr + at, mask=at < n, other=0), value, mask=at < n)


@triton.jit
def pair_kernel(pair, n: tl.constexpr):
    tl.store(pair[1] + tl.arange(0, n), tl.load(pair[0] + tl.arange(0, n)) + 1)


def launches(graph: HostGraph) -> list[Node]:
    return [node for node in graph.model.nodes if node.launch.kind == "triton"]


# -- recording ---------------------------------------------------------------------------------------------------------


def test_a_launch_becomes_a_node_with_its_grid_frozen() -> None:
    x, y, size = torch.randn(100), torch.randn(100), [100]
    graph = HostGraph()
    with host_graph(graph):
        out = torch.empty_like(x)
        grid = lambda meta: (triton.cdiv(size[0], meta["BLOCK"]),)  # noqa: E731
        add_kernel[grid](x, y, out, n=100, BLOCK=32)
        doubled = out * 2
    size[0] = 0
    (node,) = launches(graph)
    assert (node.launch.name, node.launch.grid) == ("add_kernel", (4,))
    assert [(p.argument, p.view.shape, p.access) for p in node.launch.pointers] == [
        ("x_ptr", (100,), "unknown"), ("y_ptr", (100,), "unknown"), ("out_ptr", (100,), "unknown"),
    ]  # fmt: skip
    assert node.launch.source is not None
    assert node.launch.source.startswith(__file__)
    assert node.launch.stack[0].function == "test_a_launch_becomes_a_node_with_its_grid_frozen"
    for _ in range(2):
        x.normal_()
        graph.replay()
        assert torch.equal(out, x + y)
        assert torch.equal(doubled, (x + y) * 2)


def test_scalar_stores_and_two_dimensional_grids() -> None:
    out, graph = torch.zeros(8), HostGraph()
    with host_graph(graph):
        scalar_kernel[(2, 3)](out, 1.5, SHIFT=2)
    assert torch.equal(out, torch.zeros(8)), "the capture puts its inputs back"
    graph.replay()
    assert torch.equal(out, torch.tensor([0, 0, 3.0, 3.0, 3.0, 0, 0, 0]))
    assert launches(graph)[0].launch.grid == (2, 3)


def test_two_dimensional_blocks() -> None:
    x, graph = torch.randn(4, 8), HostGraph()
    with host_graph(graph):
        out = torch.empty(8, 4)
        transpose_kernel[(1,)](x, out, 4, 8)
    x.normal_()
    graph.replay()
    assert torch.equal(out, x.t())


def test_atomics() -> None:
    x = torch.arange(1, 11, dtype=torch.int32)
    total, largest, flag = (torch.zeros(n, dtype=torch.int32) for n in (1, 2, 1))
    graph = HostGraph()
    with host_graph(graph):
        atomic_kernel[(3,)](x, total, largest, flag, 10, BLOCK=4)
    assert [t.tolist() for t in (total, largest, flag)] == [[0], [0, 0], [0]]
    graph.replay()
    graph.replay()
    assert [t.tolist() for t in (total, largest, flag)] == [[110], [9, 10], [5]]


def block_pointers(x: torch.Tensor, out: torch.Tensor) -> None:
    block_pointer_kernel[(2,)](x, out, 6, 20, BM=4, BN=8)


def host_descriptors(x: torch.Tensor, out: torch.Tensor) -> None:
    source, target = (TensorDescriptor(t, list(t.shape), list(t.stride()), [4, 8]) for t in (x, out))
    descriptor_kernel[(2, 3)](source, target, 4, 8)


def device_descriptors(x: torch.Tensor, out: torch.Tensor) -> None:
    device_descriptor_kernel[(2,)](x, out, 6, 20, BM=4, BN=32)


@pytest.mark.parametrize(
    ("launch", "expected"),
    [(block_pointers, lambda x: x * 2), (host_descriptors, lambda x: x + 1), (device_descriptors, lambda x: x + 1)],
)
def test_block_pointers_and_tensor_descriptors(
    launch: Callable[[torch.Tensor, torch.Tensor], None], expected: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    x, static, graph = torch.randn(6, 20), torch.zeros(6, 20), HostGraph()
    with host_graph(graph):
        out = torch.zeros(6, 20)
        launch(x, out)
        launch(out, static)
    assert torch.equal(static, torch.zeros(6, 20))
    x.normal_()
    graph.replay()
    assert torch.equal(out, expected(x))
    assert torch.equal(static, expected(expected(x)))
    assert {len(node.launch.pointers) for node in launches(graph)} == {2}


def test_autotune_records_one_launch_and_benchmarks_none() -> None:
    x, out, graph = torch.ones(70), torch.zeros(70), HostGraph()
    with host_graph(graph):
        tuned_kernel[lambda meta: (triton.cdiv(70, meta["BLOCK"]),)](x, out, 70)
    (node,) = launches(graph)
    assert node.launch.grid == (5,)
    graph.replay()
    assert torch.equal(out, x)


def test_heuristics_and_tuples() -> None:
    x, graph = torch.randn(16), HostGraph()
    with host_graph(graph):
        out, more = torch.empty(16), torch.empty(16)
        heuristic_kernel[(1,)](x, out, 16)
        pair_kernel[(1,)]((out, more), 16)
    x.normal_()
    graph.replay()
    assert torch.equal(more, x * 3 + 1)
    assert [p.argument for p in launches(graph)[1].launch.pointers] == ["pair[0]", "pair[1]"]


def test_a_tensor_seen_as_another_dtype() -> None:
    x, graph = torch.zeros(16, dtype=torch.int8), HostGraph()
    with host_graph(graph):
        heuristic_kernel[(1,)](triton.reinterpret(torch.full((16,), 5, dtype=torch.int8), tl.uint8), x, 16)
    graph.replay()
    assert torch.equal(x, torch.full((16,), 15, dtype=torch.int8))
    assert [p.argument for p in launches(graph)[0].launch.pointers] == ["x_ptr", "out_ptr"]


# -- damage ------------------------------------------------------------------------------------------------------------


def test_stores_outside_the_arguments_are_dropped_at_capture_and_made_at_replay() -> None:
    index = torch.tensor([0, 1, 2, 3, 4, 5])
    graph = HostGraph()
    with host_graph(graph):
        out = torch.zeros(4)
        fill_kernel[(1,)](out, index, 9.0, 6, BLOCK=8)
    beyond = host_allocator().arena.view(out.data_ptr() + 16, out.data_ptr() + 24)
    beyond[:] = 0
    assert out.tolist() == [9.0] * 4
    graph.replay()
    assert out.tolist() == [9.0] * 4
    assert beyond.view("float32").tolist() == [9.0, 9.0]


def test_addresses_that_mean_nothing_yet_are_not_followed_at_capture() -> None:
    index = torch.full((8,), 1 << 60)
    out, graph = torch.zeros(4), HostGraph()
    with host_graph(graph):
        gathered = torch.empty(8)
        fill_kernel[(1,)](out, index, 9.0, 8, BLOCK=8)
        add_kernel[(1,)](out, out, gathered, 1 << 30, BLOCK=1 << 20)  # loads far outside, too
    index.copy_(torch.arange(8) % 4)
    launches(graph)
    assert out.tolist() == [0.0] * 4


# -- lifetimes and patches ---------------------------------------------------------------------------------------------


def test_the_interpreter_keeps_no_captured_tensor_alive() -> None:
    def blocks() -> int:
        run_deferred()
        return sum(b.role is Role.POOL and b.nbytes == 4 * 12345 for b in host_allocator().ledger)

    gc.collect()
    gc.disable()
    try:
        before, graph = blocks(), HostGraph()
        with host_graph(graph):
            x = torch.ones(12345)
            add_kernel[(13,)](x, x, x, 12345, BLOCK=1024)
            host_descriptors(torch.ones(6, 20), torch.ones(6, 20))
            heuristic_kernel[(1,)](triton.reinterpret(torch.ones(12345), tl.float32), x, 16)
        graph.replay()
        assert blocks() == before + 1
        del x
        assert blocks() == before, "somebody waits for the garbage collector"
        graph.replay()
    finally:
        gc.enable()


def test_a_freed_input_of_a_launch_is_named() -> None:
    x, graph = torch.ones(16), HostGraph()
    with host_graph(graph):
        host_descriptors(torch.ones(6, 20), torch.ones(6, 20))
        heuristic_kernel[(1,)](x, torch.empty(16), 16)
    graph.replay()
    del x
    with pytest.raises(
        FreedInputError, match=r"float32\[16\] read by node \d \(heuristic_kernel\) at .*test_triton_host"
    ):
        graph.replay()


def test_the_patches_are_gone_after_a_capture_and_eager_launches_work_as_before() -> None:
    owners: tuple[Any, ...] = (interpreter.GridExecutor, interpreter.InterpreterBuilder, autotuner.Autotuner)
    before = [dict(vars(owner)) for owner in owners]
    x, graph = torch.ones(16), HostGraph()
    with host_graph(graph):
        assert [dict(vars(owner)) for owner in owners] != before
        out = torch.empty(16)
        heuristic_kernel[(1,)](x, out, 16)
    assert [dict(vars(owner)) for owner in owners] == before
    heuristic_kernel[(1,)](x * 2, out, 16)
    assert torch.equal(out, x * 6)
    graph.replay()
    assert torch.equal(out, x * 3)


def test_an_error_in_a_kernel_reaches_the_program_and_ends_the_capture() -> None:
    graph = HostGraph()
    with pytest.raises(Exception, match="add_kernel"), host_graph(graph):
        add_kernel[(1,)](torch.ones(3), n=3, BLOCK=4)
    with host_graph(graph):
        y = torch.ones(2)
    graph.replay()
    assert torch.equal(y, torch.ones(2))
