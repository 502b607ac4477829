"""Guards behind large eager buffers, in segments of torch's allocator, without a `guard()` block."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
import torch
from helpers_cuda import BLOCK, capture, name_of, only, warm_kernels

import shadowgraph as sg
from shadowgraph.common.finalizer_safe_lock import run_deferred
from shadowgraph.graphs.dispatch.stepping_aside import POOLED

pytestmark = pytest.mark.gpu
MIB = 1 << 20
SIZE = 80 * MIB


class Pool:
    """A KV pool: one buffer of int32."""

    def __init__(self, nbytes: int = SIZE) -> None:
        self.k_buffer = [torch.zeros(nbytes // 4, dtype=torch.int32, device="cuda")]


def store(tensor: torch.Tensor, beyond: int) -> None:
    """One launch that writes the last four elements of a tensor, and `beyond` more."""
    from kernels_cuda import put

    put[(1,)](tensor, tensor.numel() - 4, 4 + beyond, BLOCK=BLOCK)


def held_bytes() -> int:
    """Bytes that torch's allocator has of the device, once its cache is empty. Tests that run at the same time share
    the device."""
    gc.collect()
    run_deferred()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    return int(torch.cuda.memory_reserved())


@pytest.fixture
def debugger() -> Iterator[sg.Debugger]:
    warm_kernels()
    with sg.debug(backend="cuda", guard_eager="auto", layout="faithful") as made:
        yield made
    assert not made.facts().faults


def buffers_of(debugger: sg.Debugger, tensor: torch.Tensor) -> list[sg.Buffer]:
    return [each for each in debugger.buffers if each.start == tensor.data_ptr() and each.guarded]


@pytest.mark.parametrize("beyond", [4, 0])
def test_a_write_past_the_end_while_preparing(beyond: int, debugger: sg.Debugger) -> None:
    pool = Pool()
    debugger.name("target.token_to_kv_pool", pool)
    rows = pool.k_buffer[0]
    graph, _kept = capture(lambda: rows[:64].add_(1))
    graph.replay()
    store(rows, beyond)
    graph.replay()
    found = debugger.check()
    if beyond:
        one = only(found)
        assert (one.code, one.phase, one.graph, one.replay) == ("SG101", "prepare", name_of(graph), 2)
        assert one.buffer.name == "target.token_to_kv_pool.k_buffer[0]"
        assert (one.past_end, one.bytes.first, one.bytes.distance) == (4 * beyond, SIZE, 0)
        assert one.culprit.name == "put"
    else:
        assert found == ()
    shares = {row.name: row.percent for row in debugger.coverage().classes}
    assert shares == {"KV pool": 100}
    assert debugger.coverage().unguarded == ()


@pytest.mark.parametrize("beyond", [1, 0])
def test_a_write_past_the_end_in_a_replay(beyond: int, debugger: sg.Debugger) -> None:
    pool = Pool()
    debugger.name("target.token_to_kv_pool", pool)
    graph, _kept = capture(lambda: store(pool.k_buffer[0], beyond))
    for _ in range(3):
        graph.replay()
    found = debugger.check()
    if beyond:
        one = only(found)
        assert (one.code, one.phase, one.replay) == ("SG101", "replay", 1)
        assert one.buffer.name == "target.token_to_kv_pool.k_buffer[0]"
        assert one.culprit.name == "put"
    else:
        assert found == ()


@pytest.mark.parametrize("nbytes", [SIZE, 32769 * 1024 * 2, 64 * MIB + 513, 66 * MIB - 4])
def test_the_tensor_is_the_programs_own(nbytes: int, debugger: sg.Debugger) -> None:
    made = torch.zeros(nbytes, dtype=torch.uint8, device="cuda")
    buffer = only(buffers_of(debugger, made))
    assert (buffer.exact, buffer.head_guard, buffer.tail_guard >= MIB) == (True, 0, True)
    storage = made.untyped_storage()
    assert (storage.nbytes(), storage.resizable(), int(made.count_nonzero())) == (nbytes, True, 0)
    segments = {each["address"] for each in torch.cuda.memory_snapshot()}
    assert made.data_ptr() in segments, "an IPC handle is that of the tensor"
    assert debugger.coverage().large.added <= 2 * MIB
    made.fill_(7)
    torch.cuda.synchronize()
    assert debugger.check() == ()


def test_what_the_guards_take(debugger: sg.Debugger) -> None:
    torch.zeros(8, device="cuda")
    before = held_bytes()
    held = [Pool() for _ in range(10)]
    torch.cuda.synchronize()
    taken = torch.cuda.memory_reserved() - before
    assert 10 * SIZE <= taken <= 10 * SIZE * 1.05
    assert debugger.coverage().large.buffers == len(held)


def test_freed_memory_returns(debugger: sg.Debugger) -> None:
    held = Pool()
    assert buffers_of(debugger, held.k_buffer[0])
    del held
    before = held_bytes()
    held = Pool(256 * MIB)
    assert buffers_of(debugger, held.k_buffer[0])
    assert held_bytes() >= before + 256 * MIB, "precondition"
    del held
    assert held_bytes() <= before
    assert debugger.check() == ()


def test_torch_frees_a_dead_segment_before_memory_is_out(debugger: sg.Debugger) -> None:
    held = Pool(512 * MIB)
    assert buffers_of(debugger, held.k_buffer[0])
    held_bytes()
    del held
    run_deferred()
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + 64 * MIB) / total)
    try:
        assert torch.rand(128 * MIB, device="cuda").numel() == 128 * MIB  # 512 MiB, by an operator that has no guard
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


def test_a_storage_that_is_resized(debugger: sg.Debugger) -> None:
    made = torch.zeros(SIZE, dtype=torch.uint8, device="cuda")
    storage = made.untyped_storage()
    before = held_bytes()
    storage.resize_(0)
    assert not debugger.buffers or not buffers_of(debugger, made)
    assert held_bytes() <= before - SIZE
    storage.resize_(SIZE)
    made.fill_(3)
    assert int(made.sum()) == 3 * SIZE
    assert debugger.check() == ()


def test_a_pool_of_the_programs_is_left_alone(debugger: sg.Debugger) -> None:
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        made = torch.zeros(SIZE, dtype=torch.uint8, device="cuda")
    assert buffers_of(debugger, made) == []
    assert debugger.facts().stepped_aside[POOLED] >= 1
    outside = torch.zeros(SIZE, dtype=torch.uint8, device="cuda")
    assert buffers_of(debugger, outside)
    del made


def test_an_allocation_that_does_not_fit_fails_as_ever(debugger: sg.Debugger) -> None:
    with pytest.raises(torch.OutOfMemoryError):
        torch.zeros(1 << 45, dtype=torch.uint8, device="cuda")
    assert torch.zeros(SIZE, dtype=torch.uint8, device="cuda").numel() == SIZE
