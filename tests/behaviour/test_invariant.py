"""SG109: declared and inferred rules."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from programs import guarded, only

import shadowgraph as sg
from shadowgraph.errors import UsageError


def test_judged_where_a_graph_is_about_to_rely_on_it() -> None:
    with sg.debug() as debugger:
        slots = guarded(debugger, 4)
        debugger.name("batch", {"slots": slots})
        debugger.invariant(slots, sg.index_range(0, 8))
        graph = sg.HostGraph()
        with sg.host_graph(graph):
            _kept = slots * 1
        graph.replay()
        slots[2] = 9
        graph.replay()
        graph.replay()
    found = only(debugger.findings)
    assert (found.code, found.phase, found.replay) == ("SG109", "prepare", 2)
    assert found.occurrences == 3, "two replays and the check at the end"
    assert found.rule == "index_range(0, 8): [2] = 9"
    assert (found.bytes.first, found.bytes.last) == (8, 11)
    assert found.culprit.name == "aten.copy_.default"
    assert found.buffer.name == 'batch["slots"]'


def test_only_what_the_coming_graph_captured_is_judged() -> None:
    with sg.debug() as debugger:
        indptr = guarded(debugger, 5)
        debugger.invariant(indptr, "nondecreasing")
        graph = sg.HostGraph()
        with sg.host_graph(graph):
            _kept = indptr[:3] * 1
        indptr.copy_(torch.tensor([0, 2, 4, 1, 2]))
        graph.replay()
        assert debugger.findings == ()
        indptr.copy_(torch.tensor([0, 2, 1, 1, 2]))
        graph.replay()
    assert only(debugger.findings).rule == "nondecreasing: [2] = 1 after [1] = 2"


def test_a_host_read_of_a_broken_buffer_is_reported_before_the_plan_fails() -> None:
    with sg.debug() as debugger:
        indptr = guarded(debugger, 3)
        debugger.invariant(indptr, "nondecreasing")
        indptr.copy_(torch.tensor([0, 5, 3]))
        indptr.cpu()
    found = only(debugger.findings)
    assert (found.reader.kind, found.reader.name) == ("host", "cpu")


def test_check_judges_everything_declared() -> None:
    with sg.debug() as debugger:
        values = guarded(debugger, 3)
        debugger.invariant(values, lambda v: int(v.sum()) == 0)
        assert debugger.check() == ()
        values[0] = 1
        assert len(debugger.check()) == 1
    assert "values) is false" in debugger.findings[0].rule


def test_a_rule_that_raises_is_a_fault_and_not_a_finding() -> None:
    def rule(values: np.ndarray) -> bool:
        raise KeyError("mine")

    with sg.debug() as debugger:
        values = guarded(debugger, 3)
        debugger.invariant(values, rule)
        debugger.check()
        facts = debugger.report(quiet=True).facts
    assert facts.findings == ()
    assert any("mine" in fault for fault in facts.faults)


@pytest.mark.parametrize("name", ["kv_indptr", "cu_seqlens_q", "_paged_kv_indptr_buf"])
def test_inferred_for_index_pointers_by_name(name: str) -> None:
    with sg.debug() as debugger:
        indptr = guarded(debugger, 4)
        debugger.name("attn", {"holder": type("Holder", (), {})()})
        holder = type("Holder", (), {})()
        setattr(holder, name, indptr)
        debugger.name("wrapper", holder)
        indptr.copy_(torch.arange(4))
        graph = sg.HostGraph()
        with sg.host_graph(graph):
            _kept = indptr * 1
        graph.replay()
        indptr[3] = 0
        graph.replay()
    found = only(debugger.findings)
    assert (found.code, found.confidence) == ("SG109", "medium")


def test_not_inferred_for_other_names_nor_where_it_never_held() -> None:
    with sg.debug() as debugger:
        plain, odd = guarded(debugger, 3), guarded(debugger, 3)
        odd.copy_(torch.tensor([3, 2, 1]))
        debugger.name("a", {"values": plain, "kv_indptr": odd})
        graph = sg.HostGraph()
        with sg.host_graph(graph):
            _kept = plain + odd
        plain.copy_(torch.tensor([3, 2, 1]))
        graph.replay()
    assert debugger.findings == ()


def test_what_cannot_be_ruled() -> None:
    with sg.debug() as debugger:
        values = guarded(debugger, 4, 4)
        with pytest.raises(UsageError, match="contiguous"):
            debugger.invariant(values[:, 0], "nondecreasing")
        with pytest.raises(UsageError, match="no rule 'increasing'"):
            debugger.invariant(values, "increasing")
        with pytest.raises(UsageError, match="allows no value"):
            debugger.invariant(values, sg.index_range(3, 3))
        with pytest.raises(UsageError, match="numpy has no such type"):
            debugger.invariant(guarded(debugger, 4, dtype=torch.bfloat16), "nondecreasing")
