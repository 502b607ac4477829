"""SG114 on a device: values are copied in the order of the stream, before the write that hides them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from helpers_cuda import capture, fill, guarded, name_of, only, warm_kernels

import shadowgraph as sg

pytestmark = [pytest.mark.gpu, pytest.mark.parametrize("layout", ["isolate", "faithful"])]


class Pair:
    """Two graphs that read one index buffer."""

    def __init__(self, debugger: Any) -> None:
        self.debugger = debugger
        self.x, self.out = guarded(debugger, 8), [guarded(debugger, 8) for _ in range(2)]
        debugger.name("pair", self)
        self.graphs = [capture(lambda k=k: torch.mul(self.x, 2, out=self.out[k]))[0] for k in range(2)]
        self.wrong = 0

    def plan_first(self, last: int) -> None:
        self.x.copy_(torch.tensor([0, 1, 2, 3, 4, 5, 6, last], dtype=torch.int32))

    def plan_second(self, last: int) -> None:
        self.x.copy_(torch.tensor([0, 1, 2, 3, 4, 5, 6, last], dtype=torch.int32))

    def step(self, number: int, right: bool, marked: bool, equal: bool = False) -> None:
        first, second = self.graphs
        self._prepare(0, number, marked)
        if right:
            first.replay()
        self._prepare(1, number if equal else number + 50, marked)
        if not right:
            first.replay()
        second.replay()
        self.wrong += self.out[0][7].item() != 2 * number

    def _prepare(self, which: int, last: int, marked: bool) -> None:
        with self.debugger.prepare(self.graphs[which] if marked else None):
            (self.plan_first, self.plan_second)[which](last)


def silent(debugger: Any) -> bool:
    facts = debugger.report(quiet=True).facts
    assert any(nodes and replays for _, nodes, replays in facts.graphs), "a silence over nothing"
    assert facts.faults == {}
    return facts.findings == () and facts.notes == ()


def test_two_prepare_blocks_before_two_replays(layout: str) -> None:
    with sg.debug(backend="cuda", layout=layout) as debugger:
        pair = Pair(debugger)
        for number in range(3):
            pair.step(number, right=False, marked=True)
        assert pair.wrong == 3, "invalid: the first graph read its own preparation"
        found: Any = only(debugger.check())
        assert debugger.facts().faults == {}
    assert (found.code, found.severity, found.phase, found.replay) == ("SG114", "error", "prepare", 1)
    assert (found.graph, found.confidence, found.occurrences) == (name_of(pair.graphs[0]), "medium", 3)
    assert (found.buffer.name, found.bytes.first, found.bytes.last) == ("pair.x", 28, 31)
    assert (found.culprit.name, found.culprit.stack[0].function) == ("aten.copy_.default", "plan_second")
    assert (found.detail.known, found.detail.lost.stack[0].function) == ("declared", "plan_first")
    assert (found.detail.other, found.detail.other_replay) == (name_of(pair.graphs[1]), 1)


def test_lines_tell_without_a_declaration(layout: str) -> None:
    with sg.debug(backend="cuda", layout=layout) as debugger:
        pair = Pair(debugger)
        for number in range(4):
            pair.step(number, right=number < 3, marked=False)
        assert pair.wrong == 1, "invalid: the first graph read its own preparation"
        found: Any = only(debugger.check())
    assert (found.code, found.replay, found.detail.known) == ("SG114", 4, "lines")
    assert (found.bytes.first, found.bytes.last) == (28, 31)


@pytest.mark.parametrize("marked", [True, False])
@pytest.mark.parametrize("equal", [True, False], ids=["equal", "in turn"])
def test_in_turn_and_with_equal_values_is_silent(layout: str, marked: bool, equal: bool) -> None:
    with sg.debug(backend="cuda", layout=layout) as debugger:
        pair = Pair(debugger)
        for number in range(6):
            pair.step(number, right=not equal, marked=marked, equal=equal)
        assert pair.wrong == 0
        debugger.check()
        assert silent(debugger)


def test_kernels_that_prepare(layout: str) -> None:
    """A kernel's stores are not seen: it is a candidate, and the bytes are those that differ."""
    warm_kernels()
    with sg.debug(backend="cuda", layout=layout) as debugger:
        pair = Pair(debugger)
        for graph in pair.graphs:
            with debugger.prepare(graph):
                pair.x.zero_() if graph is pair.graphs[0] else fill(pair.x)
        for graph in pair.graphs:
            graph.replay()
        assert pair.out[0].any().item(), "invalid: the first graph read its own preparation"
        found: Any = only(debugger.check())
    assert (found.code, found.graph, found.culprit.status) == ("SG114", name_of(pair.graphs[0]), "candidate")
