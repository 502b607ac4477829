"""SG110 and SG111 on a device: host memory that copy nodes lost, and pinned memory rewritten before its copy ran."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from helpers_cuda import capture, guarded, name_of, only

import shadowgraph as sg
from shadowgraph.model.host_copies import HostKind

pytestmark = pytest.mark.gpu

COUNT, NBYTES = 1024, 4096
SLEEP = 400_000_000  # cycles: some 200 ms, in which the host does all that a test does


class Runner:
    """A runner that keeps its inputs on both sides; its graph reads the one on the device."""

    def __init__(self, debugger: Any, count: int = COUNT) -> None:
        self.pinned = torch.zeros(count, dtype=torch.int32, pin_memory=True)
        self.lens = guarded(debugger, count)
        debugger.name("runner", self)
        self.graph, self.out = capture(lambda: self.lens * 2)
        for _ in range(3):
            self.graph.replay()
        torch.cuda.synchronize()

    def prepare(self, value: int) -> None:
        self.pinned.fill_(value)
        self.lens.copy_(self.pinned, non_blocking=True)


@pytest.fixture
def debugger() -> Iterator[Any]:
    with sg.debug(backend="cuda") as made:
        yield made


def sleep() -> None:
    torch.cuda._sleep(SLEEP)


def silent(debugger: Any) -> bool:
    facts = debugger.report(quiet=True).facts
    assert any(nodes and replays for _, nodes, replays in facts.graphs), "a silence over nothing"
    assert facts.faults == {}
    return facts.findings == () and facts.notes == ()


# -- SG111: copies of host code ----------------------------------------------------------------------------------------


def test_pinned_memory_is_rewritten_at_once(debugger: Any) -> None:
    runner = Runner(debugger)
    sleep()
    began = time.perf_counter()
    runner.prepare(1)
    runner.pinned.fill_(2)
    runner.graph.replay()
    assert time.perf_counter() - began < 0.1, "invalid: something waited for the device"
    torch.cuda.synchronize()
    assert runner.out.unique().tolist() == [4], "invalid: the copy was in time"
    found = only(debugger.check())
    assert (found.code, found.severity, found.confidence) == ("SG111", "error", "high")
    assert (found.phase, found.graph, found.replay) == ("prepare", name_of(runner.graph), 4)
    assert (found.buffer.name, found.buffer.nbytes) == ("runner.pinned", NBYTES)
    assert (found.bytes.first, found.bytes.last, found.bytes.count) == (0, NBYTES - 4, COUNT)
    assert (found.culprit.name, found.culprit.status) == ("aten.fill_.Scalar", "confirmed")
    assert found.culprit.file.endswith("test_host_memory_cuda.py")
    assert (found.detail.target.name, found.detail.node) == ("runner.lens", None)
    assert found.detail.copied_at[0].function == "prepare"
    assert found.reader.node == 0
    assert debugger.facts().faults == {}


def test_numpy_rewrites_a_part(debugger: Any) -> None:
    runner = Runner(debugger)
    array = runner.pinned.numpy()
    sleep()
    runner.prepare(1)
    array[5:7] = 2
    runner.graph.replay()
    torch.cuda.synchronize()
    assert runner.out.tolist().count(4) == 2, "invalid: the copy was in time"
    found = only(debugger.check())
    assert (found.code, found.severity, found.confidence) == ("SG111", "error", "medium")
    assert (found.bytes.first, found.bytes.count, found.culprit.name) == (20, 2, None)


@pytest.mark.parametrize("way", ["to", "foreach", "slice", "converted", "large"])
def test_other_copies(debugger: Any, way: str) -> None:
    runner = Runner(debugger, 1 << 20 if way == "large" else COUNT)
    pinned, lens = runner.pinned, runner.lens
    kept: list[torch.Tensor] = []
    if way == "converted":
        pinned = torch.zeros(COUNT, dtype=torch.int64, pin_memory=True)
        pinned.to("cuda", non_blocking=True).to(torch.int32)  # loads what the copy runs
        lens.copy_(pinned, non_blocking=True)
    torch.cuda.synchronize()
    assert debugger.check() == ()
    sleep()
    if way == "to":
        kept.append(pinned.to("cuda", non_blocking=True))
    elif way == "foreach":
        torch._foreach_copy_([lens], [pinned], non_blocking=True)
    elif way == "slice":
        lens[:8].copy_(pinned[:8], non_blocking=True)
    else:
        lens.copy_(pinned, non_blocking=True)
    pinned[0] = 7
    arrived = kept[0] if kept else lens
    assert arrived[0].item() == 7, "invalid: the copy was in time"
    found = only(debugger.check())
    assert (found.code, found.bytes.first, found.culprit.name) == ("SG111", 0, "aten.copy_.default")
    assert found.bytes.count == (8 if way == "converted" else 1)  # elements that a copy converts count whole
    assert found.detail.compared <= 64 << 10


@pytest.mark.parametrize("waits", ["event", "query", "stream", "device", "blocking"])
def test_fixed_twins(debugger: Any, waits: str) -> None:
    runner, event = Runner(debugger), torch.cuda.Event()
    for step in range(4):
        sleep()
        runner.pinned.fill_(step)
        runner.lens.copy_(runner.pinned, non_blocking=waits != "blocking")
        event.record()
        if waits == "event":
            event.synchronize()
        elif waits == "stream":
            torch.cuda.current_stream().synchronize()
        elif waits == "device":
            torch.cuda.synchronize()
        while waits == "query" and not event.query():
            time.sleep(1e-3)
        runner.pinned.fill_(100)
        runner.pinned.numpy()[:] = 200
        runner.graph.replay()
        assert runner.out.unique().tolist() == [2 * step]
    assert silent(debugger)


def test_two_buffers_in_turns(debugger: Any) -> None:
    runner = Runner(debugger)
    pinned = [torch.zeros(COUNT, dtype=torch.int32, pin_memory=True) for _ in range(2)]
    events = [torch.cuda.Event() for _ in range(2)]
    for step in range(8):
        torch.cuda._sleep(SLEEP // 10)
        turn = step % 2
        events[turn].synchronize()
        pinned[turn].numpy()[:] = step
        runner.lens.copy_(pinned[turn], non_blocking=True)
        events[turn].record()
        runner.graph.replay()
    torch.cuda.synchronize()
    assert runner.out.unique().tolist() == [14]
    assert silent(debugger)


def test_a_kernel_behind_the_copy_writes_the_target(debugger: Any) -> None:
    runner = Runner(debugger)
    for step in range(4):
        torch.cuda._sleep(SLEEP // 10)
        runner.prepare(step)
        runner.lens.add_(1)
        runner.graph.replay()
        torch.cuda.synchronize()
    assert runner.out.unique().tolist() == [8]
    assert silent(debugger)


def test_pageable_memory_is_staged(debugger: Any) -> None:
    runner = Runner(debugger)
    pageable = torch.zeros(COUNT, dtype=torch.int32)
    for step in range(3):
        torch.cuda._sleep(SLEEP // 10)
        pageable.fill_(step)
        runner.lens.copy_(pageable, non_blocking=True)
        pageable.fill_(99)
        runner.graph.replay()
    torch.cuda.synchronize()
    assert runner.out.unique().tolist() == [4], "invalid: it was not staged"
    assert silent(debugger)


def test_out_to_pinned_memory_and_in_again(debugger: Any) -> None:
    """In order with one stream, while the host sees the bytes late."""
    runner = Runner(debugger)
    for step in range(3):
        made = torch.full((COUNT,), step + 1, dtype=torch.int32, device="cuda")
        torch.cuda._sleep(SLEEP // 10)
        runner.pinned.copy_(made, non_blocking=True)
        runner.lens.copy_(runner.pinned, non_blocking=True)
        runner.graph.replay()
    torch.cuda.synchronize()
    assert runner.out.unique().tolist() == [6]
    assert silent(debugger)


# -- SG111: copies in a graph ------------------------------------------------------------------------------------------


class Captured:
    """A graph that copies its input from pinned memory itself."""

    def __init__(self, debugger: Any, then: Callable[[torch.Tensor], Any] = lambda lens: lens * 2) -> None:
        self.pinned = torch.zeros(COUNT, dtype=torch.int32, pin_memory=True)
        self.lens = guarded(debugger, COUNT)
        debugger.name("runner", self)
        self.graph, self.out = capture(lambda: then(self.lens.copy_(self.pinned, non_blocking=True)))
        for _ in range(3):
            self.graph.replay()
        torch.cuda.synchronize()


def test_the_source_of_a_node_is_rewritten_while_its_replay_is_queued(debugger: Any) -> None:
    runner = Captured(debugger)
    runner.pinned.fill_(1)
    sleep()
    runner.graph.replay()
    runner.pinned.fill_(2)
    torch.cuda.synchronize()
    assert runner.out.unique().tolist() == [4], "invalid: the node copied in time"
    found = only(debugger.check())
    assert (found.code, found.severity, found.phase) == ("SG111", "error", "replay")
    assert (found.graph, found.replay) == (name_of(runner.graph), 4)
    assert (found.buffer.name, found.bytes.count) == ("runner.pinned", COUNT)
    assert (found.culprit.name, found.culprit.status) == ("aten.fill_.Scalar", "confirmed")
    assert (found.detail.copy, found.detail.node) == ("aten.copy_.default", 0)
    assert found.detail.target.name == "runner.lens"
    assert debugger.facts().faults == {}


def test_a_node_in_good_order(debugger: Any) -> None:
    runner = Captured(debugger)
    for step in range(6):
        runner.pinned.fill_(step)
        torch.cuda._sleep(SLEEP // 10)
        runner.graph.replay()
        torch.cuda.synchronize()
        runner.pinned.numpy()[:] = 50
        assert runner.out.unique().tolist() == [2 * step]
    assert silent(debugger)


def test_positions_that_the_graph_counts_on_itself(debugger: Any) -> None:
    runner = Captured(debugger, lambda lens: lens.add_(1))
    for step in range(6):
        runner.pinned.fill_(step)
        runner.graph.replay()
        torch.cuda.synchronize()
    assert runner.lens.unique().tolist() == [6]
    assert silent(debugger)


# -- SG110 -------------------------------------------------------------------------------------------------------------


def graph_of_copy(sides: Callable[[], tuple[torch.Tensor, torch.Tensor]]) -> torch.cuda.CUDAGraph:
    """A graph that copies to the first from the second; nothing here keeps them."""

    def body() -> None:
        target, source = sides()
        target.copy_(source, non_blocking=True)

    return capture(body)[0]


def pinned_again(address: int) -> torch.Tensor:
    """Another pinned tensor on the block at an address."""
    kept = []
    for _ in range(64):
        kept.append(torch.full((COUNT,), 7, dtype=torch.int32, pin_memory=True))
        if kept[-1].data_ptr() == address:
            return kept[-1]
    raise AssertionError("invalid: this torch does not hand the block out again")


@pytest.mark.parametrize("before", [0, 2], ids=["never replayed", "replayed"])
def test_a_pinned_tensor_is_freed_and_another_takes_its_block(debugger: Any, before: int) -> None:
    runner = Captured.__new__(Captured)
    runner.pinned = torch.ones(COUNT, dtype=torch.int32, pin_memory=True)
    runner.lens = guarded(debugger, COUNT)
    debugger.name("runner", runner)
    graph = graph_of_copy(lambda: (runner.lens, runner.pinned))
    for _ in range(before):
        graph.replay()
    torch.cuda.synchronize()
    assert debugger.check() == ()
    address = runner.pinned.data_ptr()
    del runner.pinned
    victim = pinned_again(address)
    graph.replay()
    graph.replay()
    torch.cuda.synchronize()
    assert runner.lens.unique().tolist() == [7], "invalid: the node read the old values"
    found = only(debugger.check())
    assert (found.code, found.severity, found.confidence) == ("SG110", "error", "high")
    assert (found.phase, found.graph, found.replay) == ("replay", name_of(graph), before + 1)
    assert (found.buffer.address, found.buffer.nbytes, found.buffer.dtype) == (address, NBYTES, "int32")
    assert found.buffer.allocated[0].file.endswith("test_host_memory_cuda.py")
    assert (found.culprit.name, found.culprit.node, found.culprit.status) == ("aten.copy_.default", 0, "confirmed")
    assert found.culprit.file.endswith("test_host_memory_cuda.py")
    assert (found.detail.fate, found.detail.pinned, found.detail.to_host) == ("freed", True, False)
    assert found.detail.device.name == "runner.lens"
    assert [each.address for each in found.detail.victims] == [victim.data_ptr()]
    assert debugger.facts().faults == {}


def test_fixed_twin_keeps_the_pinned_tensor(debugger: Any) -> None:
    runner = Captured(debugger)
    for step in range(4):
        runner.pinned.fill_(step)
        torch.ones(COUNT, dtype=torch.int32, pin_memory=True)
        runner.graph.replay()
        torch.cuda.synchronize()
    assert runner.out.unique().tolist() == [6]
    assert silent(debugger)


def test_a_graph_writes_pinned_memory_that_is_gone(debugger: Any) -> None:
    source, held = guarded(debugger, COUNT), [torch.zeros(COUNT, dtype=torch.int32, pin_memory=True)]
    address = held[0].data_ptr()
    graph = graph_of_copy(lambda: (held[0], source))
    graph.replay()
    torch.cuda.synchronize()
    held.clear()
    victim = pinned_again(address)
    graph.replay()
    torch.cuda.synchronize()
    assert victim.unique().tolist() == [0], "invalid: the victim was not overwritten"
    found = only(debugger.check())
    assert (found.code, found.replay, found.detail.to_host) == ("SG110", 2, True)
    assert found.detail.victims[0].address == address


def test_pinned_memory_from_inside_the_capture_is_kept_by_torch(debugger: Any) -> None:
    lens = guarded(debugger, COUNT)
    try:
        graph = graph_of_copy(lambda: (lens, torch.ones(COUNT, dtype=torch.int32, pin_memory=True)))
    except RuntimeError as error:
        pytest.skip(f"this torch refuses that: {error}")
    for _ in range(3):
        torch.full((COUNT,), 5, dtype=torch.int32, pin_memory=True)
        graph.replay()
    torch.cuda.synchronize()
    assert lens.unique().tolist() == [1], "invalid: this torch does not keep it"
    assert silent(debugger)


@pytest.fixture
def runtime() -> Any:
    return pytest.importorskip("cupy").cuda.runtime


def host_block(address: int, nbytes: int) -> np.ndarray[Any, np.dtype[np.int32]]:
    import ctypes

    return np.frombuffer((ctypes.c_char * nbytes).from_address(address), dtype=np.int32)


def raw_copy(runtime: Any, lens: torch.Tensor, address: int) -> torch.cuda.CUDAGraph:
    """A graph with a copy that no operator makes."""

    def body() -> None:
        stream = torch.cuda.current_stream().cuda_stream
        runtime.memcpyAsync(lens.data_ptr(), address, NBYTES, 1, stream)
        lens.add_(0)

    return capture(body)[0]


def test_memory_of_cuda_host_alloc_is_freed_and_allocated_again(debugger: Any, runtime: Any) -> None:
    lens, address = guarded(debugger, COUNT), runtime.hostAlloc(NBYTES, 0)
    host_block(address, NBYTES)[:] = 1
    graph = raw_copy(runtime, lens, address)
    graph.replay()
    torch.cuda.synchronize()
    assert debugger.check() == ()
    runtime.freeHost(address)
    taken = [runtime.hostAlloc(NBYTES, 0)]
    while taken[-1] != address and len(taken) < 64:
        taken.append(runtime.hostAlloc(NBYTES, 0))
    try:
        if taken[-1] != address:
            pytest.skip("invalid: the driver does not hand the address out again")
        host_block(address, NBYTES)[:] = 7
        graph.replay()
        torch.cuda.synchronize()
        assert lens.unique().tolist() == [7]
        found = only(debugger.check())
        assert (found.code, found.severity, found.replay) == ("SG110", "error", 2)
        assert (found.buffer.address, found.detail.fate) == (address, "recycled")
        assert "memcpy" in found.culprit.name
    finally:
        for each in taken:
            runtime.freeHost(each)


def test_memory_of_cuda_host_alloc_that_lives(debugger: Any, runtime: Any) -> None:
    lens, address = guarded(debugger, COUNT), runtime.hostAlloc(NBYTES, 0)
    try:
        graph = raw_copy(runtime, lens, address)
        for step in range(3):
            host_block(address, NBYTES)[:] = step
            graph.replay()
            torch.cuda.synchronize()
            assert lens.unique().tolist() == [step]
        assert silent(debugger)
    finally:
        runtime.freeHost(address)


def test_an_array_that_was_registered_by_hand(debugger: Any) -> None:
    """The tensor over it may go, as long as it stays registered."""
    lens, array = guarded(debugger, COUNT), np.ones(COUNT, dtype=np.int32)
    cudart = torch.cuda.cudart()
    assert int(cudart.cudaHostRegister(array.ctypes.data, NBYTES, 0)) == 0
    try:
        held = [torch.from_numpy(array)]
        assert held[0].is_pinned(), "invalid: it is pageable"
        graph = graph_of_copy(lambda: (lens, held[0]))
        held.clear()
        for step in range(3):
            array[:] = step
            graph.replay()
            torch.cuda.synchronize()
            assert lens.unique().tolist() == [step]
        assert silent(debugger)
    finally:
        cudart.cudaHostUnregister(array.ctypes.data)


def test_what_the_driver_says_of_memory(debugger: Any, runtime: Any) -> None:
    engine, pageable = debugger.monitor.context.engine, np.zeros(NBYTES, dtype=np.uint8)
    first = torch.zeros(COUNT, pin_memory=True)
    device = torch.zeros(COUNT, device="cuda")
    block = engine.host_block(first.data_ptr())
    assert block.kind is HostKind.PINNED
    assert engine.host_block(first.data_ptr() + 64) == block
    assert engine.host_block(device.data_ptr()) is None
    assert engine.host_block(pageable.ctypes.data).kind is HostKind.PAGEABLE
    one = runtime.hostAlloc(NBYTES, 0)
    number = engine.host_block(one).allocation
    runtime.freeHost(one)
    two = runtime.hostAlloc(NBYTES, 0)
    assert number != 0
    assert engine.host_block(two).allocation != number
    runtime.freeHost(two)
    managed = runtime.mallocManaged(NBYTES)
    assert engine.host_block(managed) is None
    runtime.free(managed)


def test_the_copies_of_a_graph(debugger: Any) -> None:
    pinned, lens = torch.zeros(COUNT, dtype=torch.int32, pin_memory=True), guarded(debugger, COUNT)
    other = guarded(debugger, COUNT)

    def body() -> None:
        lens.copy_(pinned, non_blocking=True)
        other.copy_(lens)
        lens.add_(1)
        pinned.copy_(lens, non_blocking=True)

    graph, _ = capture(body)
    from shadowgraph.debugger import model_of

    model = model_of(graph)
    assert model is not None
    in_, out = model.host_copies
    assert (in_.node, in_.to_host, in_.flat, in_.host.start) == (0, False, True, pinned.data_ptr())
    assert (out.to_host, out.device.start, out.host.nbytes) == (True, lens.data_ptr(), NBYTES)
    assert in_.block is not None
    assert in_.block.kind is HostKind.PINNED
