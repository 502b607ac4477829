"""The nodes of real CUDA graphs: kinds, kernels, arguments, edges, and the launch or line that made each."""

from __future__ import annotations

import inspect
import sys
from importlib.util import find_spec
from typing import Any

import pytest
import torch
from helpers_cuda import capture, captured, fill, guarded, warm_kernels

import shadowgraph as sg
from shadowgraph.debugger import model_of
from shadowgraph.model.device_nodes import DeviceNode, NodeKind, Sureness

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def warm() -> None:
    warm_kernels()


@pytest.fixture
def watching() -> Any:
    with sg.debug(backend="cuda", layout="isolate") as debugger:
        yield debugger


def nodes_of(graph: torch.cuda.CUDAGraph) -> tuple[DeviceNode, ...]:
    model = model_of(graph)
    assert model is not None
    nodes = model.device_nodes
    assert model.unread == ""
    return nodes


def made_by(graph: torch.cuda.CUDAGraph, node: DeviceNode) -> tuple[str, int]:
    """Name of the launch, and the line in this file."""
    model = model_of(graph)
    assert model is not None
    launch = model.launch_of(node)
    stack = launch.stack if launch is not None else node.stack
    (line, *_) = [frame.line for frame in stack if frame.file == __file__] or [0]
    return (launch.name if launch is not None else ""), line


def test_every_node_of_a_long_chain(watching: Any) -> None:
    buffers = [guarded(watching, 1024) for _ in range(64)]

    def body() -> None:
        for buffer in buffers:
            buffer.add_(1)
        fill(buffers[7])
        for buffer in buffers:
            buffer.mul_(2)

    first = inspect.getsourcelines(body)[1]
    graph, _ = captured(body)
    nodes = nodes_of(graph)
    assert [node.after for node in nodes] == [(), *((i,) for i in range(128))]
    assert {node.kind for node in nodes} == {NodeKind.KERNEL}
    assert [made_by(graph, node) for node in nodes[:64]] == [("aten.add_.Tensor", first + 2)] * 64
    assert made_by(graph, nodes[64])[0] == "put"
    assert [made_by(graph, node) for node in nodes[65:]] == [("aten.mul_.Tensor", first + 5)] * 64
    assert "vectorized_elementwise_kernel<" in nodes[0].name, "demangled"
    assert (nodes[64].name, nodes[64].grid) == ("put", (1, 1, 1))
    for buffer, node in zip(buffers, nodes, strict=False):
        assert {word.address for word in node.words} == {buffer.data_ptr()}
        assert {word.name for word in node.words} == {"self"}
    (word,) = nodes[64].words
    assert (word.argument, word.name, word.address, word.sureness) == (
        0,
        "target",
        buffers[7].data_ptr(),
        Sureness.HIGH,
    )


def test_copies_and_sets_have_exact_ranges(watching: Any) -> None:
    table = guarded(watching, 64)

    def body() -> torch.Tensor:
        twin = torch.empty_like(table)
        twin.copy_(table)
        return twin

    graph, twin = captured(body)
    (node,) = nodes_of(graph)
    assert node.kind is NodeKind.MEMCPY
    assert [(r.start, r.nbytes) for r in node.writes] == [(twin.data_ptr(), 256)]
    assert [(r.start, r.nbytes) for r in node.reads] == [(table.data_ptr(), 256)]
    assert node.name == "memcpy device to device, 256 bytes"


def test_branches_of_a_forked_capture(watching: Any) -> None:
    left, right = guarded(watching, 64), guarded(watching, 64)
    side = torch.cuda.Stream()

    def body() -> None:
        left.add_(1)
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            right.add_(2)
        left.add_(3)
        torch.cuda.current_stream().wait_stream(side)
        left.add_(right)

    graph, _ = capture(body)
    nodes = nodes_of(graph)
    assert [node.after for node in nodes] == [(), (0,), (0,), (1, 2)]
    first = inspect.getsourcelines(body)[1]
    assert [made_by(graph, node)[1] - first for node in nodes] == [1, 4, 5, 7]


def test_a_launch_on_another_stream_is_not_laid_on_the_next(watching: Any) -> None:
    """It is not joined when the next operator ends; nobody saw it, or the call that made it."""
    cp = pytest.importorskip("cupy")
    kernel = cp.RawKernel('extern "C" __global__ void one(int* p) { p[threadIdx.x] = 1; }', "one")
    kernel.compile()
    table, other = guarded(watching, 64), guarded(watching, 64)
    side = torch.cuda.Stream()

    def body() -> None:
        table.add_(1)
        side.wait_stream(torch.cuda.current_stream())
        kernel((1,), (64,), (cp.uint64(other.data_ptr()),), stream=cp.cuda.Stream.from_external(side))
        table.mul_(2)
        torch.cuda.current_stream().wait_stream(side)
        table.sub_(3)

    graph, _ = capture(body)
    made = [made_by(graph, node)[0] for node in nodes_of(graph)]
    assert [node.name for node in nodes_of(graph)][1] == "one"
    assert made == ["aten.add_.Tensor", "", "aten.mul_.Tensor", "aten.sub_.Tensor"]


def test_launches_inside_a_custom_operator_are_of_what_its_body_calls(watching: Any) -> None:
    table = guarded(watching, 64)

    @torch.library.custom_op("shadowgraph_test::mixed", mutates_args={"x"})
    def mixed(x: torch.Tensor) -> None:
        x.add_(1)
        fill(x)
        x.mul_(2)

    mixed(table)
    graph, _ = capture(lambda: mixed(table))
    nodes = nodes_of(graph)
    assert [made_by(graph, node)[0] for node in nodes] == ["aten.add_.Tensor", "put", "aten.mul_.Tensor"]


def test_a_kernel_of_a_backward_that_autograds_thread_runs(watching: Any) -> None:
    table = guarded(watching, 64)

    class Doubled(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
            fill(table)
            return grad * 2

    x = torch.ones(8, device="cuda", requires_grad=True)

    def body() -> torch.Tensor:
        (grad,) = torch.autograd.grad(Doubled.apply(x).sum(), x)
        return grad

    graph, kept = captured(body)
    made = {node.name.split("(")[0]: made_by(graph, node)[0] for node in nodes_of(graph)}
    assert made["put"] == "put", made
    del kept


def test_one_operator_with_several_kernels(watching: Any) -> None:
    keys = torch.rand(1 << 16, device="cuda")
    graph, kept = captured(lambda: (keys.sort(), keys.add(1)))
    nodes = nodes_of(graph)
    names = [made_by(graph, node)[0] for node in nodes]
    assert len(nodes) > 3
    assert names == ["aten.sort.default"] * (len(nodes) - 1) + ["aten.add.Tensor"]
    del kept


def test_what_python_launches_past_the_dispatcher(watching: Any) -> None:
    cp = pytest.importorskip("cupy")
    code = 'extern "C" __global__ void one(int* p, long long n) { if (threadIdx.x < n) p[threadIdx.x] = 1; }'
    kernel = cp.RawKernel(code, "one")
    kernel.compile()
    table = guarded(watching, 64)

    def body() -> None:
        table.add_(1)
        with cp.cuda.Stream.from_external(torch.cuda.current_stream()):
            kernel((1,), (64,), (cp.uint64(table.data_ptr()), cp.int64(64)))
        table.mul_(2)

    first = inspect.getsourcelines(body)[1]
    graph, _ = captured(body)
    nodes = nodes_of(graph)
    assert [node.name for node in nodes][1] == "one"
    assert nodes[1].launch is None
    assert made_by(graph, nodes[1]) == ("", first + 3)
    assert [made_by(graph, node)[0] for node in nodes] == ["aten.add_.Tensor", "", "aten.mul_.Tensor"]
    (word,) = nodes[1].words
    assert word.address == table.data_ptr()


def test_libraries_in_one_capture(watching: Any, record_property: Any) -> None:
    """cuBLAS, attention, Triton, cupy, compiled code: every node has a line of the program."""
    cp = pytest.importorskip("cupy")
    kernel = cp.RawKernel('extern "C" __global__ void one(int* p) { p[threadIdx.x] = 1; }', "one")
    kernel.compile()
    x = torch.randn(256, 256, device="cuda", dtype=torch.bfloat16)
    table = guarded(watching, 64)
    compiled = torch.compile(lambda a: torch.relu(a + 1) * 2)
    decode = _flashinfer_decode()

    def body() -> list[Any]:
        product = x @ x
        four = product.view(1, 4, 64, 256)
        attended = torch.nn.functional.scaled_dot_product_attention(four, four, four)
        fill(table)
        with cp.cuda.Stream.from_external(torch.cuda.current_stream()):
            kernel((1,), (64,), (cp.uint64(table.data_ptr()),))
        return [product, attended, compiled(product), decode()]

    graph, kept = captured(body)
    nodes = nodes_of(graph)
    names = " ".join(node.name for node in nodes)
    for part in ("nvjet", "put", "one", "triton_", *(("BatchDecode",) if find_spec("flashinfer") else ())):
        assert part in names, names
    lines = [made_by(graph, node)[1] for node in nodes]
    assert 0 not in lines, [(node.name[:60], line) for node, line in zip(nodes, lines, strict=True)]
    kernels = [node for node in nodes if node.kind is NodeKind.KERNEL]
    assert all(not node.note for node in nodes)
    decoded = [node for node in kernels if node.words]
    words = [word for node in kernels for word in node.words]
    record_property("nodes", len(nodes))
    record_property("kernels with decoded pointers", f"{len(decoded)} of {len(kernels)}")
    record_property("pointers", len(words))
    record_property("pointers by sureness", {str(s): sum(word.sureness is s for word in words) for s in Sureness})
    assert decoded == kernels
    del kept


def _flashinfer_decode() -> Any:
    if find_spec("flashinfer") is None:
        return lambda: None
    import flashinfer

    dtype, device = torch.bfloat16, "cuda"
    workspace = torch.empty(128 << 20, dtype=torch.uint8, device=device)
    indptr = torch.tensor([0, 4, 8], dtype=torch.int32, device=device)
    indices = torch.arange(8, dtype=torch.int32, device=device)
    last = torch.ones(2, dtype=torch.int32, device=device)
    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(
        workspace, use_cuda_graph=True, paged_kv_indptr_buffer=indptr.clone(), paged_kv_indices_buffer=indices.clone(),
        paged_kv_last_page_len_buffer=last.clone(),
    )  # fmt: skip
    wrapper.plan(indptr, indices, last, 8, 8, 128, 1, data_type=dtype, q_data_type=dtype)
    query, kv = (
        torch.randn(2, 8, 128, dtype=dtype, device=device),
        torch.randn(8, 2, 1, 8, 128, dtype=dtype, device=device),
    )
    return lambda: wrapper.run(query, kv)


def test_a_graph_made_before_is_not_read() -> None:
    early = torch.cuda.CUDAGraph()
    table = torch.zeros(64, device="cuda")
    with sg.debug(backend="cuda") as debugger:
        with torch.cuda.graph(early):
            table.add_(1)
        model = model_of(early)
        assert model is not None
        assert [node.name for node in model.device_nodes] == ["aten.add_.Tensor"], "as its launches"
        assert "before shadowgraph was on" in model.unread
        early.replay()
        assert debugger.check() == ()
    assert table[0].item() == 1


def test_a_graph_that_is_gone_before_anybody_asks(watching: Any) -> None:
    table = guarded(watching, 64)
    graph, _ = captured(lambda: table.add_(1))
    model = model_of(graph)
    assert model is not None
    graph.reset()
    assert len(model.device_nodes) == 1
    assert "gone" in model.unread


def test_the_programs_own_wish_to_keep_the_graph_is_honoured(watching: Any) -> None:
    table = guarded(watching, 64)
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    with torch.cuda.graph(graph):
        table.add_(1)
    with pytest.raises(RuntimeError):
        graph.raw_cuda_graph_exec()  # nobody has made it executable
    assert len(nodes_of(graph)) == 1
    graph.instantiate()
    graph.replay()
    assert table[0].item() == 1


def test_a_graph_works_on_when_nobody_watches_any_more(watching: Any) -> None:
    table = guarded(watching, 64)
    graph, _ = captured(lambda: table.add_(1))
    before = int(table[0])
    watching.stop()
    graph.replay()
    assert int(table[0]) == before + 1
    assert "__init__" not in vars(torch.cuda.CUDAGraph)


def test_nothing_stays_behind_in_the_interpreter(watching: Any) -> None:
    before = [sys.monitoring.get_tool(tool) for tool in range(6)] if sys.version_info >= (3, 12) else []
    table = guarded(watching, 64)
    captured(lambda: table.add_(1))
    assert sys.getprofile() is None
    if sys.version_info >= (3, 12):
        assert [sys.monitoring.get_tool(tool) for tool in range(6)] == before
