"""What listeners are told of Triton launches: every store with its program, addresses and values, in order."""

# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from shadowgraph.graphs.events import Listener, listeners
from shadowgraph.graphs.host.graph import HostGraph, host_graph
from shadowgraph.graphs.triton import host as triton_host
from shadowgraph.model.graphs import Graph, Launch, Node
from shadowgraph.model.ranges import ByteRange
from shadowgraph.tracking.stores import Store, StoreLog

pytestmark = pytest.mark.filterwarnings("ignore:Conversion of an array")


@triton.jit
def count_kernel(out_ptr, n, step, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + at * step, at, mask=at < n)


@triton.jit
def corner_kernel(out_ptr, value, M: tl.constexpr, N: tl.constexpr):
    rows, columns = tl.arange(0, M)[:, None], tl.arange(0, N)[None, :]
    tl.store(out_ptr + rows * 8 + columns, (rows * 10 + columns).to(out_ptr.dtype.element_ty), mask=rows + columns < 3)
    tl.store(out_ptr + 63, value)


@triton.jit
def atomics_kernel(sum_ptr, old_ptr, flag_ptr):
    i = tl.program_id(0)
    tl.atomic_add(sum_ptr, i + 1)
    tl.atomic_xchg(old_ptr, i + 20)
    tl.atomic_cas(flag_ptr, 0, i + 7)


@triton.jit
def repeated_kernel(out_ptr, N: tl.constexpr):
    at = tl.arange(0, N)
    tl.atomic_add(out_ptr + at // 4, at, mask=at != 3)


@triton.jit
def descriptor_kernel(target, BM: tl.constexpr, BN: tl.constexpr):
    target.store([tl.program_id(0) * BM, 0], tl.full((BM, BN), 4.0, tl.float32))


@triton.jit
def block_kernel(out_ptr, N, BLOCK: tl.constexpr):
    target = tl.make_block_ptr(out_ptr, (N,), (1,), (tl.program_id(0) * BLOCK,), (BLOCK,), (0,))
    tl.store(target, tl.full((BLOCK,), 2.0, tl.float32), boundary_check=(0,))


@triton.jit
def failing_kernel(out_ptr):
    tl.store(out_ptr, 1.0)
    tl.undefined_operation(out_ptr)


class Notes(Listener):
    """Stores of the replayed nodes, and eager launches."""

    def __init__(self) -> None:
        self.nodes: list[tuple[str, StoreLog | None]] = []
        self.launches: list[tuple[Launch, StoreLog | None]] = []

    def node_ran(self, graph: Graph, node: Node, stores: StoreLog | None) -> None:
        self.nodes.append((node.launch.name, stores))

    def launch_ran(self, launch: Launch, stores: StoreLog | None) -> None:
        self.launches.append((launch, stores))


@contextmanager
def noting() -> Iterator[Notes]:
    notes = Notes()
    listeners.append(notes)
    try:
        yield notes
    finally:
        listeners.remove(notes)


def replayed(graph: HostGraph) -> StoreLog:
    """The store log of the only launch of a graph, from a watched replay."""
    with noting() as notes:
        graph.replay()
    logs = [log for name, log in notes.nodes if not name.startswith("aten.")]
    assert len(logs) == 1
    assert all(log is None for name, log in notes.nodes if name.startswith("aten."))
    assert logs[0] is not None
    return logs[0]


def facts(log: StoreLog, origin: torch.Tensor) -> list[tuple[int, list[int], list[float]]]:
    """Each store as its first program index, byte offsets and values."""
    base = origin.data_ptr()
    return [(s.program[0], [int(a) - base for a in s.addresses.ravel()], s.values.ravel().tolist()) for s in log.stores]


def test_masked_stores_note_their_active_lanes_only() -> None:
    out, graph = torch.zeros(16, dtype=torch.int64), HostGraph()
    with host_graph(graph):
        count_kernel[(3,)](out, 6, 2, BLOCK=4)
    log = replayed(graph)
    assert facts(log, out) == [(0, [0, 16, 32, 48], [0, 1, 2, 3]), (1, [64, 80], [4, 5])]
    assert [store.program for store in log.stores] == [(0, 0, 0), (1, 0, 0)]
    assert {store.itemsize for store in log.stores} == {8}
    assert not any(store.atomic for store in log.stores)
    start = out.data_ptr()
    assert list(log.ranges) == [ByteRange(start + 16 * i, start + 16 * i + 8) for i in range(6)]
    found = log.within(ByteRange(start + 36, start + 70))
    assert [(s.program[0], s.values.tolist()) for s in found] == [(0, [2, 3]), (1, [4])], (
        "a store cut by an edge counts"
    )
    assert log.within(ByteRange(start + 8, start + 16)) == []


@pytest.mark.parametrize("dtype", [torch.float32, torch.int8, torch.float64, torch.int16])
def test_two_dimensional_and_scalar_stores(dtype: torch.dtype) -> None:
    out, graph = torch.zeros(64, dtype=dtype), HostGraph()
    with host_graph(graph):
        corner_kernel[(1,)](out, 5, 4, 4)
    log = replayed(graph)
    size = dtype.itemsize
    assert facts(log, out) == [
        (0, [size * i for i in (0, 1, 2, 8, 9, 16)], [0, 1, 2, 10, 11, 20]),
        (0, [size * 63], [5]),
    ]
    assert log.ranges.nbytes == 7 * size
    written = torch.zeros(64, dtype=dtype)
    for store in log.stores:
        at = (store.addresses.astype(np.int64) - out.data_ptr()) // size
        written[torch.from_numpy(at)] = torch.from_numpy(store.values.copy()).to(dtype)
    assert torch.equal(written, out)


def test_bfloat16_stores_are_noted_as_the_bits_that_were_stored() -> None:
    out, graph = torch.zeros(64, dtype=torch.bfloat16), HostGraph()
    with host_graph(graph):
        corner_kernel[(1,)](out, 5.0, 4, 4)
    log = replayed(graph)
    assert [store.itemsize for store in log.stores] == [2, 2]
    bits = np.concatenate([store.values.ravel() for store in log.stores]).view(np.int16)
    assert torch.equal(torch.from_numpy(bits), out.view(torch.int16)[[0, 1, 2, 8, 9, 16, 63]])
    assert out[63] == 5


def test_atomics_are_noted_with_what_they_left_in_memory() -> None:
    cells, graph = torch.zeros(3, dtype=torch.int32), HostGraph()
    cells[0] = 100
    with host_graph(graph):
        atomics_kernel[(3,)](cells, cells[1:], cells[2:])
    log = replayed(graph)
    assert facts(log, cells) == [
        (0, [0], [101]), (0, [4], [20]), (0, [8], [7]),
        (1, [0], [103]), (1, [4], [21]),  # the compare of the second program fails: it stores nothing
        (2, [0], [106]), (2, [4], [22]),
    ]  # fmt: skip
    assert cells.tolist() == [106, 22, 7]
    assert all(store.atomic for store in log.stores)


def test_lanes_that_meet_in_one_address() -> None:
    out, graph = torch.zeros(2, dtype=torch.int32), HostGraph()
    with host_graph(graph):
        repeated_kernel[(1,)](out, 8)
    log = replayed(graph)
    assert facts(log, out) == [(0, [0, 0, 0, 4, 4, 4, 4], [3, 3, 3, 22, 22, 22, 22])]
    assert list(log.ranges) == [ByteRange(out.data_ptr(), out.data_ptr() + 8)]


def test_block_pointers_and_descriptors_note_what_their_bounds_let_through() -> None:
    flat, square, one, two = torch.zeros(10), torch.zeros(6, 8), HostGraph(), HostGraph()
    with host_graph(one):
        block_kernel[(2,)](flat, 10, BLOCK=8)
    log = replayed(one)
    assert facts(log, flat) == [(0, [4 * i for i in range(8)], [2.0] * 8), (1, [32, 36], [2.0] * 2)]
    with host_graph(two):
        descriptor_kernel[(2,)](TensorDescriptor(square, [6, 8], [8, 1], [4, 8]), 4, 8)
    log = replayed(two)
    assert [len(store.addresses) for store in log.stores] == [32, 16]
    assert list(log.ranges) == [ByteRange(square.data_ptr(), square.data_ptr() + 6 * 8 * 4)]


def test_stores_past_the_end_are_noted_where_they_went() -> None:
    graph = HostGraph()
    with host_graph(graph):
        out = torch.empty(5, dtype=torch.int32)
        count_kernel[(2,)](out, 7, 1, BLOCK=4)
    log = replayed(graph)
    (past,) = log.within(ByteRange(out.data_ptr() + 20, out.data_ptr() + 512))
    assert (past.program, past.values.tolist()) == ((1, 0, 0), [5, 6])
    assert (past.start, past.stop) == (out.data_ptr() + 20, out.data_ptr() + 28)


def test_an_unwatched_replay_notes_nothing_and_a_capture_is_no_launch() -> None:
    out, graph = torch.zeros(16, dtype=torch.int64), HostGraph()
    with noting() as notes:
        with host_graph(graph):
            count_kernel[(3,)](out, 6, 2, BLOCK=4)
        assert (notes.nodes, notes.launches) == ([], [])
    graph.replay()
    assert notes.nodes == []
    assert out.sum().item() == 15


def test_eager_launches_are_told_with_their_grid_while_the_hooks_are_installed() -> None:
    out = torch.zeros(16, dtype=torch.int64)
    triton_host.install()
    try:
        with noting() as notes:
            count_kernel[lambda meta: (triton.cdiv(6, meta["BLOCK"]),)](out, 6, 2, BLOCK=4)
    finally:
        triton_host.uninstall()
    ((launch, log),) = notes.launches
    assert (launch.name, launch.grid) == ("count_kernel", (2,))
    assert launch.stack[0].function == "test_eager_launches_are_told_with_their_grid_while_the_hooks_are_installed"
    assert log is not None
    assert [(s.program[0], s.values.tolist()) for s in log.stores] == [(0, [0, 1, 2, 3]), (1, [4, 5])]
    assert out.sum().item() == 15


def test_what_a_kernel_stored_before_it_failed_is_told() -> None:
    out = torch.zeros(4)
    triton_host.install()
    try:
        with noting() as notes, pytest.raises(Exception, match="undefined_operation"):
            failing_kernel[(1,)](out)
    finally:
        triton_host.uninstall()
    ((launch, log),) = notes.launches
    assert launch.name == "failing_kernel"
    assert log is not None
    assert facts(log, out) == [(0, [0], [1.0])]


def test_a_store_log_of_its_own() -> None:
    log = StoreLog()
    log.add((0, 0, 0), np.array([], dtype=np.uint64), np.array([], dtype=np.int8), 1)
    assert log.stores == []
    assert not log.ranges
    log.add((0, 0, 0), np.array([100, 104], dtype=np.uint64), np.array([1, 2], dtype=np.int32), 4)
    log.add((1, 0, 0), np.array([108, 120], dtype=np.uint64), np.array([3, 4], dtype=np.int8), 1)
    assert list(log.ranges) == [ByteRange(100, 109), ByteRange(120, 121)]
    assert isinstance(log.stores[0], Store)
    assert (log.stores[1].start, log.stores[1].stop) == (108, 121)
