"""A guard that two graphs break: of neither it is said that it did not do it again."""

from __future__ import annotations

import pytest
import torch
from playing import played
from programs import guarded, poke

import shadowgraph as sg


def breaker(table: torch.Tensor, offset: int, times: bool) -> sg.HostGraph:
    """A graph that is given a table and writes 4 bytes past its end, the same each time."""
    graph = sg.HostGraph()
    with sg.host_graph(graph):
        table.mul_(1) if times else table.add_(1)
        graph.call(lambda: poke(table, 4 * table.numel() + offset, 4), writes=())
    return graph


def test_each_of_two_graphs_is_found_to_be_the_culprit(monkeypatch: pytest.MonkeyPatch) -> None:
    with played(monkeypatch) as debugger:
        table = guarded(debugger, 64)
        first, second = breaker(table, 0, times=False), breaker(table, 8, times=True)
        for _ in range(6):
            for graph in (first, second):
                graph.replay()
                one, *more = debugger.check()
                assert one.culprit.status != "not_reproduced", "the same bytes again do not show"
        assert [one.graph for one in (one, *more)] == [debugger.graph(graph).name for graph in (first, second)]
        assert {one.culprit.name for one in (one, *more)} == {"breaker.<locals>.<lambda>"}
        assert {one.culprit.status for one in (one, *more)} == {"confirmed"}
