"""SG101 on either side, in each phase, with the culprit, the graph and the replay exact."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
import torch
from programs import guarded, only, overflow, poke, reader_of, underflow

import shadowgraph as sg


@pytest.mark.parametrize("elements", [1, 3, 60, 150])
def test_past_the_end_in_prepare(elements: int) -> None:
    with sg.debug() as debugger:
        table = guarded(debugger, 64)
        graph, _kept = reader_of(table)
        graph.replay()
        overflow(table, 0)  # fits
        graph.replay()
        overflow(table, elements)
        graph.replay()
    found = only(debugger.findings)
    assert (found.code, found.phase, found.graph, found.replay) == ("SG101", "prepare", graph.model.name, 3)
    assert (found.past_end, found.bytes.first, found.bytes.distance) == (4 * elements, 256, 0)
    assert (found.bytes.side, found.bytes.truncated) == ("after", False)
    assert (found.culprit.name, found.culprit.status, found.culprit.node) == ("fill", "confirmed", None)
    assert found.culprit.stack[0].function == "overflow"
    assert (found.reader.kind, found.reader.node) == ("graph", 0)


@pytest.mark.parametrize("elements", [1, 40])
def test_before_the_start(elements: int) -> None:
    with sg.debug() as debugger:
        table = guarded(debugger, 64)
        graph, _kept = reader_of(table)
        overflow(table, 0)
        graph.replay()
        assert debugger.findings == ()
        underflow(table, elements)
        graph.replay()
    found = only(debugger.findings)
    assert found.replay == 2
    assert (found.bytes.side, found.bytes.first, found.bytes.last) == ("before", -4 * elements, -1)
    assert found.bytes.distance == 0
    assert f"wrote {4 * elements} bytes before the start" in found.message


def test_both_sides_are_two_findings() -> None:
    with sg.debug() as debugger:
        table = guarded(debugger, 8)
        underflow(table)
        overflow(table)
    assert [finding.bytes.side for finding in debugger.findings] == ["before", "after"]


@pytest.mark.parametrize("nbytes", [1, 3, 33, 513])
def test_guards_start_at_the_last_requested_byte(nbytes: int) -> None:
    with sg.debug() as debugger:
        table = guarded(debugger, nbytes, dtype=torch.uint8)
        poke(table, nbytes, 1)
        found = only(debugger.check())
    assert (found.past_end, found.bytes.count) == (1, 1)
    assert found.culprit.status == "unknown"
    assert "an unseen writer" in found.message


def test_in_a_replay_the_node_is_named() -> None:
    with sg.debug() as debugger:
        table, other = guarded(debugger, 64), guarded(debugger, 64)
        graph = sg.HostGraph()
        with sg.host_graph(graph):
            other.add_(1)
            overflow(table, 2)
            other.add_(1)
        assert debugger.check() == (), "a capture runs nothing on CUDA, and harms nothing here"
        graph.replay()
        graph.replay()
    found = only(debugger.findings)
    assert (found.phase, found.replay, found.occurrences) == ("replay", 1, 2)
    assert (found.culprit.node, found.culprit.name, found.past_end) == (1, "fill", 8)


@pytest.mark.parametrize("layout", ["isolate", "faithful"])
def test_in_a_temporary_of_the_graph(layout: str) -> None:
    with sg.debug(layout=layout) as debugger:
        source = guarded(debugger, 64)
        graph = sg.HostGraph()
        with sg.host_graph(graph):
            scratch = source + 1
            overflow(scratch, 1)
            result = scratch.sum()
            del scratch
            reused = torch.zeros(50, dtype=torch.int32)  # in the faithful layout the next tenant, of another size
            again = reused.sum()
        graph.replay()
        graph.replay()
    found = only(debugger.findings)
    assert (found.code, found.phase, found.replay, found.past_end) == ("SG101", "replay", 1, 4)
    assert (found.buffer.role, found.buffer.shape, found.culprit.node) == ("pool", (64,), 1)
    assert found.occurrences == 2
    del result, again


def test_a_callable_is_blamed_by_the_check_right_after_it() -> None:
    with sg.debug() as debugger:
        table = guarded(debugger, 16)
        graph = sg.HostGraph()
        with sg.host_graph(graph):
            table.add_(1)
            graph.call(lambda: None)
            graph.call(poke, table, 64, 4)
            table.add_(1)
        graph.replay()
    found = only(debugger.findings)
    assert (found.culprit.kind, found.culprit.node, found.culprit.status) == ("callable", 2, "candidate")


def test_slack_beyond_the_captured_rows() -> None:
    with sg.debug() as debugger:
        table = guarded(debugger, 8, 4)
        debugger.name("table", table)
        graph = sg.HostGraph()
        with sg.host_graph(graph):
            overflow(table[:2], 3)
        table.fill_(-1)  # prepare may write the slack
        graph.replay()
    found = only(debugger.findings)
    assert (found.bytes.side, found.phase, found.replay) == ("slack", "replay", 1)
    assert (found.bytes.first, found.bytes.last, found.culprit.node) == (32, 43, 0)


def test_a_write_within_the_captured_rows_is_no_slack() -> None:
    with sg.debug() as debugger:
        table = guarded(debugger, 8, 4)
        graph = sg.HostGraph()
        with sg.host_graph(graph):
            overflow(table[:2], 0)
        table.fill_(-1)
        graph.replay()
    assert (debugger.findings, graph.model.replays) == ((), 1)
    assert table[0, 0] != -1, "it did write"
    assert debugger.coverage().written


def test_a_row_pointer_is_not_taken_for_a_narrow_view() -> None:
    """Kernels are handed ``table[0]`` and walk all rows: the view says nothing about what they may write."""
    with sg.debug() as debugger:
        table = guarded(debugger, 8, 4)
        graph = sg.HostGraph()
        with sg.host_graph(graph):
            overflow(table[0], 20)
        graph.replay()
    assert debugger.findings == ()


def test_setup_and_eager() -> None:
    with sg.debug() as debugger:
        early, late, used = guarded(debugger, 4), guarded(debugger, 4), guarded(debugger, 4)
        overflow(early)
        graph, _kept = reader_of(used)
        graph.replay()
        overflow(late)
        graph.replay()
    first, second = debugger.findings
    assert (first.phase, first.graph, first.replay) == ("setup", None, None)
    assert (second.phase, second.graph, second.replay) == ("eager", None, None)


def test_the_graph_that_reads_the_buffer_is_named_and_not_the_next_to_run() -> None:
    with sg.debug() as debugger:
        mine, other = guarded(debugger, 4), guarded(debugger, 4)
        reads_mine, _one = reader_of(mine)
        reads_other, _two = reader_of(other)
        reads_mine.replay()
        overflow(mine)
        reads_other.replay()
    found = only(debugger.findings)
    assert (found.phase, found.graph, found.replay) == ("prepare", reads_mine.model.name, 2)


def test_marked_prepare_without_a_read_buffer() -> None:
    with sg.debug() as debugger:
        used, unread = guarded(debugger, 4), guarded(debugger, 4)
        graph, _kept = reader_of(used)
        with debugger.prepare(graph):
            overflow(unread)
    found = only(debugger.findings)
    assert (found.phase, found.graph, found.replay, found.reader) == ("prepare", graph.model.name, 1, None)


def test_a_write_that_reaches_the_end_of_what_is_armed_says_so() -> None:
    with sg.debug(far_guard=0) as debugger:
        table = guarded(debugger, 128)
        poke(table, 512, 512)
        found = only(debugger.check())
    assert found.bytes.truncated
    assert "there may be more" in str(debugger.report(quiet=True))


@pytest.mark.parametrize("asked", [False, True])
def test_a_write_that_jumps_over_the_near_guard(asked: bool) -> None:
    """Found at once by `check()`; by replays when the guard's turn comes to be looked at in full."""
    with sg.debug() as debugger:
        tables = [guarded(debugger, 64) for _ in range(3)]
        graph, _kept = reader_of(tables[0])
        graph.replay()
        poke(tables[1], 256 + 2000, 8)
        if asked:
            debugger.check()
        else:
            for _ in debugger._work._standing.now():
                graph.replay()
        findings = debugger.findings
    found = only(findings)
    assert (found.bytes.first, found.bytes.last, found.bytes.distance) == (2256, 2263, 2000)


def test_neighbour_and_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shadowgraph.tracking.allocator._allocator", None)  # no memory of other tests in between

    class Owner:
        pass

    with sg.debug() as debugger:
        owner = Owner()
        debugger.name("owner", owner)  # named before the buffers exist
        owner.first, owner.second = guarded(debugger, 4), guarded(debugger, 4)  # type: ignore[attr-defined]
        owner.view = owner.first[1:3]  # type: ignore[attr-defined]
        overflow(owner.first)  # type: ignore[attr-defined]
        found = only(debugger.check())
    assert found.buffer.name == "owner.first"
    assert (found.neighbour.name, found.neighbour.side) == ("owner.second", "after")
    assert [(alias.name, alias.relation) for alias in found.aliases] == [("owner.view", "[1:3]")]


def test_unnamed_buffers_go_by_their_allocation_line() -> None:
    with sg.debug(variable_names=False) as debugger:
        table = guarded(debugger, 4)
        overflow(table)
        found = only(debugger.check())
    assert found.buffer.name.startswith("int32[4] from programs.py:")
    assert found.buffer.allocated[0].function == "guarded"


@pytest.mark.parametrize("in_graph", [False, True])
def test_a_launch_that_overruns_a_buffer_without_guards_is_known_by_its_stores(in_graph: bool) -> None:
    room = torch.zeros(80, dtype=torch.int32)  # so that nothing of the process is overwritten
    storage = torch._C._construct_storage_from_data_pointer(room.data_ptr(), torch.device("cpu"), 256)
    table = torch.empty(0, dtype=torch.int32).set_(storage, 0, (64,), (1,))
    with sg.debug() as debugger:
        graph = sg.HostGraph()
        with sg.host_graph(graph):
            kept = table * 2
            if in_graph:
                overflow(table, 3)
        graph.replay()
        if not in_graph:
            overflow(table, 3)
        graph.replay()
        coverage = debugger.coverage()
    found = only(debugger.findings)
    assert (found.code, found.past_end, found.buffer.role) == ("SG101", 12, "foreign")
    assert (found.phase, found.replay) == (("replay", 1) if in_graph else ("prepare", 2))
    assert found.culprit.status == "confirmed"
    assert coverage.inputs == 1
    assert "; 1 buffer that graphs use has no guards; " in coverage.sentence()
    del kept


def test_torch_tensor_is_guarded_and_from_numpy_is_left_where_it_is() -> None:
    array = np.zeros(4, dtype=np.int32)
    with sg.debug() as debugger:
        with debugger.guard():
            made, shared = torch.tensor([1, 2, 3], dtype=torch.int32), torch.from_numpy(array)
        shared[0] = 7
        assert array[0] == 7
        poke(made, 12, 4)
        assert only(debugger.check()).past_end == 4


def test_float_values_break_guards_exactly() -> None:
    with sg.debug() as debugger:
        table = guarded(debugger, 4, dtype=torch.float32)
        (ctypes.c_float * 3).from_address(table.data_ptr() + 16)[:] = [1.0, -1.0, 0.25]
        found = only(debugger.check())
    assert found.past_end == 12
