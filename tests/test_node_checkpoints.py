"""What a check node says of a replay that launches compare as well."""

from __future__ import annotations

import pytest

import shadowgraph as sg
from shadowgraph.engines.base import Evidence, NodeCheck, Result
from shadowgraph.model.buffers import Buffer, Role
from shadowgraph.model.graphs import Graph
from shadowgraph.model.guards import guards_of
from shadowgraph.monitor.node_checkpoints import NodeCheckpoints

(GUARD,) = guards_of(Buffer(1, 4096, 100, Role.STATIC, tail_guard=64), 64)


def evidence(subject: object, at: int = 4100) -> Evidence[object]:
    return Evidence(subject, at, at, 1, ((at, at),), 1, at, b"\0", b"\1", False)


@pytest.mark.parametrize("compared", [False, True])
def test_a_range_is_judged_once_in_each_replay(compared: bool) -> None:
    graph = Graph(3, "graph#3")
    with sg.debug() as debugger:
        known = NodeCheckpoints(debugger.monitor.context)
        graph.replays = 7
        if compared:
            known.compared(graph)
        graph.replays = 9
        found = known.of([Result(NodeCheck(3, 7, True), (evidence("range"), evidence(GUARD)))])
    (result,) = found
    assert [each.subject for each in result.evidence] == ([GUARD] if compared else ["range", GUARD])
    assert result.tag.replay == 7


def test_what_one_node_reports_comes_in_order_of_address_and_nodes_as_they_came() -> None:
    later, sooner = NodeCheck(3, 8, False), NodeCheck(3, 7, True)
    reported = [(later, 5000), (sooner, 4900), (later, 4200), (sooner, 4800), (later, 4600)]
    with sg.debug() as debugger:
        known = NodeCheckpoints(debugger.monitor.context)
        found = known.of([Result(tag, (evidence(GUARD, at),)) for tag, at in reported])
    assert [(each.tag.replay, each.evidence[0].first) for each in found] == [
        *((8, at) for at in (4200, 4600, 5000)), *((7, at) for at in (4800, 4900)),
    ]  # fmt: skip
    assert [each.tag.order for each in found] == sorted(each.tag.order for each in found)
