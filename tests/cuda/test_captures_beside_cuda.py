"""Captures go on whatever this library, the collector or another thread does meanwhile, in the strictest mode."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from helpers_cuda import capture, fill, guarded, only, overflow, warm_kernels

import shadowgraph as sg
from shadowgraph.tracking.captures import captures

pytestmark = pytest.mark.gpu

LAYOUTS = ["isolate", "faithful"]


@pytest.fixture(autouse=True)
def warm() -> Iterator[None]:
    warm_kernels()
    torch.cuda.synchronize()
    yield
    assert captures.running == 0
    assert gc.isenabled()


class Cycle:
    """Keeps a graph until the collector comes."""

    def __init__(self, graph: Any) -> None:
        self.me, self.graph = self, graph


def graph_to_die() -> torch.cuda.CUDAGraph:
    room = torch.zeros(8, device="cuda")
    graph, _ = capture(lambda: room.add_(1))
    graph.replay()
    torch.cuda.synchronize()
    return graph


def elsewhere(work: Callable[[], Any]) -> None:
    """Run in another thread, and wait for its end."""
    failed: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(60)
    assert not thread.is_alive()
    if failed:
        raise failed[0]


def survives(debugger: sg.Debugger, meanwhile: Callable[[], Any], mode: str = "global") -> torch.cuda.CUDAGraph:
    """Capture, with something done in the middle; the graph must be whole."""
    table = guarded(debugger, 64)
    torch.cuda.synchronize()

    def body() -> None:
        fill(table)
        meanwhile()
        table.mul_(3)

    filled = torch.zeros_like(table)
    fill(filled)
    assert filled.any()
    graph, _ = capture(body, capture_error_mode=mode)
    graph.replay()
    assert table.tolist() == (filled * 3).tolist()
    return graph


@pytest.mark.parametrize("layout", LAYOUTS)
def test_graphs_that_are_garbage_are_not_collected_in_a_capture(layout: str) -> None:
    thresholds = gc.get_threshold()
    with sg.debug(backend="cuda", layout=layout) as debugger:
        for _ in range(4):
            Cycle(graph_to_die())
        gc.set_threshold(10, 1, 1)
        try:
            survives(debugger, lambda: [Cycle(None) for _ in range(1000)])
        finally:
            gc.set_threshold(*thresholds)
        assert debugger.check() == ()


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("where", ["the same thread", "another thread"])
def test_a_graph_that_dies_while_another_is_captured(layout: str, where: str) -> None:
    with sg.debug(backend="cuda", layout=layout) as debugger:
        dying = [graph_to_die()]
        if where == "the same thread":
            survives(debugger, dying.clear)
        else:
            survives(debugger, lambda: elsewhere(dying.clear))
        assert debugger.facts().faults == {}


def test_a_graph_object_that_is_captured_anew() -> None:
    with sg.debug(backend="cuda", layout="isolate") as debugger:
        graph = torch.cuda.CUDAGraph()
        for _ in range(3):
            graph.reset()
            with torch.cuda.graph(graph, capture_error_mode="global"):
                kept = torch.ones(64, device="cuda") * 2
        graph.replay()
        assert kept.tolist() == [2.0] * 64
        assert debugger.check() == ()


def test_another_thread_that_checks_and_waits_does_not_break_a_capture() -> None:
    with sg.debug(backend="cuda") as debugger:
        table, other = guarded(debugger, 64), guarded(debugger, 64)
        graph, _ = capture(lambda: fill(table))
        overflow(other)
        graph.replay()
        found: list[Any] = []
        survives(debugger, lambda: elsewhere(lambda: found.extend(debugger.check())))
        debugger.check()
        assert only(debugger.findings).buffer.name == "other"


def test_memory_that_is_allocated_while_another_thread_captures_is_no_longer_written() -> None:
    """What was queued before a free still writes; the memory must not be handed out before that is over."""
    with sg.debug(backend="cuda") as debugger:
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            old = guarded(debugger, 1 << 20)
            side.synchronize()
            torch.cuda._sleep(400_000_000)
            old.fill_(7)
        seen: list[torch.Tensor] = []

        def frees_and_allocates() -> None:
            nonlocal old
            with torch.cuda.stream(side):
                del old
            seen.extend(guarded(debugger, 1 << 20) for _ in range(2))

        survives(debugger, lambda: elsewhere(frees_and_allocates), "thread_local")
        torch.cuda.synchronize()
        assert [int(tensor.count_nonzero()) for tensor in seen] == [0, 0]
        assert debugger.check() == ()


def test_in_a_capture_the_memory_of_graphs_that_are_gone_is_used_again() -> None:
    with sg.debug(backend="cuda", layout="isolate") as debugger:
        arena = debugger._allocator.arena

        def once() -> int:
            graph, kept = capture(lambda: torch.ones(1 << 20, device="cuda") * 2)
            graph.replay()
            torch.cuda.synchronize()
            del graph, kept
            return arena.reserved

        sizes = [once() for _ in range(8)]
        assert sizes[-1] == sizes[2], sizes


def test_our_kernels_are_loaded_when_the_debugger_starts() -> None:
    import ctypes

    from shadowgraph.engines.kernels import kernels_of

    with sg.debug(backend="cuda"):
        driver = ctypes.CDLL("libcuda.so.1")
        states = []
        for function in kernels_of(torch.cuda.current_device()):
            state = ctypes.c_int(-1)
            assert not driver.cuFuncIsLoaded(ctypes.byref(state), ctypes.c_void_p(function))
            states.append(state.value)
        assert set(states) == {1}
