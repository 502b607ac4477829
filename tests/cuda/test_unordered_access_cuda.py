"""SG115 on a device: writes and replays on streams that nothing orders, their fixed twins, and what may look like it.

Whether values go wrong depends on time, and is asserted once, with a sleep on the device. The finding does not.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from helpers_cuda import capture, guarded, name_of, only

import shadowgraph as sg
from shadowgraph.checks.unordered_access.facts import Missing, UnorderedDetail
from shadowgraph.tracking.stream_order import order

pytestmark = pytest.mark.gpu

SIZE = 1024
LONG = 200_000_000  # cycles of a sleep
STEPS = 3


class Program:
    """A graph that adds one to its input, and a side stream that refreshes the input."""

    def __init__(self, debugger: Any) -> None:
        self.debugger = debugger
        self.values = guarded(debugger, SIZE, dtype=torch.float32)
        self.fresh = torch.ones(SIZE, device="cuda")
        self.pinned = torch.ones(SIZE).pin_memory()
        debugger.name("program", self)
        self.graph, self.result = capture(lambda: self.values + 1)
        self.side = torch.cuda.Stream()
        torch.cuda.synchronize()

    def refresh(self) -> None:
        self.values.copy_(self.fresh)


@pytest.fixture
def program() -> Iterator[Program]:
    with sg.debug(backend="cuda") as debugger:
        made = Program(debugger)
        assert order.on, "invalid: the order of streams is not observed"
        yield made
        torch.cuda.synchronize()
        assert debugger.facts().faults == {}
    assert "cuda_stream" not in vars(torch.cuda.Stream), "torch's classes are as before"


def detail_of(found: Any) -> UnorderedDetail:
    assert isinstance(found.detail, UnorderedDetail), found.message
    return found.detail


def silent(program: Program) -> bool:
    torch.cuda.synchronize()
    facts = program.debugger.report(quiet=True).facts
    assert any(nodes and replays for _, nodes, replays in facts.graphs), "invalid: a silence over nothing"
    return facts.findings == () and facts.notes == ()


def steps(program: Program, before: Callable[[], None] | None = None, behind: Callable[[], None] | None = None) -> None:
    """Steps with a refresh on the side stream: after `before` there, and with `behind` between it and the replay."""
    for _ in range(STEPS):
        if before is not None:
            before()
        with torch.cuda.stream(program.side):
            program.refresh()
        if behind is not None:
            behind()
        program.graph.replay()


@pytest.mark.parametrize("how", ["device", "pinned", "fill", "out"])
def test_a_write_on_the_wrong_stream(program: Program, how: str) -> None:
    writes: dict[str, tuple[str, Callable[[], Any]]] = {
        "device": ("aten.copy_.default", lambda: program.values.copy_(program.fresh)),
        "pinned": ("aten.copy_.default", lambda: program.values.copy_(program.pinned, non_blocking=True)),
        "fill": ("aten.fill_.Scalar", lambda: program.values.fill_(2.0)),
        "out": ("aten.mul.out", lambda: torch.mul(program.fresh, program.fresh, out=program.values)),
    }
    name, write = writes[how]
    for _ in range(STEPS):
        torch.cuda.synchronize()
        with torch.cuda.stream(program.side):
            write()
        program.graph.replay()
    found = only(program.debugger.check())
    detail = detail_of(found)
    assert (found.code, found.phase, found.replay, found.occurrences) == ("SG115", "prepare", 1, STEPS)
    assert (found.graph, found.buffer.name, found.culprit.name) == (name_of(program.graph), "program.values", name)
    assert (found.bytes.first, found.bytes.last) == (0, SIZE * 4 - 1)
    assert found.culprit.file == __file__
    assert found.confidence == "high"
    assert detail == UnorderedDetail(Missing.REPLAY_AFTER_WRITE, detail.write_stream, 0)
    assert detail.write_stream > 16


def wait_stream(program: Program) -> None:
    torch.cuda.current_stream().wait_stream(program.side)


def wait_event(program: Program) -> None:
    event = torch.cuda.Event()
    event.record(program.side)
    torch.cuda.current_stream().wait_event(event)


def wait_recorded(program: Program) -> None:
    program.side.record_event().wait()


def wait_generic(program: Program) -> None:
    event = torch.Event("cuda")
    program.side.record_event(event)
    torch.cuda.current_stream().wait_event(event)


def synchronize_generic(program: Program) -> None:
    program.generic = torch.Event("cuda")  # type: ignore[attr-defined]
    program.side.record_event(program.generic)  # type: ignore[attr-defined]
    program.generic.synchronize()  # type: ignore[attr-defined]


def synchronize_event(program: Program) -> None:
    program.side.record_event().synchronize()


def poll_event(program: Program) -> None:
    event = program.side.record_event()
    while not event.query():
        pass


def read_on_the_side(program: Program) -> None:
    with torch.cuda.stream(program.side):
        assert program.values[0].item() == 1


def read_all_on_the_side(program: Program) -> None:
    with torch.cuda.stream(program.side):
        assert program.values.cpu()[0] == 1


def mask_on_the_side(program: Program) -> None:
    with torch.cuda.stream(program.side):
        assert len(program.values[program.values > 0]) == SIZE


ORDERS = [
    wait_stream,
    wait_event,
    wait_recorded,
    wait_generic,
    synchronize_generic,
    synchronize_event,
    poll_event,
    lambda program: program.side.synchronize(),
    lambda program: torch.cuda.synchronize(),
    lambda program: torch.accelerator.synchronize(),
    read_on_the_side,
    read_all_on_the_side,
    mask_on_the_side,
]


@pytest.mark.parametrize("order_by", ORDERS, ids=lambda each: each.__name__)
def test_its_fixed_twins(program: Program, order_by: Callable[[Program], None]) -> None:
    steps(program, lambda: program.side.wait_stream(torch.cuda.current_stream()), lambda: order_by(program))
    assert silent(program)


def test_a_copy_that_blocks_is_in_order(program: Program) -> None:
    torch.cuda.synchronize()
    with torch.cuda.stream(program.side):
        program.values.copy_(torch.ones(SIZE))
    program.graph.replay()
    assert silent(program)


def test_an_event_that_is_older_than_the_write(program: Program) -> None:
    event = program.side.record_event()
    with torch.cuda.stream(program.side):
        program.refresh()
    torch.cuda.current_stream().wait_event(event)
    program.graph.replay()
    assert detail_of(only(program.debugger.check())).missing is Missing.REPLAY_AFTER_WRITE


def test_a_wait_the_wrong_way_round(program: Program) -> None:
    steps(program, behind=lambda: program.side.wait_stream(torch.cuda.current_stream()))
    assert detail_of(only(program.debugger.check())).missing in (Missing.REPLAY_AFTER_WRITE, Missing.BOTH)


def test_a_rewrite_behind_a_replay(program: Program) -> None:
    steps(program, behind=lambda: wait_stream(program))
    found = only(program.debugger.check())
    detail = detail_of(found)
    assert (detail.missing, detail.reading, found.replay) == (Missing.WRITE_AFTER_REPLAY, 1, 2)
    assert (found.culprit.name, found.buffer.name) == ("aten.copy_.default", "program.values")


@pytest.mark.parametrize("how", ["event", "wait_stream", "synchronize", "result read"])
def test_the_fixed_twins_of_the_rewrite(program: Program, how: str) -> None:
    done = torch.cuda.Event()
    for _ in range(STEPS):
        if how == "event":
            program.side.wait_event(done)
        elif how == "wait_stream":
            program.side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(program.side):
            program.refresh()
        wait_stream(program)
        program.graph.replay()
        done.record()
        if how == "synchronize":
            torch.cuda.current_stream().synchronize()
        elif how == "result read":
            assert program.result.sum().item() == 2 * SIZE
    assert silent(program)


def test_a_replay_on_the_side_and_a_write_on_the_default_stream(program: Program) -> None:
    for _ in range(STEPS):
        torch.cuda.synchronize()
        program.refresh()
        with torch.cuda.stream(program.side):
            program.graph.replay()
    detail = detail_of(only(program.debugger.check()))
    assert (detail.missing, detail.write_stream) == (Missing.REPLAY_AFTER_WRITE, 0)


@pytest.mark.parametrize("side", [False, True], ids=["default stream", "side stream"])
def test_everything_on_one_stream(program: Program, side: bool) -> None:
    stream = program.side if side else torch.cuda.default_stream()
    with torch.cuda.stream(stream):
        for _ in range(STEPS):
            program.refresh()
            program.graph.replay()
    assert silent(program)


@pytest.mark.parametrize("fixed", [True, False])
def test_double_buffers(program: Program, fixed: bool) -> None:
    """While one graph replays, the input of the other is refreshed on the side stream."""
    second = guarded(program.debugger, SIZE, dtype=torch.float32)
    other, _ = capture(lambda: second * 2)
    graphs, inputs, main = [program.graph, other], [program.values, second], torch.cuda.current_stream()
    done = [main.record_event(), main.record_event()]
    for step in range(6):
        slot = step % 2
        if fixed:
            program.side.wait_event(done[slot])
        with torch.cuda.stream(program.side):
            inputs[slot].copy_(program.pinned, non_blocking=True)
            ready = program.side.record_event()
        main.wait_event(ready)
        graphs[slot].replay()
        done[slot] = main.record_event()
    if fixed:
        assert silent(program)
        return
    found = program.debugger.check()
    assert {each.graph for each in found} == {name_of(graph) for graph in graphs}
    assert {detail_of(each).missing for each in found} == {Missing.WRITE_AFTER_REPLAY}


def test_a_slice_beside_what_the_graph_reads(program: Program) -> None:
    half = SIZE // 2
    graph, _ = capture(lambda: program.values[:half] * 2)
    with torch.cuda.stream(program.side):
        program.values[half:].zero_()
    graph.replay()
    assert silent(program)


def test_pages_of_other_requests(program: Program) -> None:
    """A cache of which a graph reads the pages of its requests, while pages of others are written."""
    from kernels_cuda import take

    cache, pages = guarded(program.debugger, SIZE), torch.arange(64, device="cuda", dtype=torch.int32)
    out = guarded(program.debugger, 64)
    take[(1,)](cache, pages, out, 64, BLOCK=64)
    torch.cuda.synchronize()
    graph, _ = capture(lambda: take[(1,)](cache, pages, out, 64, BLOCK=64))
    others = torch.arange(512, 576, device="cuda")
    torch.cuda.synchronize()
    for _ in range(STEPS):
        with torch.cuda.stream(program.side):
            cache.index_copy_(0, others, torch.ones(64, device="cuda", dtype=torch.int32))
        graph.replay()
    assert silent(program)


@pytest.mark.parametrize("fixed", [True, False])
def test_a_triton_kernel_on_the_wrong_stream(program: Program, fixed: bool) -> None:
    from kernels_cuda import add_one, fill_all

    source, out = guarded(program.debugger, SIZE), guarded(program.debugger, SIZE)
    program.debugger.name("source", source)
    grid = (SIZE // 256,)
    fill_all[grid](source, SIZE, BLOCK=256)
    add_one[grid](source, out, SIZE, BLOCK=256)
    torch.cuda.synchronize()
    graph, _ = capture(lambda: add_one[grid](source, out, SIZE, BLOCK=256))
    for _ in range(STEPS):
        torch.cuda.synchronize()
        with torch.cuda.stream(program.side):
            fill_all[grid](source, SIZE, BLOCK=256)
        if fixed:
            wait_stream(program)
        graph.replay()
    if fixed:
        assert silent(program)
        return
    found = only(program.debugger.check())
    assert (found.code, found.buffer.name, found.culprit.name) == ("SG115", "source", "fill_all")
    assert (found.confidence, found.culprit.kind) == ("medium", "triton")


def test_a_triton_kernel_that_only_reads_beside_a_replay(program: Program) -> None:
    from kernels_cuda import add_one

    source, out = guarded(program.debugger, SIZE), guarded(program.debugger, SIZE)
    add_one[(4,)](source, out, SIZE, BLOCK=256)
    torch.cuda.synchronize()
    graph, _ = capture(lambda: source * 2)
    for _ in range(STEPS):
        with torch.cuda.stream(program.side):
            add_one[(4,)](source, out, SIZE, BLOCK=256)
        graph.replay()
    assert silent(program)


def test_a_stream_whose_handle_was_read(program: Program) -> None:
    """Code that is not seen may wait for it. A print of the stream gives nothing away."""
    str(program.side)
    hash(program.side)
    with torch.cuda.stream(program.side):
        program.refresh()
    program.graph.replay()
    assert len(program.debugger.check()) == 1
    other = torch.cuda.Stream()
    assert other.cuda_stream
    torch.cuda.synchronize()
    with torch.cuda.stream(other):
        program.values.zero_()
    program.graph.replay()
    assert only(program.debugger.check()).occurrences == 1


def test_another_thread_waits(program: Program) -> None:
    for _ in range(STEPS):
        program.side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(program.side):
            program.refresh()
        thread = threading.Thread(target=program.side.synchronize)
        thread.start()
        thread.join()
        program.graph.replay()
    assert silent(program)


def test_what_was_submitted_while_nothing_was_observed(program: Program) -> None:
    program.debugger.pause()
    with torch.cuda.stream(program.side):
        program.refresh()
    program.debugger.resume()
    program.graph.replay()
    assert silent(program)


def test_the_values_do_go_wrong() -> None:
    """Without shadowgraph: with a slow writer, the replay reads what was there before."""
    values, fresh, side = torch.zeros(SIZE, device="cuda"), torch.ones(SIZE, device="cuda"), torch.cuda.Stream()
    graph, result = capture(lambda: values + 1)
    torch.cuda.synchronize()
    seen = []
    for waits in (False, True):
        values.zero_()
        torch.cuda.synchronize()
        with torch.cuda.stream(side):
            torch.cuda._sleep(LONG)
            values.copy_(fresh)
        if waits:
            torch.cuda.current_stream().wait_stream(side)
        graph.replay()
        torch.cuda.current_stream().synchronize()
        seen.append(result.sum().item())
        torch.cuda.synchronize()
    assert seen == [SIZE, 2 * SIZE]
