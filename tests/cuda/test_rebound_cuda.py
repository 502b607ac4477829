"""SG108 on a device with nothing declared: names that lead elsewhere, twins whose refreshes are lost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from helpers_cuda import capture, guarded, name_of, only

import shadowgraph as sg

pytestmark = [pytest.mark.gpu, pytest.mark.parametrize("layout", ["isolate", "faithful"])]


class Attention:
    """A page table whose static memory lives on, and an attribute from which a captured function takes it."""

    def __init__(self, debugger: Any) -> None:
        self.slots = torch.arange(64.0, device="cuda")
        self.static_table = guarded(debugger, 4, 4, dtype=torch.int64)
        self.table = self.static_table[:3]

    def attend(self) -> torch.Tensor:
        return self.slots[self.table].sum(1)

    def build(self, step: int) -> torch.Tensor:
        return torch.arange(12, device="cuda").view(3, 4) + step


def graph_over(body: Callable[[], Any]) -> torch.cuda.CUDAGraph:
    return capture(body)[0]


def numbers(step: int) -> torch.Tensor:
    return torch.arange(4, device="cuda") * (step + 1) + step


@pytest.mark.parametrize("fixed", [False, True])
def test_a_table_that_is_built_anew_in_each_step(layout: str, fixed: bool) -> None:
    """The shape of sglang 26019."""
    with sg.debug(backend="cuda", layout=layout) as debugger:
        attention = Attention(debugger)
        debugger.name("attention", attention)
        graph, out = capture(attention.attend)
        for step in range(1, 5):
            with debugger.prepare(graph):
                if fixed:
                    attention.table.copy_(attention.build(step))
                else:
                    attention.table = attention.build(step)
            graph.replay()
        debugger.check()
        assert bool(out.any()) is fixed, "invalid: the graph did not read what it should"
        assert debugger.facts().faults == {}
        if fixed:
            assert debugger.findings == ()
            return
        found = only(debugger.findings)
    assert (found.code, found.severity, found.phase, found.replay) == ("SG108", "error", "prepare", 2)
    assert (found.graph, found.confidence) == (name_of(graph), "medium")
    assert found.buffer.name == "attention.static_table"
    assert (found.detail.attribute, found.detail.evidence) == ("attention.table", "name")
    assert (found.culprit.name, found.culprit.stack[0].function) == ("aten.add.Tensor", "build")


@pytest.mark.parametrize("fixed", [False, True])
def test_prepare_refreshes_a_buffer_and_the_graph_reads_its_clone(layout: str, fixed: bool) -> None:
    """The shape of sglang 37975."""
    with sg.debug(backend="cuda", layout=layout) as debugger:
        slots = torch.arange(64.0, device="cuda")
        with debugger.guard():
            indices = torch.zeros(4, dtype=torch.int64, device="cuda")
            read = indices.clone()
        graph = graph_over(lambda: slots[read])
        for step in range(1, 6):
            with debugger.prepare(graph):
                (read if fixed else indices).copy_(numbers(step))
            graph.replay()
        debugger.check()
        assert bool(read.any()) is fixed, "invalid: the clone is not as it should be"
        assert debugger.facts().faults == {}
        if fixed:
            assert debugger.findings == ()
            return
        found = only(debugger.findings)
    assert (found.code, found.phase, found.confidence) == ("SG108", "prepare", "medium")
    assert (found.detail.evidence, found.detail.now.address) == ("copy", indices.data_ptr())
    assert (found.buffer.address, found.culprit.name) == (read.data_ptr(), "aten.copy_.default")


def test_the_front_is_refreshed_and_the_tail_is_read(layout: str) -> None:
    with sg.debug(backend="cuda", layout=layout) as debugger:
        slots = torch.arange(64.0, device="cuda")
        buffer = guarded(debugger, 8, dtype=torch.int64)
        graph = graph_over(lambda: slots[buffer[4:]])
        for step in range(1, 6):
            buffer[:4].copy_(numbers(step))
            graph.replay()
        debugger.check()
        found = only(debugger.findings)
        assert not buffer[4:].any(), "invalid: the tail was refreshed"
    assert (found.code, found.detail.evidence, found.buffer.address) == ("SG108", "window", buffer[4:].data_ptr())


def a_fresh_table_is_copied(attention: Attention, graph: torch.cuda.CUDAGraph, step: int) -> None:
    attention.table = attention.build(step)
    attention.static_table[:3].copy_(attention.table)


def a_table_is_refreshed_only_where_it_has_changed(
    attention: Attention, graph: torch.cuda.CUDAGraph, step: int
) -> None:
    attention.table = attention.build(step + 7)
    attention.attend().sum()  # a prefill
    new = attention.build(step // 3)
    if not torch.equal(new, attention.static_table[:3]):
        attention.static_table[:3].copy_(new)


def a_twin_is_read_by_an_operator(attention: Attention, graph: torch.cuda.CUDAGraph, step: int) -> None:
    attention.mirror.copy_(attention.build(step))  # type: ignore[attr-defined]
    attention.slots[attention.mirror].sum()  # type: ignore[attr-defined]


def a_twin_is_read_by_the_host(attention: Attention, graph: torch.cuda.CUDAGraph, step: int) -> None:
    attention.mirror.copy_(attention.build(step))  # type: ignore[attr-defined]
    attention.mirror.tolist()  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "prepare",
    [
        a_fresh_table_is_copied,
        a_table_is_refreshed_only_where_it_has_changed,
        a_twin_is_read_by_an_operator,
        a_twin_is_read_by_the_host,
    ],
)
def test_silent(layout: str, prepare: Callable[[Attention, torch.cuda.CUDAGraph, int], None]) -> None:
    with sg.debug(backend="cuda", layout=layout) as debugger:
        attention = Attention(debugger)
        with debugger.guard():
            attention.mirror = attention.static_table[:3].clone()  # type: ignore[attr-defined]
        graph = graph_over(attention.attend)
        for step in range(6):
            prepare(attention, graph, step)
            graph.replay()
        debugger.check()
        assert [found.message for found in debugger.findings] == []
        assert debugger.facts().faults == {}
        assert any(each.replays for each in debugger.graphs), "invalid: a silence over nothing"
