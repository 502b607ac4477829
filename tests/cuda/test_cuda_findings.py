"""Damage done by a graph: exact bytes around tensors of its own pool, and the replay that did it, without waiting."""

from __future__ import annotations

import gc
from functools import partial

import pytest
import torch
from helpers_cuda import BLOCK, capture, fill, guarded, name_of, only, overflow, underflow, warm_kernels

import shadowgraph as sg

pytestmark = pytest.mark.gpu

LAYOUTS = ["isolate", "faithful"]
SLEEP = 2_000_000_000  # cycles, about a second


@pytest.fixture(autouse=True)
def warm() -> None:
    warm_kernels()


def late(table: torch.Tensor, counter: torch.Tensor, which: int, extra: int = 1) -> None:
    """A launch that overflows a table only at its `which`-th run."""
    from kernels_cuda import put_late

    put_late[(1,)](table, counter, table.numel(), which, extra, BLOCK=BLOCK)


def sum_of(table: torch.Tensor, rows: int) -> torch.Tensor:
    return table[:rows].sum()


def root_of(rows: torch.Tensor) -> torch.Tensor:
    return (rows + 1).sqrt()


def count() -> torch.Tensor:
    return torch.zeros(1, dtype=torch.int32, device="cuda")


@pytest.mark.parametrize("elements", [1, 3, 60, 90])
def test_past_the_end_of_a_tensor_made_inside_the_capture(elements: int) -> None:
    def body() -> torch.Tensor:
        scratch = source + 1
        fill(scratch, elements)
        return scratch.sum()

    with sg.debug(backend="cuda") as debugger:
        source = guarded(debugger, 64)
        graph, total = capture(body)
        assert debugger.check() == (), "a capture runs nothing"
        graph.replay()
        assert only(debugger.check()).occurrences == 1
        graph.replay()  # the guard is armed again before
        found = only(debugger.check())
        name = name_of(graph)
        faults = debugger.facts().faults
    assert int(total) == sum(range(64)), "the program is not disturbed"
    assert (found.code, found.phase, found.graph, found.replay) == ("SG101", "replay", name, 1)
    assert (found.buffer.role, found.buffer.shape, found.buffer.dtype) == ("pool", (64,), "int32")
    assert (found.bytes.side, found.bytes.first, found.past_end) == ("after", 256, 4 * elements)
    assert (found.bytes.count, found.bytes.distance, found.bytes.truncated) == (4 * elements, 0, False)
    assert found.occurrences == 2
    assert (found.culprit.name, found.culprit.node, found.culprit.status) == ("put", 1, "confirmed"), "by replay 2"
    assert found.culprit.stack[0].function == "fill"
    assert found.buffer.allocated[0].function == "body"
    assert faults == {}


@pytest.mark.parametrize("elements", [1, 40])
def test_before_the_start_of_a_tensor_made_inside_the_capture(elements: int) -> None:
    def body() -> torch.Tensor:
        scratch = source + 1
        underflow(scratch, elements)
        return scratch.sum()

    with sg.debug(backend="cuda") as debugger:
        source = guarded(debugger, 64)
        graph, total = capture(body)
        graph.replay()
        found = only(debugger.check())
    assert int(total) == 64
    assert (found.code, found.phase, found.replay, found.buffer.role) == ("SG101", "replay", 1, "pool")
    assert (found.bytes.side, found.bytes.first, found.bytes.last) == ("before", -4 * elements, -1)
    assert (found.bytes.count, found.bytes.distance) == (4 * elements, 0)
    assert (found.culprit.name, found.culprit.node) == ("put", 1)


@pytest.mark.parametrize("shape", [(1,), (3,), (5, 7), (1000, 1000)])
def test_guards_start_at_the_last_requested_byte(shape: tuple[int, ...]) -> None:
    """Torch rounds what it hands out, up to 20 MiB; the guard does not."""

    def body() -> torch.Tensor:
        scratch = torch.zeros(shape, dtype=torch.int32, device="cuda")
        overflow(scratch)
        return scratch

    with sg.debug(backend="cuda") as debugger:
        graph, scratch = capture(body)
        graph.replay()
        found = only(debugger.check())
    assert (found.past_end, found.buffer.nbytes, found.buffer.shape) == (4, 4 * scratch.numel(), shape)
    assert not scratch.any()


def test_two_graphs_in_one_pool_are_told_apart() -> None:
    """A block that a smaller and a larger tensor use in turn is guarded behind the larger; each graph does its own."""

    def body(size: int, extra: int) -> torch.Tensor:
        scratch = torch.ones(size, dtype=torch.int32, device="cuda")
        fill(scratch, extra)
        return scratch.sum()

    with sg.debug(backend="cuda") as debugger:
        pool = torch.cuda.graph_pool_handle()
        clean, kept = capture(lambda: body(100, 0), pool=pool)
        guilty, more = capture(lambda: body(300, 2), pool=pool)
        for _ in range(3):
            clean.replay()
            guilty.replay()
            found = only(debugger.check())
        name = name_of(guilty)
    assert (int(kept), int(more)) == (sum(range(100)), sum(range(300)))
    assert (found.graph, found.replay, found.past_end, found.occurrences) == (name, 1, 8, 3)


@pytest.mark.parametrize("which", [1, 17, 40])
def test_one_replay_of_many_is_named_without_waiting(which: int) -> None:
    with sg.debug(backend="cuda", infer=False) as debugger:
        table, other, counter = guarded(debugger, 64), guarded(debugger, 64), count()
        guilty, _ = capture(lambda: late(table, counter, which))
        clean, _ = capture(lambda: fill(other))
        torch.cuda.synchronize()
        torch.cuda._sleep(SLEEP)
        for _ in range(40):
            guilty.replay()
            clean.replay()
        early, idle = debugger.findings, torch.cuda.current_stream().query()
        found = only(debugger.check())
        name = name_of(guilty)
    assert not idle, "the device still slept when all were queued; if not, this shows nothing"
    assert early == ()
    assert (found.graph, found.phase, found.replay, found.past_end, found.occurrences) == (name, "replay", which, 4, 1)


def test_memory_comes_and_goes_while_replays_are_queued() -> None:
    """What a queued check reads on the device is not given to another before it ran."""
    with sg.debug(backend="cuda", infer=False) as debugger:
        tables = [guarded(debugger, 8, 64) for _ in range(2)]
        for number, table in enumerate(tables, 1):
            table.copy_(torch.arange(512, device="cuda").view(8, 64) * number)
        graphs = [capture(partial(sum_of, table, rows)) for rows, table in zip((2, 5), tables, strict=True)]
        gc.collect()
        # What was freed before is handed out again only when the device is idle: none of it may be left.
        spare = [guarded(debugger, 16 + step) for step in range(24) for _ in range(8)]
        torch.cuda.synchronize()
        torch.cuda._sleep(4 * SLEEP)  # new buffers mean new tables, and other processes may have the card's time
        kept = []
        for step in range(24):
            kept.append(guarded(debugger, 16 + step))
            for graph, _ in graphs:
                graph.replay()
        idle = torch.cuda.current_stream().query()
        assert debugger.check() == ()
        overflow(kept[-1])
        assert only(debugger.check()).buffer.shape == (39,)
        assert debugger.facts().faults == {}
    assert not idle, "the device still slept when all were queued; if not, this shows nothing"
    assert [int(out) for _, out in graphs] == [sum(range(128)), 2 * sum(range(320))]
    del spare


def test_several_streams_replay_at_once_and_nothing_is_found() -> None:
    streams = [torch.cuda.Stream() for _ in range(3)]
    with sg.debug(backend="cuda") as debugger:
        inputs = [guarded(debugger, 1 << 16, dtype=torch.float32) for _ in streams]
        made = [capture(partial(root_of, rows)) for rows in inputs]
        torch.cuda.synchronize()
        for step in range(50):
            for number, (stream, rows, (graph, _)) in enumerate(zip(streams, inputs, made, strict=True)):
                with torch.cuda.stream(stream):
                    rows.fill_(step * (number + 1))
                    graph.replay()
        torch.cuda.synchronize()
        assert debugger.check() == ()
        facts = debugger.report(quiet=True).facts
    for number, (_, out) in enumerate(made):
        assert torch.equal(out, torch.full_like(out, 49.0 * (number + 1) + 1).sqrt())
    assert [replays for _, _, replays in facts.graphs] == [50] * 3
    assert (facts.notes, facts.faults) == ((), {})


def test_of_two_streams_the_guilty_graph_is_named() -> None:
    first, second = torch.cuda.Stream(), torch.cuda.Stream()
    with sg.debug(backend="cuda", infer=False) as debugger:
        table, other, counter = guarded(debugger, 64), guarded(debugger, 64), count()
        clean, _ = capture(lambda: fill(other))
        guilty, _ = capture(lambda: late(table, counter, 3, extra=5))
        torch.cuda.synchronize()
        for _ in range(6):
            for stream, before, graph in ((first, second, clean), (second, first, guilty)):
                stream.wait_stream(before)
                with torch.cuda.stream(stream):
                    graph.replay()
        torch.cuda.synchronize()
        found = only(debugger.check())
        name = name_of(guilty)
    assert (found.graph, found.phase, found.replay, found.past_end) == (name, "replay", 3, 20)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_sync_raises_at_the_replay(layout: str) -> None:
    with sg.debug(backend="cuda", layout=layout, sync=True) as debugger:
        table, counter = guarded(debugger, 64), count()
        graph, _ = capture(lambda: late(table, counter, 2))
        graph.replay()
        with pytest.raises(sg.FindingsError, match=r"wrote 4 bytes past the end of .* in replay 2 of graph#"):
            graph.replay()
        graph.replay()
    assert only(debugger.findings).detected_at == "replay_end"


def test_sync_raises_at_the_eager_launch() -> None:
    with (
        pytest.raises(sg.FindingsError, match="wrote 4 bytes past the end"),
        sg.debug(backend="cuda", sync=True) as debugger,
    ):
        table = guarded(debugger, 64)
        fill(table)
        overflow(table)
        pytest.fail("the launch before should have raised")
    assert only(debugger.findings).detected_at == "launch"


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("elements", [0, 3])
def test_before_the_start_of_a_static_buffer(layout: str, elements: int) -> None:
    with sg.debug(backend="cuda", layout=layout, infer=False) as debugger:
        table = guarded(debugger, 64)
        graph, _ = capture(lambda: underflow(table, elements) if elements else fill(table))
        graph.replay()
        if not elements:
            assert debugger.check() == ()
            assert table.tolist() == list(range(64)), "the replay ran"
            return
        found = only(debugger.check())
    assert (found.code, found.phase, found.replay, found.bytes.side) == ("SG101", "replay", 1, "before")
    assert (found.bytes.first, found.bytes.last) == (-12, -1)
    assert found.buffer.address == table.data_ptr()


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("row", [2, 5])
def test_into_rows_that_the_graph_did_not_capture(layout: str, row: int) -> None:
    """A launch that was given another buffer writes four elements of a row; the graph captured the first four rows."""
    from kernels_cuda import put

    with sg.debug(backend="cuda", layout=layout, infer=False) as debugger:
        table, other = guarded(debugger, 8, 64), guarded(debugger, 64)
        table.fill_(1000)
        away = (table.data_ptr() - other.data_ptr()) // 4 + 64 * row

        def body() -> torch.Tensor:
            put[(1,)](other, away, 4, BLOCK=BLOCK)
            return table[:4].sum(1)

        graph, kept = capture(body)
        graph.replay()
        assert table[row, :5].tolist() == [0, 1, 2, 3, 1000], "written in either case"
        if row < 4:
            assert debugger.check() == (), "inside of what was captured nothing is out of bounds"
            return
        found = only(debugger.check())
        del kept
    assert (found.code, found.phase, found.replay, found.bytes.side) == ("SG101", "replay", 1, "slack")
    assert (found.buffer.address, found.bytes.first // 4, found.bytes.last // 4) == (table.data_ptr(), 320, 323)
