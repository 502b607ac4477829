"""Graphs that were captured before the debugger watched are told as such."""

from __future__ import annotations

import torch

import shadowgraph as sg


def captured(source: torch.Tensor) -> sg.HostGraph:
    graph = sg.HostGraph()
    with sg.host_graph(graph):
        source + 1
    return graph


def lines(debugger: sg.Debugger) -> list[str]:
    return [line for line in str(debugger.report(quiet=True)).splitlines() if "captured before" in line]


def test_graphs_captured_before_are_counted_and_named() -> None:
    source = torch.zeros(4)
    earlier = [captured(source) for _ in range(6)]
    with sg.debug() as debugger:
        for graph in earlier[:2]:
            graph.replay()
            graph.replay()
        (line,) = lines(debugger)
        both = ", ".join(graph.model.name for graph in earlier[:2])
        assert line.startswith(f"limit: 2 graphs ({both}) were captured before this debugger watched: their inputs")
        for graph in earlier:
            graph.replay()
    (line,) = lines(debugger)
    assert f"6 graphs ({', '.join(graph.model.name for graph in earlier[:4])}, ...) were captured before" in line
    assert "no graph captured under the debugger wrote anything yet" in str(debugger.report(quiet=True))


def test_graphs_of_the_block_are_not() -> None:
    source = torch.zeros(4)
    captured(source)  # and not replayed
    with sg.debug() as debugger:
        graph = captured(source)
        graph.replay()
    assert lines(debugger) == []


def test_a_graph_of_an_earlier_debugger_counts() -> None:
    source = torch.zeros(4)
    with sg.debug() as first:
        graph = captured(source)
        graph.replay()
    with sg.debug() as second:
        graph.replay()
    assert lines(first) == []
    (line,) = lines(second)
    assert f"1 graph ({graph.model.name}) was captured before this debugger watched: its inputs" in line
