"""An overrun that goes on is one finding with its whole extent, whatever is known of its launch; a neighbouring fault
stays a finding of its own."""

from __future__ import annotations

from typing import Any

import pytest
from overrunning import QUIET, Open, between, buffer_of, neighbours, parts_of, quiet, row_of, write
from programs import only, overflow, poke, reader_of

import shadowgraph as sg
from shadowgraph.model.findings import Finding

pytestmark = pytest.mark.usefixtures("blocks_in_a_row")


def reached(finding: Finding) -> list[tuple[str, bool, int | None]]:
    return [(one.name, one.over, one.overwritten) for one in finding.detail.reaches]


def sides(findings: Any) -> list[tuple[str, str]]:
    return [(one.buffer.name, str(one.bytes.side)) for one in findings]


# -- one overrun -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("times", [1, 3])
def test_an_overrun_in_prepare_over_three_buffers(knowing: Open, times: int) -> None:
    with knowing() as debugger:
        row = row_of(debugger, 4)
        graph, _kept = quiet(*row)
        stop = between(row[0], row[3]) - 10
        for step in range(times):
            write(row[0], 0, stop, value=5 + step)
            graph.replay()
            found = only(debugger.check())
        parts, name = parts_of(debugger), graph.model.name
    assert (found.buffer.name, found.bytes.side, found.culprit.name) == ("t0", "after", "fill")
    assert (found.phase, found.graph, found.replay) == ("prepare", name, QUIET + 1)
    assert found.detail.extent_nbytes == 4 * stop - 256
    *over, (last, *_) = reached(found)
    assert (over, last) == ([("t1", True, 256), ("t2", True, 256)], "t3")
    assert f"wrote {4 * stop - 256:,} bytes past the end of t0 (int32[64], 256 bytes), over t1 and t2," in found.message
    assert len(parts) == 5


def test_an_overrun_in_a_replay_over_three_buffers(knowing: Open) -> None:
    with knowing() as debugger:
        row = row_of(debugger, 4)
        stop = between(row[0], row[3]) - 10
        graph = sg.HostGraph()
        with sg.host_graph(graph):
            write(row[0], 0, stop, value=5)
            _kept = [tensor.sum() for tensor in row]
        for _ in range(3):
            graph.replay()
        found, parts = only(debugger.check()), parts_of(debugger)
    assert (found.buffer.name, found.phase, found.replay, found.culprit.name) == ("t0", "replay", 1, "fill")
    assert [name for name, over, _ in reached(found) if over] == ["t1", "t2"]
    assert found.detail.extent_nbytes == 4 * stop - 256
    assert {one.detail.reaches for one in parts} == {()}


def test_an_underrun_over_a_buffer(knowing: Open) -> None:
    with knowing() as debugger:
        row = row_of(debugger, 3)
        graph, _kept = quiet(*row)
        start = -between(row[0], row[2]) - 80
        write(row[2], start, 0, value=5)
        graph.replay()
        found = only(debugger.check())
    assert (found.buffer.name, found.bytes.side) == ("t2", "before")
    assert found.detail.extent_nbytes == -4 * start
    assert [(name, over) for name, over, _ in reached(found)] == [("t1", True), ("t0", True)]
    assert "before the start of t2 (int32[64], 256 bytes), over t1 and t0," in found.message


def test_an_unseen_writer_of_one_run_of_bytes() -> None:
    with sg.debug() as debugger:
        first, second = neighbours(debugger)
        poke(first, 256, 4 * between(first, second) - 256 + 200)
        found = only(debugger.check())
    assert (found.buffer.name, found.culprit.status) == ("kv_indices", "unknown")
    assert reached(found) == [("input_ids", True, 128)]
    assert not found.detail.reaches[0].sure


def test_it_grows_with_what_is_learnt(device: sg.Debugger) -> None:
    row = row_of(device, 3)
    graph, _kept = quiet(*row)
    extents = []
    for step, stop in enumerate([70, between(row[0], row[1]) - 30, between(row[0], row[2]) - 30]):
        write(row[0], 0, stop, value=5 + step)
        graph.replay()
        extents.append(only(device.check()).detail.extent_nbytes)
        assert extents[-1] == 4 * stop - 256
    assert only(device.findings).detail.grown


def test_into_the_next_buffer_where_stores_are_known() -> None:
    with sg.debug() as debugger:
        row = row_of(debugger, 2)
        write(row[0], 0, between(row[0], row[1]) + 10)
        found = only(debugger.check())
    assert reached(found) == [("t1", False, 40)]
    assert found.detail.extent_nbytes == 4 * (between(row[0], row[1]) + 10) - 256
    assert "over t1, during" in found.message
    assert ("ran over", "t1 (int32[64]): 40 of its 256 bytes; first during set-up, before any replay") in rows_of(found)


def rows_of(finding: Finding) -> list[tuple[str, str]]:
    from shadowgraph.render.text.finding_rows import fact_rows

    return [(row.label, row.text) for row in fact_rows(finding)]


def test_over_memory_without_guards_and_a_freed_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    with sg.debug() as debugger:
        row = row_of(debugger, 4)
        gap, naked = buffer_of(debugger, row[1]), buffer_of(debugger, row[2])
        stop = between(row[0], row[3]) - 10
        del row[1]
        assert not gap.alive
        monkeypatch.setattr(naked, "head_guard", 0)
        monkeypatch.setattr(naked, "tail_guard", 0)
        debugger.monitor.context.allocator.guards.changes += 1
        write(row[0], 0, stop)
        found = only(debugger.check())
    assert [(name, overwritten) for name, _, overwritten in reached(found)] == [("t1", 256), ("t2", 256), ("t3", 0)]


def test_a_stride_that_begins_in_the_middle_of_a_guard() -> None:
    from going_on_kernels import fill_strided

    with sg.debug() as debugger:
        row = row_of(debugger, 3)
        last = (between(row[0], row[2]) - 20) // 32
        fill_strided[(1,)](row[0], 80, 32, last, BLOCK=1024)
        found = debugger.check()
    one = only(found)
    assert (one.buffer.name, one.bytes.side, one.bytes.first) == ("t0", "after", 320)
    assert reached(one) == [("t1", True, 8), ("t2", False, 4)]
    assert one.detail.extent_nbytes == 4 * (80 + 32 * (last - 1) + 1) - 256


# -- what is not of that overrun -------------------------------------------------------------------------------------


def test_two_overruns_of_neighbours_at_one_time(knowing: Open) -> None:
    with knowing() as debugger:
        row = row_of(debugger, 3)
        graph, _kept = quiet(*row)
        for _ in range(3):
            overflow(row[0], 4)
            overflow(row[1], 4)
            graph.replay()
        found = debugger.check()
    assert sides(found) == [("t0", "after"), ("t1", "after")]
    assert [reached(one) for one in found] == [[], []]
    assert [one.caused_by for one in found] == [None, None]


def test_an_overrun_of_the_buffer_that_was_run_over_is_a_finding_too(device: sg.Debugger) -> None:
    """By another launch in the same step: until it is confirmed it may also be of the first overrun."""
    row = row_of(device, 3)
    graph, _kept = quiet(*row)
    seen: list[list[tuple[str, bool | None]]] = []
    for step in range(3):
        write(row[0], 0, between(row[0], row[1]) + 10, value=5 + step)
        overflow(row[1], 4 + step)
        graph.replay()
        found = device.check()
        seen.append([(one.buffer.name, one.caused_by and one.caused_by.sure) for one in found])
    assert seen[0] == [("t0", None), ("t1", False)]
    assert seen[-1] == [("t0", None), ("t1", None)]
    assert [one.culprit.status for one in found] == ["confirmed", "confirmed"]
    assert [(name, over) for name, over, _ in reached(found[0])] == [("t1", False)]


def test_a_guard_that_breaks_alone_in_a_later_step(device: sg.Debugger) -> None:
    """It was part of an overrun; then its own launch breaks it, and the overrun is not there."""
    row = row_of(device, 3)
    graph, _kept = quiet(*row)
    write(row[0], 0, between(row[0], row[1]) + 64 + 20, value=5)
    graph.replay()
    found = only(device.check())
    assert reached(found) == [("t1", True, 256)]
    poke(row[1], 256 + 200, 40, 9)
    graph.replay()
    found = device.check()
    assert sides(found) == [("t0", "after"), ("t1", "after")]
    assert [(name, over) for name, over, _ in reached(found[0])] == [("t1", False)]
    assert found[1].caused_by is not None
    assert (found[1].caused_by.finding, found[1].caused_by.sure) == (found[0].id, False)


def test_two_ends_of_one_buffer_are_no_overrun_of_another(device: sg.Debugger) -> None:
    row = row_of(device, 3)
    graph, _kept = quiet(*row)
    poke(row[1], -512, 512)
    poke(row[1], 256, 16)
    graph.replay()
    assert sides(device.check()) == [("t1", "before"), ("t1", "after")]


def test_damage_with_an_intact_stretch_between() -> None:
    with sg.debug() as debugger:
        first, second = neighbours(debugger)
        poke(first, 256, 100)
        poke(second, -512, 512)
        assert sides(debugger.check()) == [("kv_indices", "after"), ("input_ids", "before")]


def test_two_unseen_writes_to_both_ends_of_a_guard(device: sg.Debugger) -> None:
    first, second = neighbours(device)
    graph, _kept = reader_of(second)
    graph.replay()
    poke(first, 256, 16)
    poke(second, -512 - 64, 576)
    graph.replay()
    assert sides(device.check()) == [("kv_indices", "after"), ("input_ids", "before")]


def test_damage_of_two_boundaries(device: sg.Debugger) -> None:
    """The runs of bytes meet, and were written in two steps by unseen writers."""
    first, second = neighbours(device)
    graph, _kept = reader_of(second)
    graph.replay()
    poke(second, -512, 512)
    graph.replay()
    device.check()
    end = 4 * between(first, second) - 512
    poke(first, 256, end - 256)
    graph.replay()
    assert sorted(sides(device.check())) == [("input_ids", "before"), ("kv_indices", "after")]
