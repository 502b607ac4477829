"""SG114 where no more is known than of a device: values come late, and no kernel's stores or loads are seen."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from captures import graph_over, silent
from playing import played
from programs import guarded, only

import shadowgraph as sg
from shadowgraph.demos.kernels import fill


def values(*numbers: int) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.int32)


def two_readers(debugger: sg.Debugger) -> tuple[torch.Tensor, sg.HostGraph, sg.HostGraph]:
    x = guarded(debugger, 4)
    debugger.name("x", x)
    return x, graph_over(lambda: x * 2), graph_over(lambda: x * 3)


def one_step(debugger: sg.Debugger, x: torch.Tensor, graphs: tuple[Any, Any], step: int, right: bool) -> None:
    for graph, last in zip(graphs, (step, step + 10), strict=True):
        with debugger.prepare(graph):
            x.copy_(values(1, 2, 3, last))
        if right:
            graph.replay()
    if not right:
        for graph in graphs:
            graph.replay()


def test_values_are_copied_before_the_write_that_hides_them(monkeypatch: pytest.MonkeyPatch) -> None:
    with played(monkeypatch) as debugger:
        x, *graphs = two_readers(debugger)
        one_step(debugger, x, tuple(graphs), 4, right=False)
        found: Any = only(debugger.check())
    assert (found.code, found.severity, found.replay, found.confidence) == ("SG114", "error", 1, "medium")
    assert (found.graph, found.detail.other) == (graphs[0].model.name, graphs[1].model.name)
    assert (found.bytes.first, found.bytes.last, found.bytes.count) == (12, 15, 4)
    assert (found.window.expected[:8], found.window.found[:8]) == ("04000000", "0e000000")


@pytest.mark.parametrize("right", [True, False])
def test_in_turn_and_with_equal_values_is_silent(monkeypatch: pytest.MonkeyPatch, right: bool) -> None:
    with played(monkeypatch) as debugger:
        x, *graphs = two_readers(debugger)
        for step in range(4):
            if right:
                one_step(debugger, x, tuple(graphs), step, right=True)
                continue
            for graph in graphs:
                with debugger.prepare(graph):
                    x.copy_(values(1, 2, 3, step))
            for graph in graphs:
                graph.replay()
        debugger.check()
        assert silent(debugger)


def test_kernels_that_write_are_candidates(monkeypatch: pytest.MonkeyPatch) -> None:
    with played(monkeypatch) as debugger:
        x, *graphs = two_readers(debugger)
        for number, graph in enumerate(graphs):
            with debugger.prepare(graph):
                fill[(1,)](x, 0, 4, number + 1, BLOCK=16)
        for graph in graphs:
            graph.replay()
        found: Any = only(debugger.check())
    assert (found.code, found.culprit.name, found.culprit.status) == ("SG114", "fill", "candidate")
    assert (found.bytes.count, found.detail.lost.name) == (16, "fill")


def test_a_kernel_that_leaves_the_bytes_alone_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was given the whole buffer, and wrote another part of it."""
    with played(monkeypatch) as debugger:
        x = guarded(debugger, 8)
        graphs = [graph_over(lambda: x[:4] * 2), graph_over(lambda: x[4:] * 2)]
        for number, graph in enumerate(graphs):
            with debugger.prepare(graph):
                fill[(1,)](x, 4 * number, 4, number + 1, BLOCK=16)
        for graph in graphs:
            graph.replay()
        debugger.check()
        assert silent(debugger)


def learnt(x: torch.Tensor, graphs: list[Any], step: int, right: bool) -> None:
    x.copy_(values(1, 2, 3, step))
    if right:
        graphs[0].replay()
    x.copy_(values(1, 2, 3, step + 10))
    if not right:
        graphs[0].replay()
    graphs[1].replay()


def test_lines_tell_too(monkeypatch: pytest.MonkeyPatch) -> None:
    with played(monkeypatch) as debugger:
        x, *graphs = two_readers(debugger)
        for step in range(4):
            learnt(x, graphs, step, right=step < 3)
        found: Any = only(debugger.check())
    assert (found.code, found.replay, found.detail.known, found.confidence) == ("SG114", 4, "lines", "medium")
    assert found.culprit.line == found.detail.lost.line + 3


def test_the_order_tells_at_the_second_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before that, no copy was made of what was overwritten."""
    with played(monkeypatch) as debugger:
        x, *graphs = two_readers(debugger)

        def write(number: int) -> None:
            x.copy_(values(1, 2, 3, number))

        for step in range(2):
            for graph in graphs:
                write(step)
                graph.replay()
        for step in range(3):
            for number in range(2):
                write(10 * number + step)
            for graph in graphs:
                graph.replay()
        found: Any = only(debugger.check())
    assert (found.code, found.detail.known, found.replay, found.occurrences) == ("SG114", "order", 4, 2)


def test_calls_tell_at_the_second_time(monkeypatch: pytest.MonkeyPatch) -> None:
    with played(monkeypatch) as debugger:
        x, own = guarded(debugger, 4), [guarded(debugger, 4) for _ in range(2)]
        graphs = [graph_over(lambda each=each: x + each) for each in own]

        def plan(which: int, step: int) -> None:
            x.copy_(values(1, 2, 3, step + 10 * which))
            own[which].copy_(values(0, 0, 0, step))

        for step in range(3):
            for which in range(2):
                plan(which, step)
            for graph in graphs:
                graph.replay()
        found: Any = only(debugger.check())
    assert (found.code, found.detail.known, found.replay, found.occurrences) == ("SG114", "calls", 2, 2)


def test_unseen_writes_say_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    with played(monkeypatch) as debugger:
        x, *graphs = two_readers(debugger)
        with debugger.prepare(graphs[0]):
            x.copy_(values(1, 2, 3, 4))
        debugger.monitor.invalidate_writers()
        with debugger.prepare(graphs[1]):
            x.copy_(values(1, 2, 3, 5))
        for graph in graphs:
            graph.replay()
        debugger.check()
        assert silent(debugger)
