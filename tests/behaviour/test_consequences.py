"""What follows from an overrun is a finding of its own that names it; an independent fault names none."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
import torch
from overrunning import Open, between, quiet, row_of, write
from programs import guarded, only

import shadowgraph as sg
from shadowgraph.model.findings import Finding, Status
from shadowgraph.model.kinds import decode_detail

pytestmark = pytest.mark.usefixtures("blocks_in_a_row")


def by_code(debugger: sg.Debugger) -> dict[str, Finding]:
    found = debugger.check()
    assert len({one.code for one in found}) == len(found), [one.message for one in found]
    assert debugger.report(quiet=True).facts.faults == {}
    return {one.code: one for one in found}


def causes(found: dict[str, Finding]) -> dict[str, tuple[int, bool] | None]:
    return {
        code: (one.caused_by.finding, one.caused_by.sure) if one.caused_by is not None else None
        for code, one in found.items()
    }


# -- a declared buffer that a replay changes (SG102) -----------------------------------------------------------------


def declared(debugger: sg.Debugger, over: bool) -> tuple[sg.HostGraph, list[torch.Tensor], Any]:
    """A graph with an overrun of ``t0``, and with a launch that writes ``t1``, which is declared."""
    row = row_of(debugger, 3)
    debugger.protect(row[1])
    graph = sg.HostGraph()
    with sg.host_graph(graph):
        write(row[0], 0, between(row[0], row[1]) + 10 if over else 64 + 4, value=5)
        if not over:
            row[1][:2].add_(1)
        kept = [tensor.sum() for tensor in row]
    row[1].zero_()
    return graph, row, kept


def test_a_declared_buffer_that_the_overrun_changes(knowing: Open) -> None:
    with knowing() as debugger:
        graph, row, _kept = declared(debugger, over=True)
        for _ in range(3):
            graph.replay()
            row[1].zero_()
        found = by_code(debugger)
        said = str(debugger.report(quiet=True)).splitlines()
    overrun, changed = found["SG101"], found["SG102"]
    assert causes(found) == {"SG101": None, "SG102": (overrun.id, True)}
    assert (changed.caused_by.code, changed.caused_by.buffer, changed.caused_by.fingerprint) == (
        "SG101",
        "t0",
        overrun.fingerprint,
    )
    assert changed.message.endswith(f", caused by SG101 of t0 #{overrun.id}")
    (reached,) = overrun.detail.reaches
    assert reached.name == "t1"
    assert reached.overwritten == changed.bytes.last + 1 or reached.overwritten == 40
    assert said[-2] == "shadowgraph: 1 finding, 1 consequence"


def test_a_declared_buffer_that_another_node_changes(knowing: Open) -> None:
    with knowing() as debugger:
        graph, row, _kept = declared(debugger, over=False)
        for _ in range(3):
            graph.replay()
            row[1].zero_()
        found = by_code(debugger)
    assert causes(found) == {"SG101": None, "SG102": None}


def test_a_node_that_changes_a_declared_buffer_behind_what_was_overwritten() -> None:
    """The overrun is in the same replay, and its stores say where it ended."""
    with sg.debug() as debugger:
        row = row_of(debugger, 3)
        debugger.protect(row[1])
        graph = sg.HostGraph()
        with sg.host_graph(graph):
            write(row[0], 0, between(row[0], row[1]), value=5)
            row[1][40:].add_(1)
            _kept = [tensor.sum() for tensor in row]
        row[1].zero_()
        graph.replay()
        assert causes(by_code(debugger)) == {"SG101": None, "SG102": None}


# -- values that break a rule (SG109) --------------------------------------------------------------------------------


def test_a_rule_that_overwritten_values_break(knowing: Open) -> None:
    with knowing() as debugger:
        row = row_of(debugger, 3)
        debugger.invariant(row[1], "nondecreasing")
        graph, _kept = quiet(*row)
        for step in range(3):
            write(row[0], 0, between(row[0], row[1]) + 10, value=5 + step)
            graph.replay()
        found = by_code(debugger)
    assert found["SG109"].caused_by is not None
    assert found["SG109"].caused_by.finding == found["SG101"].id
    assert found["SG109"].caused_by.sure == (found["SG109"].culprit.name == "fill")


def test_a_rule_that_its_own_launch_breaks_is_independent() -> None:
    """At the same time as an overrun into the buffer, behind what that wrote."""
    with sg.debug() as debugger:
        row = row_of(debugger, 3)
        debugger.invariant(row[1], "nondecreasing")
        graph, _kept = quiet(*row)
        write(row[0], 0, between(row[0], row[1]), value=0)
        row[1].copy_(torch.arange(64, 0, -1))
        graph.replay()
        found = by_code(debugger)
    assert causes(found) == {"SG101": None, "SG109": None}


def test_a_rule_that_a_seen_launch_may_have_broken_on_a_device(device: sg.Debugger) -> None:
    """The stores of the overrun are not seen there: either launch may have done it, and both findings count."""
    row = row_of(device, 3)
    device.invariant(row[1], "nondecreasing")
    graph, _kept = quiet(*row)
    row[1].zero_()
    write(row[0], 0, between(row[0], row[1]) + 10, value=5)
    graph.replay()
    found = by_code(device)
    assert found["SG109"].culprit.name == "aten.zero_.default"
    assert causes(found) == {"SG101": None, "SG109": (found["SG101"].id, False)}
    assert str(device.report(quiet=True)).splitlines()[-2] == "shadowgraph: 2 findings"


def test_a_rule_broken_in_another_step_is_independent(device: sg.Debugger) -> None:
    row = row_of(device, 3)
    device.invariant(row[1], "nondecreasing")
    graph, _kept = quiet(*row)
    row[1].copy_(torch.arange(64, 0, -1))
    graph.replay()
    row[1].zero_()
    write(row[0], 0, between(row[0], row[1]) - 20, value=5)
    graph.replay()
    assert causes(by_code(device)) == {"SG101": None, "SG109": None}


def test_a_cause_that_is_seen_after_its_consequence() -> None:
    """A host read checks the rule before the next boundary checks the guards."""
    with sg.debug() as debugger:
        row = row_of(debugger, 3)
        debugger.invariant(row[1], "nondecreasing")
        graph, _kept = quiet(*row)
        write(row[0], 0, between(row[0], row[1]) + 10, value=5)
        row[1].tolist()
        broken = only(debugger.monitor.book.findings)
        assert (broken.code, broken.caused_by) == ("SG109", None)
        graph.replay()
        found = by_code(debugger)
    assert found["SG109"].id < found["SG101"].id
    assert causes(found) == {"SG101": None, "SG109": (found["SG101"].id, True)}
    assert found["SG109"].revision > broken.revision


@pytest.mark.parametrize("over", [True, False])
def test_an_index_out_of_range_from_overwritten_values(over: bool) -> None:
    with sg.debug(sync=True) as debugger:
        row = row_of(debugger, 3)
        table = guarded(debugger, 8)
        graph, _kept = quiet(*row)
        with pytest.raises(sg.FindingsError, match="SG101"), debugger.prepare(graph):
            write(row[0], 0, between(row[0], row[1]) + (10 if over else -20), value=5)
        if not over:
            row[1][:10] = 5000
        with pytest.raises(sg.FindingsError, match="SG109"), debugger.prepare(graph):
            table.index_select(0, row[1])
        found = by_code(debugger)
    assert found["SG109"].buffer.shape == (8,)
    assert causes(found) == {"SG101": None, "SG109": (found["SG101"].id, False) if over else None}


# -- as data ---------------------------------------------------------------------------------------------------------


def test_it_is_written_and_read_back(device: sg.Debugger) -> None:
    graph, row, _kept = declared(device, over=True)
    for _ in range(3):
        graph.replay()
        row[1].zero_()
    found = by_code(device)
    for one in found.values():
        assert one.culprit.status is Status.CONFIRMED
        read = msgspec.convert(json.loads(json.dumps(one.to_dict())), Finding, dec_hook=decode_detail)
        assert read == one
    document = json.loads(device.report(quiet=True).to_json())
    assert [each["code"] for each in document["findings"]] == ["SG101", "SG102"]
    assert document["findings"][1]["caused_by"]["finding"] == document["findings"][0]["id"]
    assert {each["continues"]["finding"] for each in document["parts"]} == {document["findings"][0]["id"]}
    assert document["findings"][0]["detail"]["extent_nbytes"] > 0
