"""The program's own CUDA graphs while they are watched: captures, pools, replays and resets behave as before."""

from __future__ import annotations

import gc
import threading
import weakref
from functools import partial
from typing import Any

import pytest
import torch
from helpers_cuda import capture, captured, fill, guarded, only, overflow, warm_kernels
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

import shadowgraph as sg
from shadowgraph.graphs.cuda import capture as cuda_capture
from shadowgraph.graphs.events import listeners

pytestmark = pytest.mark.gpu

LAYOUTS = ["isolate", "faithful"]
SEGMENT = 2 << 20  # torch's smallest
METHODS = ("capture_begin", "capture_end", "replay", "reset", "pool")


@pytest.fixture(autouse=True)
def warm() -> None:
    warm_kernels()


@pytest.fixture
def source() -> torch.Tensor:
    return torch.arange(64, dtype=torch.int32, device="cuda")


def left_behind() -> list[str]:
    """What a capture must not leave, debugger or not."""
    found = [] if cuda_capture.current() is None else ["capture mode"]
    if torch._C._cuda_isHistoryEnabled():
        found.append("the allocator's history")
    found += [type(mode).__name__ for mode in _get_current_dispatch_mode_stack() if type(mode).__name__ != "EagerMode"]
    return found


def works(debugger: sg.Debugger) -> bool:
    """Whether a bug planted now is found exactly."""
    table = guarded(debugger, 64)
    graph, kept = capture(lambda: table * 2)
    overflow(table)
    graph.replay()
    found = only(debugger.check())
    del kept
    assert (found.code, found.phase, found.replay, found.past_end) == ("SG101", "prepare", 1, 4)
    return debugger.facts().faults == {}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_everything_is_unpatched_after_the_block(source: torch.Tensor, layout: str) -> None:
    from triton.runtime.jit import JITFunction

    before = [vars(torch.cuda.CUDAGraph).get(name) for name in METHODS]
    launcher, readers = JITFunction.run, [getattr(torch.Tensor, name) for name in ("cpu", "tolist", "numpy")]
    with sg.debug(backend="cuda", layout=layout):
        assert all(vars(torch.cuda.CUDAGraph)[name] is not old for name, old in zip(METHODS, before, strict=True))
        graph, out = capture(lambda: source * 2)
        graph.replay()
    assert [vars(torch.cuda.CUDAGraph).get(name) for name in METHODS] == before
    assert JITFunction.run is launcher
    assert [getattr(torch.Tensor, name) for name in ("cpu", "tolist", "numpy")] == readers
    assert (left_behind(), listeners, _get_current_dispatch_mode_stack()) == ([], [], [])
    source.fill_(5)
    graph.replay()
    assert out.tolist() == [10] * 64, "a graph captured while watched goes on working"


@pytest.mark.parametrize("layout", LAYOUTS)
def test_handles_are_those_that_the_program_knows(source: torch.Tensor, layout: str) -> None:
    handle = torch.cuda.graph_pool_handle()
    with sg.debug(backend="cuda", layout=layout):
        given, kept = capture(lambda: source * 2, pool=handle)
        assert given.pool() == handle
        private, more = capture(lambda: source * 3)
        assert private.pool() != handle
        other, last = capture(lambda: source * 4, pool=private.pool())
        assert other.pool() == private.pool()
        for graph in (given, private, other):
            graph.replay()
        assert (kept[1].item(), more[1].item(), last[1].item()) == (2, 3, 4)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_graphs_that_share_a_handle_reuse_memory_and_others_do_not(source: torch.Tensor, layout: str) -> None:
    addresses = []

    def body() -> torch.Tensor:
        scratch = source * 2
        addresses.append(scratch.data_ptr())
        return scratch + 1

    with sg.debug(backend="cuda", layout=layout) as debugger:
        handle = torch.cuda.graph_pool_handle()
        made = [capture(body, pool=handle), capture(body, pool=handle), capture(body)]
        assert addresses[0] == addresses[1] != addresses[2]
        for _ in range(3):
            for graph, out in made:
                graph.replay()
                assert out.tolist() == [2 * i + 1 for i in range(64)]
        assert debugger.check() == ()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_pools_are_stood_in_for_in_one_layout_and_left_alone_in_the_other(source: torch.Tensor, layout: str) -> None:
    with sg.debug(backend="cuda", layout=layout) as debugger:
        graph, (first, second) = capture(lambda: (source * 2, source * 3))
        near = abs(first.data_ptr() - second.data_ptr()) < SEGMENT
        segments = torch.cuda.memory_snapshot(graph.pool())
        graph.replay()
        percent = debugger.coverage().percent
    blocks = {block["address"] for segment in segments for block in segment["blocks"]}
    assert first.data_ptr() in blocks
    assert near == (layout == "faithful"), "two small tensors share a segment unless each has its own"
    assert percent == 100, "behind 256 bytes there is room in a block of 512, too"


def test_reset_and_recapture_end_the_old_ledger() -> None:
    with sg.debug(backend="cuda") as debugger:
        table = guarded(debugger, 64)
        graph, _ = capture(lambda: fill(table))
        graph.replay()
        (old,) = debugger.graphs
        graph.reset()
        assert [*debugger.graphs] == []
        with torch.cuda.graph(graph):
            fill(table, 1)
        (new,) = debugger.graphs
        assert (new.name != old.name, new.replays, len(new.nodes)) == (True, 0, 1)
        graph.replay()
        found = only(debugger.check())
    assert (found.graph, found.phase, found.replay, found.past_end) == (new.name, "replay", 1, 4)


def test_a_graph_that_is_gone_is_forgotten_and_its_memory_given_back() -> None:
    big = 64 << 20
    with sg.debug(backend="cuda") as debugger:
        source = torch.ones(big // 4, device="cuda")
        taken = []
        for _ in range(12):
            graph, out = capture(lambda: source * 2)
            graph.replay()
            torch.cuda.synchronize()
            del graph, out
            gc.collect()
            torch.cuda.empty_cache()
            taken.append(torch.cuda.memory_reserved() + debugger._allocator.arena.reserved)
        assert debugger.graphs == ()
    assert taken[-1] - taken[1] < 4 * big, "ten captures later there is about as much taken as after the second"


def test_a_refused_recapture_leaves_the_graph_as_it_was(source: torch.Tensor) -> None:
    with sg.debug(backend="cuda") as debugger:
        graph, out = capture(lambda: source * 2)
        (model,) = debugger.graphs
        side = torch.cuda.stream(torch.cuda.Stream())
        with pytest.raises(RuntimeError, match="already owns a captured graph"), side:
            graph.capture_begin()
        assert left_behind() == []
        graph.replay()
        assert out.tolist() == [2 * i for i in range(64)]
        assert debugger.graphs == (model,)
        assert model.replays == 1
        assert debugger.report(quiet=True).facts.faults == {}
        assert works(debugger)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_an_exception_inside_a_capture_passes_unchanged(source: torch.Tensor, layout: str) -> None:
    error = ValueError("the program's own")
    with sg.debug(backend="cuda", layout=layout) as debugger:
        with pytest.raises(ValueError, match="the program's own") as caught:
            capture(lambda: exec_raise(source + 1, error))
        assert caught.value is error
        assert left_behind() == []
        assert works(debugger)
        assert debugger.report(quiet=True).facts.faults == {}


def exec_raise(_: torch.Tensor, error: Exception) -> None:
    raise error


def test_a_replay_of_nothing_raises_as_before_and_checking_goes_on() -> None:
    with pytest.raises(RuntimeError) as before:
        torch.cuda.CUDAGraph().replay()
    with sg.debug(backend="cuda") as debugger:
        with pytest.raises(RuntimeError) as caught:
            torch.cuda.CUDAGraph().replay()
        assert str(caught.value).splitlines()[0] == str(before.value).splitlines()[0]
        table = guarded(debugger, 64)
        overflow(table)
        assert only(debugger.check()).past_end == 4


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("mode", ["global", "thread_local", "relaxed"])
def test_capture_error_modes(source: torch.Tensor, mode: str, layout: str) -> None:
    with sg.debug(backend="cuda", layout=layout) as debugger:
        graph, out = capture(lambda: (source * 2).sum(), capture_error_mode=mode)
        graph.replay()
        assert int(out) == 2 * sum(range(64))
        assert works(debugger)
        assert debugger.report(quiet=True).facts.faults == {}


@pytest.mark.parametrize("mode", ["global", "thread_local"])
def test_a_capture_in_a_second_thread(source: torch.Tensor, mode: str) -> None:
    made: list[Any] = []

    def work() -> None:
        try:
            made.append(capture(lambda: (source * 2).sum(), capture_error_mode=mode))
        except BaseException as error:
            made.append(error)

    with sg.debug(backend="cuda") as debugger:
        thread = threading.Thread(target=work)
        thread.start()
        thread.join(timeout=120)
        assert not thread.is_alive(), "the capture hangs"
        assert isinstance(made[0], tuple), made[0]
        graph, out = made[0]
        graph.replay()
        assert int(out) == 2 * sum(range(64))
        assert [(model.replays, len(model.nodes)) for model in debugger.graphs] == [(1, 2)]
        assert left_behind() == []
        assert works(debugger)
        assert debugger.report(quiet=True).facts.faults == {}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_keep_graph_is_honoured(source: torch.Tensor, layout: str) -> None:
    with sg.debug(backend="cuda", layout=layout):
        kept = torch.cuda.CUDAGraph(keep_graph=True)
        with torch.cuda.graph(kept):
            out = source * 2
        assert kept.raw_cuda_graph()
        kept.instantiate()
        kept.replay()
        assert out.tolist() == [2 * i for i in range(64)]
        plain, more = capture(lambda: source * 3)
        plain.replay()
        assert more.tolist() == [3 * i for i in range(64)], "executable at once where nobody asked to keep it"


def test_a_debugger_that_goes_in_the_middle_of_somebodys_capture(source: torch.Tensor) -> None:
    """What it has on the device goes with its last reference: that must not be what a capture is broken by."""
    with sg.debug(backend="cuda") as debugger:
        table = guarded(debugger, 64)
        inner, kept = capture(partial(torch.mul, table, 2))
        inner.replay()
        debugger.check()
    inner.reset()
    work = weakref.ref(debugger.monitor)
    del table, inner, kept
    held = [debugger]
    gc.collect()  # a graph that another test left as garbage must not die below, where nothing watches any more
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="global"):
        doubled = source * 2
        del debugger
        held.clear()
        gc.collect()
        assert work() is None, "invalid: it did not go within the capture"
        doubled += 1
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(doubled, source * 2 + 1)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_make_graphed_callables(layout: str) -> None:
    torch.manual_seed(1)
    weight = torch.randn(16, 16, device="cuda", requires_grad=True)
    rows = torch.randn(4, 16, device="cuda")
    (torch.tanh(rows @ weight)).sum().backward()
    expected, weight.grad = weight.grad, None
    with sg.debug(backend="cuda", layout=layout) as debugger:
        graphed: Any = torch.cuda.make_graphed_callables(lambda x, w: torch.tanh(x @ w), (rows.clone(), weight))
        for _ in range(3):
            weight.grad = None
            graphed(rows, weight).sum().backward()
        facts = debugger.report(quiet=True).facts
    torch.testing.assert_close(weight.grad, expected)
    assert [replays for _, _, replays in facts.graphs] == [3, 3], "forward and backward"
    assert (facts.findings, facts.faults) == ((), {})


def test_a_graph_captured_earlier_replays_and_is_named_so(source: torch.Tensor) -> None:
    graph, out = captured(lambda: source * 2)
    with sg.debug(backend="cuda") as debugger:
        table = guarded(debugger, 64)
        source.fill_(3)
        graph.replay()
        assert out.tolist() == [6] * 64
        overflow(table)
        graph.replay()
        assert only(debugger.check()).past_end == 4, "declared buffers are still guarded"
        (model,) = debugger.graphs
        assert (model.name.endswith("(captured earlier)"), model.replays) == (True, 2)
        report = str(debugger.report(quiet=True))
    assert "(captured earlier)" in report
    graph.reset()
