"""Checks as nodes of a graph: each replay is checked and counted on the device, and the first bad one is dated."""

from __future__ import annotations

import ctypes
import gc
import threading
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from helpers_cuda import capture, captured, guarded, only, overflow, warm_kernels

import shadowgraph as sg
from shadowgraph.debugger import model_of
from shadowgraph.graphs.cuda import check_nodes
from shadowgraph.graphs.cuda.driver import driver, raw_graph
from shadowgraph.monitor.sampling import observation
from shadowgraph.tracking import passing

pytestmark = pytest.mark.gpu
QUIET, LOOKS_APART, PERIOD = 8, (5000, 5000), 200_000


@pytest.fixture
def debugger(monkeypatch: pytest.MonkeyPatch) -> Iterator[sg.Debugger]:
    """A debugger that soon observes no launches, and looks closer at one replay in 5,000."""
    warm_kernels()
    for name, value in (("QUIET", QUIET), ("LOOKS_APART", LOOKS_APART), ("PERIOD", PERIOD), ("LONGEST", 1)):
        monkeypatch.setattr(observation, name, value)
    with sg.debug(backend="cuda", watch_eager="sampled") as made:
        yield made


def stray_at(table: torch.Tensor, where: torch.Tensor) -> None:
    from kernels_cuda import stray

    stray[(1,)](table, where)


def counted(debugger: sg.Debugger) -> tuple[int, int]:
    """Replays of living graphs, as the device counts them: begun, and ended."""
    torch.cuda.synchronize()
    engine: Any = debugger.monitor.context.engine
    counts: list[tuple[int, int]] = list(engine.watches.counts().values())
    return sum(begun for begun, _ in counts), sum(ended for _, ended in counts)


def steady(*graphs: torch.cuda.CUDAGraph) -> None:
    """Replay until replays pass unobserved, each graph often enough."""
    for _ in range(20 * QUIET):
        for graph in graphs:
            graph.replay()
        if passing.on:
            break
    torch.cuda.synchronize()
    assert passing.on, "invalid: launches are observed still"
    for graph in graphs:
        model = model_of(graph)
        assert model is not None
        assert model.check_nodes, "invalid: no check nodes"


def test_each_replay_is_counted_on_the_device(debugger: sg.Debugger) -> None:
    table = guarded(debugger, 64)
    before = counted(debugger)
    graph, _ = capture(lambda: table.add_(1))
    for _ in range(1000):
        graph.replay()
    begun, ended = counted(debugger)
    assert (begun - before[0], ended - before[1]) == (1000, 1000)
    assert debugger.check() == ()
    assert debugger.facts().faults == {}


@pytest.mark.parametrize("queued", [0, 8])
def test_the_replay_whose_kernel_breaks_a_guard_is_dated(debugger: sg.Debugger, queued: int) -> None:
    table, where = guarded(debugger, 64), guarded(debugger, 1, dtype=torch.int64)
    graph, _ = capture(lambda: stray_at(table, where))
    steady(graph)
    model = model_of(graph)
    assert model is not None
    for _ in range(500):
        graph.replay()
    if queued:
        torch.cuda._sleep(50_000_000)
        graph.replay()
        graph.replay()
    where.fill_(64)
    graph.replay()
    broken = model.replays
    where.zero_()
    for _ in range(queued):
        graph.replay()
    torch.cuda.synchronize()
    graph.replay()
    found = only(debugger.findings)
    assert (found.code, found.past_end, found.phase, found.replay) == ("SG101", 4, "replay", broken)
    assert (found.detected_at, found.graph) == ("replay_end", model.name)
    assert found.culprit.name == "stray", "the only node that was given the buffer to write"


def test_the_preparation_that_breaks_a_guard_is_dated(debugger: sg.Debugger) -> None:
    table = guarded(debugger, 64)
    graph, _ = capture(lambda: table.sum())
    steady(graph)
    model = model_of(graph)
    assert model is not None
    for _ in range(300):
        graph.replay()
    overflow(table)
    for _ in range(3):
        graph.replay()
    torch.cuda.synchronize()
    graph.replay()
    found = only(debugger.findings)
    assert (found.code, found.past_end, found.phase, found.replay) == ("SG101", 4, "prepare", model.replays - 3)
    assert found.detected_at == "replay_begin"
    for _ in range(3):
        overflow(table)
        graph.replay()
    found = only(debugger.check())
    assert (found.culprit.name, found.culprit.status) == ("put", "confirmed")
    assert found.replay == model.replays - 6, "of the first time"


def test_replays_that_python_does_not_see_are_checked_and_counted(debugger: sg.Debugger) -> None:
    table, where = guarded(debugger, 64), guarded(debugger, 1, dtype=torch.int64)
    graph, _ = capture(lambda: stray_at(table, where))
    steady(graph)
    model = model_of(graph)
    assert model is not None
    executable = int(torch._C._CUDAGraph.raw_cuda_graph_exec(graph))
    begun, _ = counted(debugger)
    for _ in range(10):
        driver().launch(executable, torch.cuda.current_stream().cuda_stream)
    where.fill_(64)
    driver().launch(executable, torch.cuda.current_stream().cuda_stream)
    where.zero_()
    assert counted(debugger)[0] == begun + 11
    found = only(debugger.check())
    assert (found.phase, found.replay) == ("replay", model.replays + 11)


def test_an_empty_graph_stays_empty(debugger: sg.Debugger) -> None:
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        graph, _ = capture(lambda: None)
    assert any("empty" in str(each.message) for each in heard), "torch's own warning"
    assert driver().every_node(raw_graph(graph)) == []
    graph.replay()
    assert debugger.check() == ()


def test_all_branches_lie_between_head_and_tail(debugger: sg.Debugger) -> None:
    first, second = guarded(debugger, 64), guarded(debugger, 64)
    side = torch.cuda.Stream()

    def body() -> None:
        here = torch.cuda.current_stream()
        side.wait_stream(here)
        first.add_(1)
        with torch.cuda.stream(side):
            second.add_(1)
            second.mul_(2)
        here.wait_stream(side)

    graph, _ = captured(body)
    model = model_of(graph)
    assert model is not None
    assert len(model.device_nodes) == 3
    head, tail = model.check_nodes
    calls, raw = driver(), raw_graph(graph)
    assert set(calls.every_node(raw)) - set(calls.nodes(raw)) == {head, tail}
    calls.reveal((head, tail))
    edges = calls.edges(raw)
    calls.hide((head, tail))
    own = calls.nodes(raw)
    roots = {node for node in own if all(node != b for a, b in edges if a != head)}
    leaves = {node for node in own if all(node != a for a, b in edges if b != tail)}
    assert {b for a, b in edges if a == head} == roots
    assert {a for a, b in edges if b == tail} == leaves
    assert len(roots) == 2
    graph.replay()
    assert debugger.check() == ()


def test_a_graph_that_the_program_keeps(debugger: sg.Debugger) -> None:
    table, where = guarded(debugger, 64), guarded(debugger, 1, dtype=torch.int64)
    graph: Any = torch.cuda.CUDAGraph(keep_graph=True)
    with torch.cuda.graph(graph):
        stray_at(table, where)
    graph.instantiate()
    steady(graph)
    model = model_of(graph)
    assert model is not None
    where.fill_(64)
    graph.replay()
    where.zero_()
    torch.cuda.synchronize()
    graph.replay()
    found = only(debugger.findings)
    assert (found.phase, found.replay, found.culprit.name) == ("replay", model.replays - 1, "stray")


def test_one_watched_capture_updates_the_executable_form_of_another(debugger: sg.Debugger) -> None:
    """``cudaGraphExecUpdate``: both have the same two nodes more."""
    table, other = guarded(debugger, 64), guarded(debugger, 64)
    first, _ = capture(lambda: table.add_(1))
    second, _ = capture(lambda: other.add_(1))
    first.replay()
    torch.cuda.synchronize()
    executable = int(torch._C._CUDAGraph.raw_cuda_graph_exec(first))
    info = (ctypes.c_uint64 * 8)()
    updated = driver().function("cuGraphExecUpdate_v2")
    code = updated(ctypes.c_void_p(executable), ctypes.c_void_p(raw_graph(second)), ctypes.byref(info))
    assert code == 0
    driver().launch(executable, torch.cuda.current_stream().cuda_stream)
    torch.cuda.synchronize()
    assert (int(table[0]), int(other[0])) == (1, 1)
    assert debugger.check() == ()


def test_a_graph_inside_another_one(debugger: sg.Debugger) -> None:
    """A child graph: the nodes inside are checked with it, once as its own and once in the outer graph."""
    table, other = guarded(debugger, 64), guarded(debugger, 64)
    inner, _ = capture(lambda: table.add_(1))
    outer: Any = torch.cuda.CUDAGraph(keep_graph=True)
    with torch.cuda.graph(outer):
        other.add_(1)
    node, raw = ctypes.c_void_p(), raw_graph(outer)
    driver().call(
        "cuGraphAddChildGraphNode", ctypes.byref(node), ctypes.c_void_p(raw), None, ctypes.c_size_t(0),
        ctypes.c_void_p(raw_graph(inner)),
    )  # fmt: skip
    outer.instantiate()
    before = counted(debugger)
    for _ in range(5):
        outer.replay()
    assert counted(debugger)[0] - before[0] == 10
    assert (int(table[0]), int(other[0])) == (5, 5)
    assert debugger.check() == ()


def test_a_capture_goes_on_where_the_driver_refuses_a_node(
    debugger: sg.Debugger, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise check_nodes.DriverError("refused")

    monkeypatch.setattr(type(driver()), "add_edges", refuse)
    table, where = guarded(debugger, 64), guarded(debugger, 1, dtype=torch.int64)
    graph, _ = capture(lambda: stray_at(table, where))
    monkeypatch.undo()
    model = model_of(graph)
    assert model is not None
    assert not model.check_nodes
    assert len(driver().every_node(raw_graph(graph))) == 1
    for _ in range(4 * QUIET):
        graph.replay()
    where.fill_(64)
    graph.replay()
    found = only(debugger.check())
    assert (found.phase, found.replay) == ("replay", model.replays)
    assert check_nodes.REFUSED in debugger.facts().left_alone


def test_without_check_nodes_launches_check_every_replay(monkeypatch: pytest.MonkeyPatch) -> None:
    warm_kernels()
    monkeypatch.setattr(observation, "QUIET", QUIET)
    with sg.debug(backend="cuda", watch_eager="sampled", checks="launches") as debugger:
        table, where = guarded(debugger, 64), guarded(debugger, 1, dtype=torch.int64)
        graph, _ = capture(lambda: stray_at(table, where))
        for _ in range(10 * QUIET):
            graph.replay()
        model = model_of(graph)
        assert model is not None
        assert not model.check_nodes
        assert debugger.monitor.budget.checked == 10 * QUIET
        where.fill_(64)
        graph.replay()
        where.zero_()
        found = only(debugger.check())
        assert (found.phase, found.replay) == ("replay", model.replays)


def test_two_graphs_replay_at_once_while_a_thread_makes_and_frees_buffers(debugger: sg.Debugger) -> None:
    """100,000 replays on two streams, 1,000 guarded tensors: silent, and one planted write is dated."""
    first, second = guarded(debugger, 64), guarded(debugger, 64)
    where = guarded(debugger, 1, dtype=torch.int64)
    one, _ = capture(lambda: stray_at(first, where))
    two, _ = capture(lambda: second.add_(1))
    steady(one, two)
    model = model_of(one)
    assert model is not None
    errors: list[BaseException] = []
    over = threading.Event()
    made = [0]

    def churn() -> None:
        try:
            torch.cuda.set_stream(torch.cuda.Stream())
            while made[0] < 1000 and not over.is_set():
                held = [guarded(debugger, 32) for _ in range(4)]
                for each in held:
                    each.fill_(1)
                made[0] += len(held)
                del held, each
                gc.collect(0)
        except BaseException as error:
            errors.append(error)

    def replays(graph: torch.cuda.CUDAGraph, count: int) -> None:
        try:
            with torch.cuda.stream(torch.cuda.Stream()):
                for at in range(count):
                    graph.replay()
                    if at % 1000 == 999:
                        torch.cuda.current_stream().synchronize()
        except BaseException as error:
            errors.append(error)

    before = counted(debugger)
    threads = [threading.Thread(target=replays, args=(graph, 50_000)) for graph in (one, two)]
    threads.append(threading.Thread(target=churn))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert made[0] >= 1000
    assert counted(debugger)[0] - before[0] == 100_000
    assert debugger.check() == ()
    where.fill_(64)
    one.replay()
    where.zero_()
    broken = model.replays
    for _ in range(20):
        one.replay()
        two.replay()
    found = only(debugger.check())
    assert (found.phase, found.graph, found.replay) == ("replay", model.name, broken)
    assert debugger.facts().faults == {}


def test_what_happens_while_checking_is_paused_is_not_reported(debugger: sg.Debugger) -> None:
    table, where = guarded(debugger, 64), guarded(debugger, 1, dtype=torch.int64)
    graph, _ = capture(lambda: stray_at(table, where))
    steady(graph)
    debugger.pause()
    where.fill_(64)
    graph.replay()
    where.zero_()
    debugger.resume()
    for _ in range(4):
        graph.replay()
    assert debugger.check() == ()


def test_a_graph_replays_after_its_debugger_and_under_the_next_one() -> None:
    warm_kernels()
    with sg.debug(backend="cuda") as first:
        table, where = guarded(first, 64), guarded(first, 1, dtype=torch.int64)
        graph, _ = capture(lambda: stray_at(table, where))
        graph.replay()
        assert first.check() == ()
    where.fill_(64)
    for _ in range(3):
        graph.replay()
    where.zero_()
    torch.cuda.synchronize()
    with sg.debug(backend="cuda") as second:
        graph.replay()
        assert second.check() == ()
        where.fill_(64)
        graph.replay()
        where.zero_()
        found = only(second.check())
        assert (found.code, found.phase) == ("SG101", "replay")


def test_replays_between_two_debuggers_count() -> None:
    warm_kernels()
    with sg.debug(backend="cuda") as first:
        table, where = guarded(first, 64), guarded(first, 1, dtype=torch.int64)
        graph, _ = capture(lambda: stray_at(table, where))
        graph.replay()
    for _ in range(10):
        graph.replay()
    with sg.debug(backend="cuda") as second:
        graph.replay()
        where.fill_(64)
        graph.replay()
        where.zero_()
        found = only(second.check())
        assert (found.phase, found.replay) == ("replay", 13)


def test_a_graph_that_was_captured_again_unseen_is_checked_by_launches() -> None:
    warm_kernels()
    with sg.debug(backend="cuda") as first:
        table, where = guarded(first, 64), guarded(first, 1, dtype=torch.int64)
        graph, _ = capture(lambda: stray_at(table, where))
        graph.replay()
    graph.reset()
    with torch.cuda.graph(graph):
        stray_at(table, where)
    with sg.debug(backend="cuda") as second:
        second.name("table", table)
        graph.replay()
        where.fill_(64)
        graph.replay()
        where.zero_()
        model = model_of(graph)
        assert model is not None
        assert not model.checks_itself
        found = only(second.check())
        assert (found.code, found.past_end) == ("SG101", 4)


@pytest.mark.parametrize("layout", ["faithful", "isolate"])
def test_a_graph_in_a_cycle_ends_with_its_pool_while_another_replays(
    monkeypatch: pytest.MonkeyPatch, layout: str
) -> None:
    """The collector destroys it: its pool goes back to CUDA before its guards are withdrawn."""
    warm_kernels()
    for name, value in (("QUIET", QUIET), ("LOOKS_APART", LOOKS_APART), ("PERIOD", PERIOD), ("LONGEST", 1)):
        monkeypatch.setattr(observation, name, value)
    with sg.debug(backend="cuda", layout=layout, watch_eager="sampled") as debugger:
        table = guarded(debugger, 64)
        other, _ = capture(lambda: table.add_(1))
        steady(other)
        for _ in range(5):
            graph, made = capture(lambda: torch.zeros(1 << 20, device="cuda") + 1)
            graph.made, graph.itself = made, graph
            graph.replay()
            other.replay()
            del graph, made
            gc.collect()
            torch.cuda.empty_cache()
            for _ in range(50):
                other.replay()
            torch.cuda.synchronize()
        assert debugger.check() == ()
        assert debugger.facts().faults == {}


def test_of_graphs_that_are_gone_nothing_is_compared(debugger: sg.Debugger) -> None:
    engine: Any = debugger.monitor.context.engine
    before = engine.watches.live
    table = guarded(debugger, 64)
    for _ in range(50):
        graph, _ = capture(lambda: table.add_(1))
        graph.replay()
        del graph
    gc.collect()
    kept, _ = capture(lambda: table.add_(1))
    kept.replay()
    assert engine.watches.live <= before + 2
    assert debugger.check() == ()
