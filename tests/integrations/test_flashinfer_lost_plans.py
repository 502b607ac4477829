"""SG114 on wrappers that plan and run as flashinfer's do: two that share a workspace, or index buffers."""

from __future__ import annotations

from typing import Any

import planning_wrappers as wrappers
import pytest
import torch
from planning_backend import ints

import shadowgraph as sg


class Pair:
    """Two wrappers with a graph each.

    Parameters
    ----------
    shared
        The memory that both plan into: ``"workspace"``, ``"indices"``, or ``"floats"`` alone, which only graphs write.
    """

    def __init__(self, debugger: sg.Debugger, shared: str) -> None:
        self.debugger = debugger
        self.floats = torch.zeros(256, dtype=torch.uint8)
        with debugger.guard():
            self.buffers = [self._buffers() for _ in range(2)]
        if shared == "indices":
            self.buffers[1] = self.buffers[0]
        self.wrappers = [wrappers.DecodeWrapper(self.floats, *each) for each in self.buffers]
        if shared == "workspace":
            self.wrappers[1]._int_workspace_buffer = self.wrappers[0]._int_workspace_buffer
        debugger.name("pair", self)
        self.graphs = [sg.HostGraph() for _ in range(2)]
        for which, graph in enumerate(self.graphs):
            self.plan(which, 4, 4)
            with sg.host_graph(graph):
                self.wrappers[which].run()

    def _buffers(self) -> tuple[torch.Tensor, ...]:
        return torch.zeros(3, dtype=torch.int32), torch.zeros(64, dtype=torch.int32), torch.ones(2, dtype=torch.int32)

    def plan(self, which: int, *lens: int) -> None:
        indptr = torch.cat([ints(0), ints(*lens).cumsum(0, dtype=torch.int32)])
        indices = torch.arange(sum(lens), dtype=torch.int32) + which
        self.wrappers[which].plan(indptr, indices, ints(1, 1))


def only(debugger: sg.Debugger) -> Any:
    assert len(debugger.findings) == 1, [finding.message for finding in debugger.findings]
    return debugger.findings[0]


def test_two_plans_in_one_workspace(debugger: sg.Debugger) -> None:
    """The planner's own write into the integer workspace is not seen; that a plan was made is."""
    pair = Pair(debugger, "workspace")
    for step in range(3):
        pair.plan(0, 5, 6 + step)
        pair.plan(1, 5, 9 + step)
        held = pair.wrappers[0]._int_workspace_buffer[:3].tolist()
        assert held == [0, 5, 14 + step], "invalid: the workspace does not hold the second plan"
        pair.graphs[0].replay()
        pair.graphs[1].replay()
    found = only(debugger)
    assert (found.code, found.severity, found.phase, found.replay) == ("SG114", "error", "prepare", 1)
    assert (found.graph, found.occurrences) == (pair.graphs[0].model.name, 3)
    assert found.buffer.name == "pair.wrappers[0]._int_workspace_buffer"
    assert (found.bytes.first, found.bytes.last, found.bytes.count) == (8, 11, 4)
    assert (found.culprit.name, found.culprit.status) == ("DecodeWrapper.plan", "candidate")
    assert [frame.function for frame in found.culprit.stack[:2]] == ["plan", "plan"]
    detail = found.detail
    assert (detail.lost.name, detail.known) == ("DecodeWrapper.plan", "declared")
    assert (detail.other, detail.other_replay) == (pair.graphs[1].model.name, 1)
    said = str(debugger.report(quiet=True))
    assert "was prepared 0b 00 00 00" in said


def test_two_plans_in_one_index_buffer(debugger: sg.Debugger) -> None:
    """The copies of a plan onto the wrapper's own buffers are seen."""
    pair = Pair(debugger, "indices")
    pair.plan(0, 5, 6)
    pair.plan(1, 5, 9)
    pair.graphs[0].replay()
    assert pair.wrappers[0].out.tolist() == [5, 9], "invalid: the graph read its own plan"
    pair.graphs[1].replay()
    (indptr,) = [each for each in debugger.findings if each.buffer.shape == (3,)]
    assert (indptr.code, indptr.graph, indptr.replay) == ("SG114", pair.graphs[0].model.name, 1)
    assert (indptr.bytes.first, indptr.bytes.last) == (8, 11)
    assert (indptr.culprit.name, indptr.culprit.status) == ("aten.copy_.default", "confirmed")
    assert indptr.detail.known == "declared"
    assert {each.code for each in debugger.findings} == {"SG114"}


@pytest.mark.parametrize("shared", ["workspace", "indices", "floats"])
def test_plan_and_replay_in_turn_are_silent(debugger: sg.Debugger, shared: str) -> None:
    pair = Pair(debugger, shared)
    for step in range(4):
        for which, graph in enumerate(pair.graphs):
            pair.plan(which, 5, 6 + step + which)
            graph.replay()
            assert pair.wrappers[which].out.tolist() == [5, 6 + step + which]
    assert (debugger.check(), debugger.notes) == ((), ())


def test_one_float_workspace_is_silent(debugger: sg.Debugger) -> None:
    pair = Pair(debugger, "floats")
    for step in range(4):
        for which in range(2):
            pair.plan(which, 5, 6 + step + which)
        for graph in pair.graphs:
            graph.replay()
    assert (debugger.check(), debugger.notes) == ((), ())


def test_equal_plans_and_plans_made_again_are_silent(debugger: sg.Debugger) -> None:
    pair = Pair(debugger, "workspace")
    for step in range(3):
        pair.plan(0, 5, 6 + step)
        pair.plan(1, 5, 6 + step)
        for graph in pair.graphs:
            graph.replay()
    for step in range(3):
        pair.plan(0, 2, 3)
        pair.plan(0, 2, 4)
        pair.graphs[0].replay()
        pair.plan(1, 2, 5 + step)  # for a step that does not come
        pair.plan(0, 2, 6)
        pair.graphs[0].replay()
    assert (debugger.check(), debugger.notes) == ((), ())
