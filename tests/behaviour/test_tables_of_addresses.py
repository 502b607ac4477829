"""A kernel that reaches its buffers by a tensor of their addresses, as vLLM's gather of block tables does."""

from __future__ import annotations

import pytest
import torch
from captures import graph_over, silent
from programs import guarded, only

import shadowgraph as sg

pytest.importorskip("triton")

from support.table_kernels import BLOCK, fill_behind


@pytest.mark.parametrize("over", [1, 0])
def test_it_counts_as_given_the_buffers(over: int) -> None:
    with sg.debug(backend="host") as debugger:
        one, other = guarded(debugger, 8), guarded(debugger, 8)
        debugger.name("tables", {"one": one, "other": other})
        addresses = torch.tensor([one.data_ptr(), other.data_ptr()], dtype=torch.uint64)
        graph = graph_over(lambda: one + other)
        fill_behind[(2,)](addresses, 8 + over, BLOCK=BLOCK)
        graph.replay()
        if not over:
            assert silent(debugger)
            return
        names = {finding.buffer.name for finding in debugger.check()}
        assert names == {'tables["one"]', 'tables["other"]'}
        assert {finding.culprit.name for finding in debugger.findings} == {"fill_behind"}


def test_in_a_graph_they_are_inputs() -> None:
    with sg.debug(backend="host") as debugger:
        one, other = guarded(debugger, 8), guarded(debugger, 8)
        addresses = torch.tensor([one.data_ptr(), other.data_ptr()], dtype=torch.uint64)
        graph = graph_over(lambda: fill_behind[(2,)](addresses, 8, BLOCK=BLOCK) and None)
        (node,) = graph.model.nodes
        assert [p.argument for p in node.launch.pointers] == ["addresses", "addresses[0]", "addresses[1]"]
        starts = {buffer.start for buffer in graph.model.inputs.values()}
        assert {one.data_ptr(), other.data_ptr()} <= starts
        graph.replay()
        assert silent(debugger)
        assert one.tolist() == other.tolist() == list(range(8))


def test_what_a_graph_reaches_by_a_table_must_live() -> None:
    with sg.debug(backend="host") as debugger:
        held = [guarded(debugger, 8), guarded(debugger, 8)]
        addresses = torch.tensor([each.data_ptr() for each in held], dtype=torch.uint64)
        graph = graph_over(lambda: fill_behind[(2,)](addresses, 8, BLOCK=BLOCK) and None)
        graph.replay()
        assert silent(debugger)
        held.pop()
        graph.replay()
        assert only(debugger.findings).code == "SG104"
