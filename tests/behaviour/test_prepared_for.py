"""Evidence that comes late, and pointers that only library code was given: prepare is prepare still."""

from __future__ import annotations

import pytest
from playing import played
from programs import guarded, only, overflow, reader_of

from shadowgraph.common.internal_errors import internal_errors
from shadowgraph.model.device_nodes import BLIND, DeviceNode, NodeKind, Sureness, Word
from shadowgraph.model.ranges import ByteRange


def test_what_was_done_in_prepare_is_prepare_still(monkeypatch: pytest.MonkeyPatch) -> None:
    with played(monkeypatch) as debugger:
        table = guarded(debugger, 64)
        debugger.name("table", table)
        graph, _kept = reader_of(table)
        name = debugger.graph(graph).name
        overflow(table, 2)
        graph.replay()
        assert not debugger.monitor.book.findings, "nothing has arrived yet"
        graph.reset()
        assert not debugger.graphs, "the graph has ended"
        found = only(debugger.check())
    assert (found.code, found.past_end, found.phase, found.replay) == ("SG101", 8, "prepare", 1)
    assert found.graph == name


def test_a_buffer_that_only_library_code_was_given_is_prepared_for_the_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    with played(monkeypatch) as debugger:
        table, other = guarded(debugger, 64), guarded(debugger, 64)
        graph, _kept = reader_of(other)
        assert not graph.model.touches(ByteRange(table.data_ptr(), table.data_ptr() + 256)), "no operator was given it"
        word = Word(0, 40, "", table.data_ptr() + 128, Sureness.MEDIUM)
        graph.model.build_device_later(lambda: (DeviceNode(0, NodeKind.KERNEL, "decode", words=(word,)),))
        overflow(table, 2)
        graph.replay()
        found = only(debugger.check())
    assert (found.phase, found.graph, found.replay) == ("prepare", graph.model.name, 1)


@pytest.mark.parametrize("marked", [True, False])
def test_what_was_marked_to_prepare_a_graph_that_nobody_can_read(monkeypatch: pytest.MonkeyPatch, marked: bool) -> None:
    with played(monkeypatch) as debugger:
        table, other = guarded(debugger, 64), guarded(debugger, 64)
        graph, _kept = reader_of(other)
        nodes = (DeviceNode(0, NodeKind.KERNEL, "a kernel without a name", note=BLIND),)
        graph.model.build_device_later(lambda: nodes)  # the context has died
        preparing = debugger.monitor.preparing
        block = preparing.begin(graph.model) if marked else None  # as an adapter does, which ends it before the replay
        overflow(table, 2)
        if block is not None:
            block.end()
        graph.replay()
        found = only(debugger.check())
    said = ("prepare", graph.model.name, 1) if marked else ("setup", None, None)
    assert (found.phase, found.graph, found.replay) == said


def test_what_was_marked_to_prepare_another_graph_is_not_this_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    with played(monkeypatch) as debugger:
        table, one, two = (guarded(debugger, 64) for _ in range(3))
        (graph, _kept), (another, _more) = reader_of(one), reader_of(two)
        block = debugger.monitor.preparing.begin(another.model)
        overflow(table, 2)
        block.end()
        graph.replay()
        found = only(debugger.check())
    assert (found.phase, found.graph, found.replay) == ("setup", None, None)


def test_a_buffer_that_no_node_leads_into_is_set_up(monkeypatch: pytest.MonkeyPatch) -> None:
    with played(monkeypatch) as debugger:
        table, other = guarded(debugger, 64), guarded(debugger, 64)
        graph, _kept = reader_of(other)
        word = Word(0, 40, "", table.data_ptr() + 128, Sureness.LOW)
        graph.model.build_device_later(lambda: (DeviceNode(0, NodeKind.KERNEL, "decode", words=(word,)),))
        overflow(table, 2)
        graph.replay()
        found = only(debugger.check())
    assert (found.phase, found.graph, found.replay) == ("setup", None, None)


def test_a_graph_that_cannot_be_read_costs_no_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> tuple[DeviceNode, ...]:
        raise KeyError("an edge to a node that was not listed")

    before = internal_errors.counts
    with played(monkeypatch) as debugger:
        table, other = guarded(debugger, 64), guarded(debugger, 64)
        graph, _kept = reader_of(other)
        graph.model.build_device_later(broken)
        overflow(table, 2)
        graph.replay()
        found = only(debugger.check())
        assert "KeyError" in graph.model.unread
    assert (found.code, found.past_end, found.phase) == ("SG101", 8, "setup")
    assert any("reading of a graph" in fault for fault in internal_errors.counts if fault not in before)
