"""A probed replay of a host graph: what each node changed, while all runs as in a plain replay."""

from __future__ import annotations

import ctypes

import pytest
import torch

import shadowgraph as sg
from shadowgraph.common.internal_errors import internal_errors
from shadowgraph.model.probes import Outcome, Probe
from shadowgraph.model.ranges import ByteRange


def span(tensor: torch.Tensor, first: int = 0, last: int | None = None) -> ByteRange:
    start = tensor.data_ptr()
    return ByteRange(start + first, start + (tensor.nbytes if last is None else last + 1))


def probed(graph: sg.HostGraph, *parts: ByteRange) -> Outcome:
    """The outcome of the next replay."""
    outcomes: list[Outcome] = []
    graph.model.probe = Probe(parts, outcomes.append)
    graph.replay()
    (outcome,) = outcomes
    return outcome


def seen(outcome: Outcome, *parts: ByteRange) -> list[tuple[int, int, int, int, int]]:
    return [
        (hit.node, hit.part, hit.first - parts[hit.part].start, hit.last - parts[hit.part].start, hit.count)
        for hit in outcome.hits
    ]


def test_each_node_and_part_has_its_hit() -> None:
    one, other = torch.zeros(8, dtype=torch.uint8), torch.zeros(8, dtype=torch.uint8)
    graph = sg.HostGraph()
    with sg.host_graph(graph):
        one[2:4].add_(1)
        other.fill_(3)
        one[0].add_(1)
        one[7].add_(1)
        other.fill_(3)
    parts = span(one), span(other, 4), span(one, 2, 3)
    outcome = probed(graph, *parts)
    assert seen(outcome, *parts) == [
        (0, 0, 2, 3, 2),
        (0, 2, 0, 1, 2),
        (1, 1, 0, 3, 4),
        (2, 0, 0, 0, 1),
        (3, 0, 7, 7, 1),
    ]
    assert (outcome.replay, outcome.refused, outcome.dropped) == (1, None, 0)


def test_a_probe_is_for_one_replay() -> None:
    one = torch.zeros(4, dtype=torch.uint8)
    graph = sg.HostGraph()
    with sg.host_graph(graph):
        one.add_(1)
    outcome = probed(graph, span(one))
    graph.replay()
    assert graph.model.probe is None
    assert len(outcome.hits) == 1
    assert one.tolist() == [2] * 4
    assert probed(graph, span(one)).replay == 3


def test_guards_that_move_are_nobodys_change() -> None:
    """A block's next tenant brings its guards along; the operators around it did not write them."""
    with sg.debug(layout="faithful") as debugger:
        with debugger.guard():
            source = torch.zeros(64, dtype=torch.int32)
        graph = sg.HostGraph()
        with sg.host_graph(graph):
            first = source + 1
            source.add_(first)
            place = span(first, 0, 1023)
            del first
            second = torch.ones(50, dtype=torch.int32)
            source[:50].add_(second)
        graph.replay()
        outcome = probed(graph, place)
        assert second.data_ptr() == place.start, "the second took the first one's block"
        assert debugger.check() == ()
    assert [(node, first, last) for node, _, first, last, _ in seen(outcome, place)] == [(0, 0, 255), (2, 0, 196)]


def test_a_guard_that_a_check_arms_again_is_not_the_next_nodes() -> None:
    def poke() -> None:
        (ctypes.c_uint8 * 4).from_address(table.data_ptr() + 16)[:] = [7] * 4

    with sg.debug(locate="off") as debugger:
        with debugger.guard():
            table = torch.zeros(4, dtype=torch.int32)
        graph = sg.HostGraph()
        with sg.host_graph(graph):
            graph.call(poke)  # a check follows at once
            table.add_(1)
        outcome = probed(graph, span(table, 16, 31))
        assert len(debugger.findings) == 1
    assert [hit.node for hit in outcome.hits] == [0]


def test_what_a_raising_replay_changed_is_delivered() -> None:
    def fail() -> None:
        raise OSError("mine")

    one = torch.zeros(4, dtype=torch.uint8)
    graph = sg.HostGraph()
    with sg.host_graph(graph):
        one.add_(1)
        graph.call(fail)
        one.add_(1)
    outcomes: list[Outcome] = []
    graph.model.probe = Probe((span(one),), outcomes.append)
    with pytest.raises(OSError, match="mine"):
        graph.replay()
    assert [hit.node for hit in outcomes[0].hits] == [0]


def test_whoever_delivers_to_a_fault_goes_on() -> None:
    def broken(outcome: Outcome) -> None:
        raise ZeroDivisionError("ours, told to nobody")

    one = torch.zeros(4, dtype=torch.uint8)
    graph = sg.HostGraph()
    with sg.host_graph(graph):
        one.add_(1)
    before = internal_errors.total
    graph.model.probe = Probe((span(one),), broken)
    graph.replay()
    assert one.tolist() == [1] * 4
    assert internal_errors.total == before + 1


def test_the_same_steps_run() -> None:
    """Random numbers, views and results are as in a plain replay."""
    results = []
    for looked_at in (False, True):
        torch.manual_seed(11)
        source = torch.randn(16)
        graph = sg.HostGraph()
        with sg.host_graph(graph):
            noise = torch.rand(16)
            result = (source + noise).cumsum(0)
        graph.replay()
        if looked_at:
            assert probed(graph, span(noise), span(result)).hits
        else:
            graph.replay()
        results.append((noise.tolist(), result.tolist()))
    assert results[0] == results[1]


def test_a_block_that_gets_another_tenant_is_no_nodes_work() -> None:
    """The first tensor's guard is laid over what the second one, which is longer and has its block, held."""
    with sg.debug(layout="faithful"):
        source = torch.ones(64, dtype=torch.int32)
        graph = sg.HostGraph()
        with sg.host_graph(graph):
            first = source[:33] + 1
            short = span(first)
            del first
            second = source + 2
        assert second.data_ptr() == short.start, "they share a block"
        graph.replay()
        outcome = probed(graph, ByteRange(short.stop, span(second).stop))
    assert [hit.node for hit in outcome.hits] == [1]
