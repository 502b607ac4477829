"""The limit on ourselves: what is measured, when checks thin out, when they stop."""

from __future__ import annotations

import logging

import pytest
import torch

import shadowgraph as sg
from shadowgraph import HostGraph, host_graph
from shadowgraph.common.internal_errors import internal_errors
from shadowgraph.monitor.overhead_limiter import OverheadLimiter

SECOND = 1_000_000_000


class Clock:
    """Time that passes when it is told to."""

    def __init__(self) -> None:
        self.now = 0

    def __call__(self) -> int:
        return self.now


def spend(limit: OverheadLimiter, clock: Clock, inside: float, outside: float) -> bool:
    began = limit.enter()
    assert limit.enter() is None  # what is measured already is not measured twice
    clock.now += int(inside * SECOND)
    limit.leave(None)
    limit.leave(began)
    clock.now += int(outside * SECOND)
    return limit.judge(0)


def test_checks_thin_out_by_steps_then_stop() -> None:
    clock = Clock()
    limit = OverheadLimiter(50, None, clock)
    assert not spend(limit, clock, 1, 1)  # too short to judge
    assert not spend(limit, clock, 1, 5)
    assert limit.sentence() is None
    strides = []
    for _ in range(3):
        assert spend(limit, clock, 6, 1)
        strides.append(limit.stride)
    assert strides == [4, 16, 64]
    assert "one replay in 64: checking took 86 % of the time, more than 50 %" in str(limit.sentence())
    assert spend(limit, clock, 6, 1)
    assert limit.sentence() == "checks stopped: checking took 86 % of the time, more than 50 %"
    assert not spend(limit, clock, 6, 1)


def test_a_thinned_limit_checks_the_first_replay_and_every_nth() -> None:
    clock = Clock()
    limit = OverheadLimiter(50, None, clock)
    spend(limit, clock, 6, 1)
    assert [replay for replay in range(1, 14) if limit.due(replay)] == [1, 5, 9, 13]


def test_checks_come_back_where_there_is_time_again() -> None:
    clock = Clock()
    limit = OverheadLimiter(50, None, clock, every=3)
    assert spend(limit, clock, 6, 1)
    assert spend(limit, clock, 6, 1)
    assert limit.stride == 48
    assert not spend(limit, clock, 2, 6)  # 25 %: four times as many checks might be too much
    assert limit.stride == 48
    assert not spend(limit, clock, 0.5, 6)
    assert not spend(limit, clock, 0.5, 6)
    assert not spend(limit, clock, 0.5, 6)
    assert limit.stride == 3
    assert [replay for replay in range(1, 9) if limit.due(replay)] == [1, 4, 7]
    assert str(limit.sentence()).startswith(
        "checks on one replay in 3 of each graph, as asked; checks were thinned out to one replay in 48 for a time: "
    )
    assert not spend(limit, clock, 6, 1)  # no news: it was as thin as that before
    assert limit.stride == 12


def test_without_limits_nothing_is_measured() -> None:
    clock = Clock()
    limit = OverheadLimiter(None, None, clock)
    assert limit.enter() is None
    clock.now += 100 * SECOND
    assert not limit.judge(10**6)


def test_faults_thin_out_then_stop() -> None:
    limit = OverheadLimiter(None, 10, Clock())
    assert not limit.judge(10)
    assert limit.judge(11)
    assert not limit.judge(12)
    assert (limit.stride, limit.stopped) == (4, None)
    assert limit.judge(21)
    assert limit.sentence() == "checks stopped: 21 faults of shadowgraph's own, more than 10"


def test_a_debugger_that_fails_too_often_stops_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "shadowgraph")
    x = torch.zeros(4)
    with sg.debug(fault_limit=3, guard_eager="auto") as debugger:
        graph = HostGraph()
        with host_graph(graph):
            x.add_(1)
        for _ in range(3):
            for _ in range(4):
                internal_errors.note("test", ValueError("planted"))
            graph.replay()
        assert torch.zeros(8).untyped_storage().resizable()  # no more guards either
        facts = debugger.report(quiet=True)
    assert facts.facts.limits[0].startswith("checks stopped: ")
    assert "limit: checks stopped: " in str(facts)
    assert x.tolist() == [3] * 4
    internal_errors.clear()
