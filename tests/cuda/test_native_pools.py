"""Guards in the program's own pools: found without a change to what it allocates, and never over what it owns."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from helpers_cuda import capture, guarded, name_of, only, overflow, underflow, warm_kernels

import shadowgraph as sg

pytestmark = pytest.mark.gpu

COUNT = 100  # int32: 400 bytes of a block of 512


@pytest.fixture(autouse=True)
def warm() -> None:
    warm_kernels()


@pytest.fixture
def source() -> torch.Tensor:
    return torch.arange(COUNT, dtype=torch.int32, device="cuda")


def faithful() -> Any:
    return sg.debug(backend="cuda", layout="faithful")


def test_an_overflow_inside_a_graph_is_found_in_the_rounding(source: torch.Tensor) -> None:
    def body() -> torch.Tensor:
        scratch = source * 2
        overflow(scratch, 3)
        return scratch

    with faithful() as debugger:
        graph, out = capture(body)
        graph.replay()
        found = only(debugger.check())
        assert (found.code, found.phase, found.replay, found.graph) == ("SG101", "replay", 1, name_of(graph))
        assert (found.bytes.first, found.bytes.last, found.past_end) == (400, 411, 12)
        assert (found.buffer.dtype, found.buffer.shape, found.buffer.role) == ("int32", (COUNT,), "pool")
        assert debugger.coverage().percent == 100
        graph.replay()
        assert only(debugger.check()).occurrences == 2, "it was armed again before it replayed"
        assert out.tolist() == [2 * i for i in range(COUNT)]


def test_an_underflow_is_found_too(source: torch.Tensor) -> None:
    def body() -> tuple[torch.Tensor, torch.Tensor]:
        first, second = source * 2, source * 3
        underflow(second, 1)
        return first, second

    with faithful() as debugger:
        graph, kept = capture(body)
        assert kept[1].data_ptr() - kept[0].data_ptr() == 512, "neighbours in one segment"
        graph.replay()
        found = only(debugger.check())
        assert (found.buffer.address, found.bytes.side) == (kept[1].data_ptr(), "before")
        assert (found.bytes.first, found.bytes.last) == (-4, -1)


def test_the_same_program_without_the_bug_is_silent(source: torch.Tensor) -> None:
    with faithful() as debugger:
        graph, out = capture(lambda: (source * 2, source * 3))
        for _ in range(50):
            graph.replay()
        assert debugger.check() == ()
        assert out[1].tolist() == [3 * i for i in range(COUNT)]


def reusing(source: torch.Tensor, trail: list[int]) -> Callable[[], torch.Tensor]:
    def body() -> torch.Tensor:
        for size in (COUNT, 4 * COUNT, 50, 3000):
            for value in (size, size + 1):
                scratch = torch.full((size,), value, dtype=torch.int32, device="cuda")
                trail.append(scratch.data_ptr())
                del scratch
        return source * 2

    return body


def test_nothing_that_the_program_allocates_moves(source: torch.Tensor) -> None:
    def run() -> tuple[list[int], int, list[int]]:
        torch.cuda.empty_cache()
        trail: list[int] = []
        before = torch.cuda.memory_reserved()
        graph, out = capture(reusing(source, trail))
        graph.replay()
        return [at - trail[0] for at in trail], torch.cuda.memory_reserved() - before, out.tolist()

    plain = run()
    with faithful() as debugger:
        watched = run()
        assert debugger.check() == ()
    assert watched == plain
    assert len(set(plain[0])) < len(plain[0]), "the program must reuse a block, or this shows little"


def test_blocks_with_several_tenants_are_guarded_behind_the_largest(source: torch.Tensor) -> None:
    def body() -> tuple[torch.Tensor, int]:
        first = source * 2
        address = first.data_ptr()
        del first
        second = source[:50] * 3
        assert second.data_ptr() == address, "the block must be reused"
        overflow(second, 60)  # 10 elements past the first tenant's end
        return second, address

    with faithful() as debugger:
        graph, (_, address) = capture(body)
        graph.replay()
        found = only(debugger.check())
    assert (found.buffer.address, found.buffer.nbytes) == (address, 400)
    assert (found.bytes.first, found.past_end) == (400, 40)


def test_guards_make_way_for_the_next_graph_of_the_pool(source: torch.Tensor) -> None:
    handle = torch.cuda.graph_pool_handle()
    with faithful() as debugger:
        small, kept = capture(lambda: source * 2, pool=handle)
        small.replay()
        wide, more = capture(lambda: [source * i for i in range(3, 20)], pool=handle)
        for _ in range(3):
            small.replay()
            wide.replay()
        assert debugger.check() == ()
        assert kept.tolist() == [2 * i for i in range(COUNT)]
        assert more[-1].tolist() == [19 * i for i in range(COUNT)]

        def bug() -> torch.Tensor:
            last = source * 21
            overflow(last, 1)
            return last

        third, last = capture(bug, pool=handle)
        third.replay()
        found = only(debugger.check())
        assert (found.graph, found.buffer.address, found.past_end) == (name_of(third), last.data_ptr(), 4)


def test_what_a_graph_broke_before_the_next_capture_is_not_lost(source: torch.Tensor) -> None:
    def bug() -> torch.Tensor:
        scratch = source * 2
        overflow(scratch, 1)
        return scratch

    handle = torch.cuda.graph_pool_handle()
    with faithful() as debugger:
        graph, kept = capture(bug, pool=handle)
        graph.replay()
        other, more = capture(lambda: [source * i for i in range(3, 20)], pool=handle)
        other.replay()
        assert only(debugger.check()).graph == name_of(graph)
        del kept, more


def test_what_the_program_allocates_in_the_pool_by_itself_is_its_own(source: torch.Tensor) -> None:
    pool = torch.cuda.MemPool()
    with faithful() as debugger:
        side = torch.cuda.Stream()  # memory of a pool belongs to the stream that it was allocated on
        graph, kept = capture(lambda: source * 2, pool=pool.id, stream=side)
        graph.replay()
        segments = torch.cuda.memory_snapshot(pool.id)
        low, high = segments[0]["address"], segments[0]["address"] + segments[0]["total_size"]
        with torch.cuda.stream(side), torch.cuda.use_mem_pool(pool):
            mine = [torch.full((COUNT,), 7, dtype=torch.int32, device="cuda") for _ in range(4)]
            side.synchronize()
        assert all(low <= tensor.data_ptr() < high for tensor in mine), "it must lie where guards stood"
        for _ in range(3):
            graph.replay()
        assert debugger.check() == ()
        assert all(tensor.tolist() == [7] * COUNT for tensor in mine), "nothing of ours was written over it"
        assert kept.tolist() == [2 * i for i in range(COUNT)]


def test_what_the_program_frees_in_the_pool_before_anything_is_looked_at_was_its_own(source: torch.Tensor) -> None:
    pool = torch.cuda.MemPool()
    with faithful() as debugger:
        side = torch.cuda.Stream()
        graph, kept = capture(lambda: source * 2, pool=pool.id, stream=side)
        graph.replay()
        assert debugger.check() == ()
        segments = torch.cuda.memory_snapshot(pool.id)
        low, high = segments[0]["address"], segments[0]["address"] + segments[0]["total_size"]
        with torch.cuda.stream(side), torch.cuda.use_mem_pool(pool):
            mine = [torch.full((COUNT,), 7, dtype=torch.int32, device="cuda") for _ in range(4)]
            assert all(low <= tensor.data_ptr() < high for tensor in mine), "it must lie where guards stood"
            del mine
            side.synchronize()
        for _ in range(3):
            graph.replay()
        assert debugger.check() == ()
        assert any("outside of captures" in reason for reason in debugger.facts().left_alone)
        assert kept.tolist() == [2 * i for i in range(COUNT)]


@pytest.mark.parametrize("replays", [0, 1])
def test_what_is_written_between_two_pieces_lies_in_the_buffers_of_the_second(
    source: torch.Tensor, replays: int
) -> None:
    """As between two pieces of one forward pass: the output of a piece is written right after its capture."""
    handle = torch.cuda.graph_pool_handle()
    with faithful() as debugger:
        first, kept = capture(lambda: source * 2, pool=handle)
        for _ in range(replays):
            first.replay()
        debugger.check()
        guard = only([one for one in debugger.buffers if one.start == kept.data_ptr()])
        behind = guard.guard_start, guard.guard_start + guard.tail_guard
        second, more = capture(lambda: [source * i for i in range(3, 20)], pool=handle)
        assert any(behind[0] <= one.data_ptr() < behind[1] for one in more), "it must lie where a guard stood"
        for one in more:
            one.zero_()
        first.replay()
        second.replay()
        assert debugger.check() == ()
        assert more[-1].tolist() == [19 * i for i in range(COUNT)]


def test_a_pool_is_held_no_longer_than_its_graphs(source: torch.Tensor) -> None:
    big = torch.ones(16 << 20, device="cuda")
    gc.collect()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved()
    with faithful() as debugger:
        for _ in range(3):
            graph, out = capture(lambda: big * 2)
            graph.replay()
            assert torch.cuda.memory_reserved() > before
            del graph, out
            gc.collect()
            torch.cuda.empty_cache()
            assert torch.cuda.memory_reserved() <= before
        assert debugger.check() == ()
        assert debugger.graphs == ()


def test_the_far_part_of_a_guard_has_its_turn() -> None:
    """A write that jumps over the near part of a static buffer's guard is found without a call of `check`."""
    with faithful() as debugger:
        tables = [guarded(debugger, 1024) for _ in range(40)]
        graph, kept = capture(lambda: tables[0] * 2)
        graph.replay()
        near, far = debugger.settings.near_guard // 4, 512
        assert near < far
        torch.cuda.synchronize()
        from kernels_cuda import put

        put[(1,)](tables[17], 1024 + far, 1, BLOCK=1024)
        for _ in range(40):
            graph.replay()
        torch.cuda.synchronize()
        found = only(debugger.findings)
        assert (found.buffer.address, found.bytes.first) == (tables[17].data_ptr(), 4 * (1024 + far))
        assert found.confidence == "low", "when it was written is not known"
        assert "at the latest" in found.message
        del kept


def test_guards_are_armed_for_whatever_stream_uses_the_buffer_first() -> None:
    """The buffer is made on a stream that is busy, and used and checked on another one at once."""
    with faithful() as debugger:
        side, other = torch.cuda.Stream(), guarded(debugger, 64)
        graph, kept = capture(lambda: other * 2, stream=side)
        with torch.cuda.stream(side):
            graph.replay()
        gc.collect()
        spare = [guarded(debugger, COUNT) for _ in range(256)]  # what is handed out again waits for an idle device
        torch.cuda.synchronize()
        torch.cuda._sleep(8_000_000_000)
        with debugger.guard():
            table = torch.empty(COUNT, dtype=torch.int32, device="cuda")
        with torch.cuda.stream(side):
            table.fill_(3)
            for _ in range(3):
                graph.replay()
        side.synchronize()
        busy = not torch.cuda.current_stream().query()
        assert debugger.findings == ()
        assert debugger.check() == ()
        overflow(table, 1)
        assert only(debugger.check()).buffer.address == table.data_ptr(), "its guards do stand"
        del kept, spare
    assert busy, "the first stream must still sleep when the checks on the other are done, or this shows nothing"
