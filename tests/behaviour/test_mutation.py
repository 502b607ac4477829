"""SG102: what is a finding, what is a note, what is silence."""

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
    assert debugger.findings == ()
    assert debugger.notes == ()


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


def test_an_output_that_the_host_never_read_before_is_a_note() -> None:
    with sg.debug() as debugger:
        tokens = table(debugger, [5, 9, 2])
        graph = captured(lambda: tokens.copy_(tokens * tokens))
        for _ in range(3):
            graph.replay()
            tokens.tolist()
    assert debugger.findings == ()
    assert {note.code for note in debugger.notes} == {"SG102"}


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
