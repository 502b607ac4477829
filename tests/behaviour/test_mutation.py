"""SG102: what is a finding, what is only counted, what is silence. `test_planning` has whole programs."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from programs import only

import shadowgraph as sg


def captured(statement: object) -> sg.HostGraph:
    graph = sg.HostGraph()
    with sg.host_graph(graph):
        statement()  # type: ignore[operator]
    return graph


def table(debugger: sg.Debugger, values: list[int], dtype: torch.dtype = torch.int32) -> torch.Tensor:
    with debugger.guard():
        return torch.tensor(values, dtype=dtype).clone()


def test_protected_is_reported_at_the_first_replay_that_changes_a_value() -> None:
    with sg.debug(infer=False) as debugger:
        indptr, lens = table(debugger, [0, 4, 8]), table(debugger, [4, 4])
        debugger.protect(indptr)
        graph = captured(lambda: indptr[1:].copy_(lens.cumsum(0)))
        graph.replay()
        assert debugger.findings == ()
        lens.fill_(5)
        graph.replay()
    found = only(debugger.findings)
    assert (found.code, found.phase, found.replay) == ("SG102", "replay", 2)
    assert (found.culprit.name, found.culprit.node) == ("aten.copy_.default", 1)
    assert (found.bytes.first, found.bytes.last, found.bytes.count) == (4, 8, 2)


def test_only_the_protected_part_counts() -> None:
    with sg.debug(infer=False) as debugger:
        values = table(debugger, [1, 2, 3, 4])
        debugger.protect(values[:2])
        captured(lambda: values[2:].add_(1)).replay()
    assert debugger.findings == ()


def test_foreign_memory_can_be_protected() -> None:
    values = torch.tensor([1, 2, 3])
    with sg.debug(infer=False) as debugger:
        debugger.protect(values)
        captured(lambda: values.mul_(2)).replay()
    assert only(debugger.findings).buffer.role == "foreign"


@pytest.mark.parametrize("read", ["cpu", "tolist", "numpy", "item", "to"])
def test_inferred_at_the_next_host_read(read: str) -> None:
    def plan(indptr: torch.Tensor) -> object:
        if read == "item":
            return indptr[2].item()
        return indptr.to("cpu") if read == "to" else getattr(indptr, read)()

    with sg.debug() as debugger:
        indptr, lens = table(debugger, [0, 4, 8]), table(debugger, [4, 7])
        graph = captured(lambda: indptr[1:].copy_(lens.cumsum(0)))
        plan(indptr)
        graph.replay()
        assert debugger.findings == ()
        plan(indptr)
    found = only(debugger.findings)
    assert (found.code, found.phase, found.replay, found.confidence) == ("SG102", "replay", 1, "medium")
    assert found.reader.kind == "host"
    assert found.reader.file.endswith("test_mutation.py")


@pytest.mark.parametrize("rewrite", ["copy_", "fill_", "out", "numpy"])
def test_a_host_rewrite_in_between_is_silence(rewrite: str) -> None:
    with sg.debug() as debugger:
        indptr, lens = table(debugger, [0, 4, 8]), table(debugger, [4, 7])
        graph = captured(lambda: indptr[1:].copy_(lens.cumsum(0)))
        bytes_of = indptr.numpy()
        indptr.cpu()
        graph.replay()
        if rewrite == "copy_":
            indptr.copy_(torch.tensor([0, 1, 2]))
        elif rewrite == "fill_":
            indptr.fill_(3)
        elif rewrite == "out":
            torch.arange(3, out=indptr)
        else:
            np.copyto(bytes_of, [0, 1, 2])  # where nobody sees it
        indptr.cpu()
    assert debugger.findings == debugger.notes == debugger.inferred == ()


def test_a_copy_onto_itself_is_no_rewrite() -> None:
    """What flashinfer's plan does when it is handed its wrapper's own buffer."""
    with sg.debug() as debugger:
        indptr, lens = table(debugger, [0, 4, 8]), table(debugger, [4, 7])
        graph = captured(lambda: indptr[1:].copy_(lens.cumsum(0)))
        indptr.cpu()
        graph.replay()
        indptr.copy_(indptr)
        indptr.cpu()
    assert only(debugger.findings).code == "SG102"


def test_an_output_that_the_host_never_read_before_is_counted() -> None:
    with sg.debug() as debugger:
        tokens = table(debugger, [5, 9, 2])
        graph = captured(lambda: tokens.copy_(tokens * tokens))
        for _ in range(3):
            graph.replay()
            tokens.tolist()
    assert debugger.findings == debugger.notes == ()
    counted = only(debugger.inferred)
    assert (counted.code, counted.severity, counted.occurrences, counted.replay) == ("SG102", "note", 3, 1)
    assert (counted.reader.name, counted.reader.wrote) == ("tolist", None)
    (limit,) = debugger.facts().limits
    assert limit.startswith("3 reads by the host of what a graph had changed (SG102) counted as no finding;")


def test_on_request_what_is_counted_is_a_note() -> None:
    with sg.debug(list_inferred=True) as debugger:
        tokens = table(debugger, [5, 9, 2])
        graph = captured(lambda: tokens.copy_(tokens * tokens))
        graph.replay()
        tokens.tolist()
    assert debugger.findings == debugger.inferred == debugger.facts().limits == ()
    assert (only(debugger.notes).code, only(debugger.notes).severity) == ("SG102", "note")


def test_what_a_graph_wrote_with_the_value_that_was_there_is_the_graphs() -> None:
    """The host reads index pointers after replays only; the first makes those again that eager work had made."""
    with sg.debug() as debugger:
        indptr, lens = table(debugger, [0, 4, 8]), table(debugger, [4, 4])
        graph = captured(lambda: indptr[1:].copy_(lens.cumsum(0)))
        for length in (4, 5, 6):
            lens[1:].fill_(length)
            graph.replay()
            indptr.tolist()
    assert debugger.findings == debugger.notes == ()
    assert only(debugger.inferred).replay == 2


def test_float_outputs_are_nobodys_business() -> None:
    with sg.debug() as debugger:
        logits = table(debugger, [1, 2, 3], torch.float32)
        graph = captured(lambda: logits.mul_(1.5))
        logits.tolist()
        graph.replay()
        logits.tolist()
    assert debugger.findings + debugger.notes == ()


def test_one_finding_for_each_graph_that_does_it() -> None:
    with sg.debug(infer=False) as debugger:
        values = table(debugger, [1, 2, 3])
        debugger.protect(values)
        one, two = captured(lambda: values.add_(1)), captured(lambda: values.mul_(2))
        for _ in range(3):
            one.replay()
            two.replay()
    assert [(f.graph, f.occurrences) for f in debugger.findings] == [(one.model.name, 3), (two.model.name, 3)]


def test_a_protected_buffer_may_be_freed() -> None:
    with sg.debug() as debugger:
        values, other = table(debugger, [1, 2, 3]), table(debugger, [1, 2])
        debugger.protect(values)
        debugger.invariant(values, "nondecreasing")
        del values
        captured(lambda: other.add_(1)).replay()
        debugger.check()
        assert debugger.report(quiet=True).facts.faults == {}
    assert debugger.findings == ()


# -- who made what, and when -----------------------------------------------------------------------------------------


def test_a_warm_up_on_zeros_hides_nothing_later() -> None:
    with sg.debug() as debugger:
        indptr, lens = table(debugger, [0, 0, 0]), table(debugger, [0, 0])
        graph = captured(lambda: indptr[1:].copy_(lens.cumsum(0)))
        graph.replay()
        lens.copy_(torch.tensor([4, 7]))
        indptr.copy_(torch.tensor([0, 4, 8]))
        indptr.tolist()
        graph.replay()
        indptr.tolist()
    assert only(debugger.findings).replay == 2


def test_an_output_does_not_become_host_made_by_being_cleared() -> None:
    with sg.debug() as debugger:
        out, lens = table(debugger, [0, 0, 0]), table(debugger, [0, 2, 3])
        graph = captured(lambda: out.copy_(lens * lens))
        for step in range(4):
            graph.replay()
            out.tolist()
            lens.copy_(torch.tensor([0, 3 + step, 5 + step]))
            out[:1].zero_()
    assert debugger.findings == ()


def test_values_that_a_graph_left_unwatched_are_not_the_hosts() -> None:
    """The host rewrites two elements of an output; the third is still the graph's, whoever read it before."""
    with sg.debug() as debugger:
        out, lens = table(debugger, [0, 0, 0]), table(debugger, [0, 2, 3])
        graph = captured(lambda: out.copy_(lens * lens))
        graph.replay()
        out[:2].copy_(torch.tensor([0, 5]))
        out.tolist()
        lens.copy_(torch.tensor([0, 2, 5]))
        graph.replay()
        out[2:].tolist()
    assert debugger.findings == ()


def test_a_second_graph_does_not_hide_the_first() -> None:
    with sg.debug() as debugger:
        values, other = table(debugger, list(range(0, 32, 4))), table(debugger, [5, 10, 13, 17])
        one, two = captured(lambda: values[1:4].copy_(other[:3])), captured(lambda: values[4:].copy_(other + 8))
        values.tolist()
        one.replay()
        two.replay()
        values[:4].tolist()
        assert only(debugger.findings).graph == one.model.name
        values.tolist()
    assert [found.graph for found in debugger.findings] == [one.model.name, two.model.name]


def test_what_a_later_graph_overwrote_is_the_later_graphs() -> None:
    with sg.debug() as debugger:
        values, other = table(debugger, [0, 4, 8]), table(debugger, [0, 3, 9])
        one, two = captured(lambda: values.copy_(other)), captured(lambda: values.copy_(other * other))
        values.tolist()
        one.replay()
        two.replay()
        values.tolist()
    assert only(debugger.findings).graph == two.model.name


def test_a_host_rewrite_of_another_column_hides_nothing() -> None:
    with sg.debug() as debugger:
        values, other = table(debugger, [0, 4, 8, 12] * 4).view(4, 4), table(debugger, [9, 3, 7, 1])
        graph = captured(lambda: values[:, 1].copy_(other))
        values.tolist()
        graph.replay()
        values[:, 0].zero_()
        values[:, 2].tolist()
        assert debugger.findings == ()
        values[:, 1].tolist()
    assert only(debugger.findings).code == "SG102"


def test_the_node_is_named_that_wrote_the_column() -> None:
    with sg.debug(infer=False) as debugger:
        values = table(debugger, list(range(16))).view(4, 4)
        debugger.protect(values)
        column = values[:, 1].clone()
        graph = sg.HostGraph()
        with sg.host_graph(graph):
            values[:, 0].add_(5)
            values[:, 1].copy_(column)
        graph.replay()
    assert (only(debugger.findings).culprit.node, debugger.findings[0].candidates) == (0, ())


def test_columns_too_long_to_tell_apart_leave_the_culprit_open() -> None:
    with sg.debug(infer=False) as debugger:
        values = table(debugger, list(range(3000))).view(1500, 2)
        debugger.protect(values)
        captured(lambda: values[:, 0].add_(5)).replay()
    assert only(debugger.findings).culprit.status == "candidate"


def test_a_new_buffer_inherits_nothing_from_its_address() -> None:
    with sg.debug() as debugger:
        with debugger.guard():
            old = torch.arange(0, 40, 4, dtype=torch.int32)
        address = old.data_ptr()
        old.tolist()
        del old
        with debugger.guard():
            values = torch.arange(0, 40, 4, dtype=torch.int32)
        assert values.data_ptr() == address, "the allocator gives the block out again"
        other = torch.arange(10, 0, -1, dtype=torch.int32)
        captured(lambda: values.copy_(other)).replay()
        values.tolist()
    assert debugger.findings == ()
    assert only(debugger.inferred).code == "SG102"


@pytest.mark.parametrize("step", [1, 3])
def test_a_masked_counter_is_counted(step: int) -> None:
    with sg.debug() as debugger:
        lens, active = table(debugger, [0, 4, 9]), table(debugger, [0, step, step])
        graph = captured(lambda: lens.add_(active))
        lens.tolist()
        graph.replay()
        lens.tolist()
    assert debugger.findings == ()
    assert only(debugger.inferred).code == "SG102"


@pytest.mark.parametrize("paused", [True, False])
def test_what_the_host_may_have_rewritten_while_nobody_watched_is_not_held_against_it(paused: bool) -> None:
    with sg.debug() as debugger:
        indptr, lens = table(debugger, [0, 4, 8]), table(debugger, [4, 7])
        graph = captured(lambda: indptr[1:].copy_(lens.cumsum(0)))
        indptr.tolist()
        graph.replay()
        if paused:
            debugger.pause()
            indptr.copy_(torch.tensor([0, 4, 11], dtype=torch.int32))  # the same values, and now the host's
            debugger.resume()
        assert indptr.tolist() == [0, 4, 11]
        assert bool(debugger.findings) is not paused
