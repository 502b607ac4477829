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


def evidence(subject: object) -> Evidence[object]:
    return Evidence(subject, 4100, 4100, 1, ((4100, 4100),), 1, 4100, b"\0", b"\1", False)


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
