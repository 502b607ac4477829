"""SG109: declared and inferred rules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from programs import guarded, only, reader_of

import shadowgraph as sg
from shadowgraph.checks.base import Checkpoint
from shadowgraph.checks.invariants.check import Invariants, _Look
from shadowgraph.common.errors import UsageError
from shadowgraph.monitor.finding_store import FindingStore


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
    assert found.occurrences == 2, "two replays; the check at the end saw nothing new"
    assert found.detail.rule == "index_range(0, 8): [2] = 9"
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
    assert only(debugger.findings).detail.rule == "nondecreasing: [2] = 1 after [1] = 2"


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
    assert "values) is false" in debugger.findings[0].detail.rule


@pytest.mark.parametrize("raises", [True, False])
def test_a_rule_that_raises_is_no_finding_and_no_fault_of_the_debugger(
    raises: bool, caplog: pytest.LogCaptureFixture
) -> None:
    def rule(values: np.ndarray) -> bool:
        if raises:
            raise KeyError("mine")
        return True

    with sg.debug() as debugger:
        values = guarded(debugger, 3)
        debugger.invariant(values, rule)
        debugger.check()
        report = debugger.report(quiet=True)
    assert report.facts.findings == ()
    lines, logged = str(report).splitlines(), "\n".join(caplog.messages)
    unchecked = [line for line in lines if line.startswith("not checked, ")]
    assert any("the program's rule rule: KeyError: 'mine'" in line for line in unchecked) is raises
    assert ("shadowgraph: no findings, 1 rule not checked" in lines) is raises
    assert ("shadowgraph: no findings" in lines) is not raises
    assert ("the program's rule rule: KeyError: 'mine'; what it should check is not checked" in logged) is raises
    assert "internal error" not in str(report)
    assert "shadowgraph fault" not in logged


@pytest.mark.parametrize("name", ["kv_indptr", "cu_seqlens_q", "_paged_kv_indptr_buf"])
def test_inferred_for_index_pointers_by_name(name: str) -> None:
    with sg.debug() as debugger:
        indptr = guarded(debugger, 4)
        holder = type("Holder", (), {})()
        setattr(holder, name, indptr)
        debugger.name("wrapper", holder)
        indptr.copy_(torch.arange(4))
        graph = sg.HostGraph()
        with sg.host_graph(graph):
            _kept = indptr[:3] * 1
        graph.replay()
        indptr[2] = 0
        graph.replay()
    found = only(debugger.findings)
    assert (found.code, found.confidence) == ("SG109", "medium")


def test_inferred_is_a_note_where_the_graph_was_given_the_stale_tail_too() -> None:
    with sg.debug() as debugger:
        indptr = guarded(debugger, 5)
        debugger.name("attn", {"kv_indptr": indptr})
        graph = sg.HostGraph()
        with sg.host_graph(graph):
            _kept = torch.index_select(indptr, 0, torch.tensor([0, 1]))
        with debugger.prepare(graph):
            indptr.copy_(torch.arange(5))
        graph.replay()
        with debugger.prepare(graph):
            indptr[:2].copy_(torch.tensor([0, 40]))
        graph.replay()
        assert debugger.findings == ()
        note = only(debugger.notes)
        assert (note.code, note.confidence, note.replay) == ("SG109", "low", 2)
        indptr.tolist()
    assert only(debugger.findings).id == note.id, "the host itself reads all of it"
    assert debugger.findings[0].confidence == "medium"


def test_a_host_read_of_what_a_graph_was_given_in_two_views_is_sure() -> None:
    with sg.debug() as debugger:
        indptr = guarded(debugger, 5)
        debugger.name("attn", {"kv_indptr": indptr})
        graph = sg.HostGraph()
        with sg.host_graph(graph):
            _lens = indptr[1:] - indptr[:-1]
        indptr[2] = -1
        indptr[:3].tolist()
        assert debugger.findings == (), "another range than the graph's"
        indptr.tolist()
    found = only(debugger.findings)
    assert (found.detected_at, found.confidence) == ("host_read", "medium")


Fill = Callable[[torch.Tensor, list[int]], Any]  # index pointers, of whatever length, for a padded batch


def zeros_before(indptr: torch.Tensor, values: list[int]) -> None:
    indptr.zero_()
    indptr[1 : len(values)] = torch.tensor(values[1:], dtype=torch.int32)


def zeros_behind(indptr: torch.Tensor, values: list[int]) -> None:
    indptr[1 : len(values)] = torch.tensor(values[1:], dtype=torch.int32)
    indptr[len(values) :] = 0


def zeros_to_the_batch(indptr: torch.Tensor, values: list[int]) -> None:
    indptr[: len(values)] = torch.tensor(values, dtype=torch.int32)
    indptr[len(values) : 5] = 0


def zeros_in_one_copy(indptr: torch.Tensor, values: list[int]) -> None:
    indptr[:5].copy_(torch.tensor(values + [0] * (5 - len(values)), dtype=torch.int32))


def in_sums(indptr: torch.Tensor, values: list[int]) -> None:
    lengths = torch.tensor(values).diff()
    indptr.fill_(0)
    torch.cumsum(lengths, 0, dtype=torch.int32, out=indptr[1 : len(values)])


def indptr_and_graph(debugger: sg.Debugger) -> tuple[torch.Tensor, sg.HostGraph]:
    """Index pointers, and a graph that was given the first five of them."""
    indptr = guarded(debugger, 9)
    debugger.name("attn", {"kv_indptr": indptr})
    return indptr, reader_of(indptr[:5])[0]


@pytest.mark.parametrize("fill", [zeros_before, zeros_behind, zeros_to_the_batch, zeros_in_one_copy, in_sums])
def test_zeros_of_padded_rows_are_a_note(fill: Fill) -> None:
    """A padded row runs from the last index pointer to 0: a loop over it is empty."""
    with sg.debug() as debugger:
        indptr, graph = indptr_and_graph(debugger)
        for values in ([0, 2, 5, 6], [0, 1, 2, 3, 4], [0, 7], [0, 2, 5]):
            with debugger.prepare(graph):
                fill(indptr, values)
            for _ in range(2):
                graph.replay()
        indptr[:5].tolist()
        assert debugger.findings == ()
        note = only(debugger.notes)
        assert (note.code, note.confidence, note.replay) == ("SG109", "low", 1)
        assert note.detail.rule == "nondecreasing: [4] = 0 after [3] = 6"
        assert debugger.facts().faults == {}


def test_zeros_of_padded_rows_that_another_graph_fills_in_are_a_note() -> None:
    with sg.debug() as debugger:
        indptr, graph = indptr_and_graph(debugger)
        planned = torch.tensor([2, 5, 6], dtype=torch.int32)
        plan = sg.HostGraph()
        with sg.host_graph(plan):
            indptr.zero_()
            indptr[1:4].copy_(planned)
        for _ in range(3):
            plan.replay()
            graph.replay()
        assert debugger.findings == ()
        assert only(debugger.notes).code == "SG109"


def test_after_a_pause_it_is_not_known_when_zeros_were_filled_in() -> None:
    with sg.debug() as debugger:
        indptr, graph = indptr_and_graph(debugger)
        graph.replay()
        debugger.pause()
        indptr.zero_()
        debugger.resume()
        indptr[1:4] = torch.tensor([2, 5, 6])
        graph.replay()
        assert debugger.findings == ()


def refreshed_for_fewer_rows(indptr: torch.Tensor) -> None:
    indptr[:4] = torch.tensor([0, 2, 5, 6])


def shrinking(indptr: torch.Tensor) -> None:
    indptr[:5] = torch.tensor([0, 2, 5, 3, 0])


def without_what_follows(indptr: torch.Tensor) -> None:
    indptr[:5] = torch.tensor([0, 2, 0, 0, 6])


def lost_at_the_end(indptr: torch.Tensor) -> None:
    indptr[:5] = torch.tensor([0, 2, 5, 6, 1])


@pytest.mark.parametrize("fill", [refreshed_for_fewer_rows, shrinking, without_what_follows, lost_at_the_end])
def test_other_falls_are_errors(fill: Callable[[torch.Tensor], Any]) -> None:
    with sg.debug() as debugger:
        indptr, graph = indptr_and_graph(debugger)
        fill(indptr)
        graph.replay()
        found = only(debugger.findings)
    assert (found.code, found.severity, found.confidence, found.replay) == ("SG109", "error", "medium", 1)


@pytest.mark.parametrize("steps", [1, 70])
def test_zeros_from_the_allocation_are_no_padding_of_a_later_batch(steps: int) -> None:
    """However many writes were seen since."""
    with sg.debug() as debugger:
        indptr, graph = indptr_and_graph(debugger)
        smaller = reader_of(indptr[:4])[0]
        for step in range(steps):
            indptr[:4] = torch.tensor([0, 2, 5, 6 + step])
            smaller.replay()
        assert debugger.findings == () == debugger.notes
        graph.replay()
        assert only(debugger.findings).detail.rule == f"nondecreasing: [4] = 0 after [3] = {5 + steps}"


def test_a_declared_rule_takes_zeros_of_padded_rows_for_an_error() -> None:
    with sg.debug() as debugger:
        indptr, graph = indptr_and_graph(debugger)
        debugger.invariant(indptr, "nondecreasing")
        zeros_before(indptr, [0, 2, 5, 6])
        graph.replay()
        assert only(debugger.findings).confidence == "high"


def test_another_rule_on_the_same_range_does_not_stop_inference() -> None:
    with sg.debug() as debugger:
        indptr = guarded(debugger, 5)
        debugger.name("attn", {"kv_indptr": indptr})
        debugger.invariant(indptr, sg.index_range(0, 100))
        graph = sg.HostGraph()
        with sg.host_graph(graph):
            _kept = indptr[:4] * 1
        indptr.copy_(torch.tensor([4, 3, 2, 1, 0]))
        graph.replay()
    assert only(debugger.findings).detail.rule == "nondecreasing: [1] = 3 after [0] = 4"


def test_a_rule_broken_by_a_node_is_blamed_on_its_replay() -> None:
    with sg.debug() as debugger:
        indptr, wrong = guarded(debugger, 3), torch.tensor([5, 1, 2], dtype=torch.int32)
        debugger.invariant(indptr, "nondecreasing")
        other, _output = reader_of(indptr)
        graph = sg.HostGraph()
        with sg.host_graph(graph):
            _kept = indptr * 1
            indptr.copy_(wrong)
        other.replay()
        graph.replay()
        other.replay()
        graph.replay()
    found = only(debugger.findings)
    assert (found.phase, found.graph, found.replay) == ("replay", graph.model.name, 1)
    assert (found.culprit.name, found.culprit.node) == ("aten.copy_.default", 1)
    assert "in replay 1 of" in found.message


@pytest.mark.parametrize(
    ("replays", "read", "expected"),
    [(0, False, ("setup", None)), (1, False, ("eager", None)), (0, True, ("prepare", 1)), (2, True, ("prepare", 3))],
)
def test_phase_of_an_eager_write(replays: int, read: bool, expected: tuple[str, int | None]) -> None:
    with sg.debug() as debugger:
        indptr, unruled = guarded(debugger, 3), guarded(debugger, 3)
        debugger.invariant(indptr, "nondecreasing")
        graph, _output = reader_of(indptr if read else unruled)
        for _ in range(replays):
            graph.replay()
        indptr.copy_(torch.tensor([3, 2, 1]))
        found = only(debugger.check())
    assert (found.phase, found.replay) == expected


def test_a_write_before_any_capture_is_setup_though_a_graph_reads_it_later() -> None:
    with sg.debug() as debugger:
        indptr = guarded(debugger, 3)
        debugger.invariant(indptr, "nondecreasing")
        indptr.copy_(torch.tensor([3, 2, 1]))
        graph, _output = reader_of(indptr)
        graph.replay()
    found = only(debugger.findings)
    assert (found.phase, found.graph, found.detected_at) == ("setup", None, "replay_begin")


def test_the_element_before_the_falling_one_may_be_the_wrong_one() -> None:
    with sg.debug() as debugger:
        indptr = guarded(debugger, 5)
        debugger.invariant(indptr, "nondecreasing")
        indptr.copy_(torch.arange(5))
        indptr[1].fill_(9)
        found = only(debugger.check())
    assert found.detail.rule == "nondecreasing: [2] = 2 after [1] = 9"
    assert found.culprit.name == "aten.fill_.Scalar"


def test_what_was_written_after_the_bytes_were_asked_for_is_not_blamed() -> None:
    with sg.debug() as debugger:
        indptr = guarded(debugger, 3)
        debugger.invariant(indptr, "nondecreasing")
        check = debugger._work.checks[Invariants]
        indptr.copy_(torch.tensor([3, 2, 1]))
        asked = Checkpoint("replay_begin", order=next(check.context.clock))
        key = _Look(check.invariants[0], check.invariants[0].where)
        data = indptr.numpy().tobytes()
        indptr.zero_()
        debugger._work._pipeline.book = FindingStore()  # the read above was a finding
        check.fetched(key, data, asked)
        assert only(debugger.findings).culprit.name == "aten.copy_.default"


def test_who_wrote_before_a_pause_is_not_blamed_after_it() -> None:
    with sg.debug() as debugger:
        indptr = guarded(debugger, 3)
        debugger.invariant(indptr, "nondecreasing")
        indptr.copy_(torch.arange(3))
        debugger.pause()
        indptr.copy_(torch.tensor([3, 2, 1]))
        debugger.resume()
        found = only(debugger.check())
    assert found.culprit.name is None


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


def test_checks_that_see_what_was_known_are_no_further_occurrence() -> None:
    with sg.debug() as debugger:
        slots = guarded(debugger, 4)
        debugger.invariant(slots, sg.index_range(0, 8))
        slots[2] = 9
        for _ in range(5):
            debugger.check()
        assert only(debugger.findings).occurrences == 1
        slots[1] = 8
        for _ in range(5):
            debugger.check()
        assert only(debugger.findings).occurrences == 2, "another value broke it"


def test_a_name_of_what_had_the_bytes_before_infers_nothing() -> None:
    with sg.debug() as debugger:
        indptr = guarded(debugger, 4)
        address = indptr.data_ptr()
        debugger.name("attn", {"kv_indptr": indptr})
        del indptr
        slots = guarded(debugger, 4)
        assert slots.data_ptr() == address
        graph, _kept = reader_of(slots)
        slots.copy_(torch.tensor([3, 0, 2, 1]))
        graph.replay()
        assert debugger.graph(graph).replays == 1
    assert debugger.findings == () == debugger.notes
