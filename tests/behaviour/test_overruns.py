"""An overrun that goes on through the guards of the next buffers is one finding, which names what it ran over."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from overrunning import assert_side_by_side, between, buffer_of, neighbours, parts_of, write
from playing import played
from programs import guarded, only, reader_of

import shadowgraph as sg

pytestmark = pytest.mark.usefixtures("blocks_in_a_row")

LAYOUTS = ["isolate", "faithful"]


def write_both(first: torch.Tensor, second: torch.Tensor, stop: int) -> None:
    """One launch that is given two tensors and writes the first, up to `stop`, and one element of the second."""
    from going_on_kernels import fill_two

    fill_two[(1,)](first, second, stop, BLOCK=8192)


def steps_of(first: torch.Tensor, second: torch.Tensor) -> tuple[int, ...]:
    """How far a launch writes in each step: past the end, to the next guard, to its end, over the buffer, beyond."""
    start = between(first, second)
    return 80, start - 100, start, start + 32 + 16, start + 32 + 600


@pytest.mark.parametrize("layout", LAYOUTS)
def test_one_overrun_that_grows_is_one_finding(layout: str) -> None:
    with sg.debug(layout=layout) as debugger:
        first, second = neighbours(debugger)
        graph, _kept = reader_of(second)
        said = []
        for stop in steps_of(first, second):
            write(first, 0, stop)
            graph.replay()
            said.append(only(debugger.findings).message)
        found, parts = only(debugger.findings), parts_of(debugger)
        facts = debugger.report(quiet=True).facts
        lines = str(debugger.report(quiet=True)).splitlines()
        beyond = 4 * (steps_of(first, second)[-1] - 64)
    assert (found.buffer.name, found.bytes.side, found.culprit.name) == ("kv_indices", "after", "fill")
    (reached,) = found.detail.reaches
    assert (reached.name, reached.over, reached.beyond) == ("input_ids", True, beyond)
    assert (reached.phase, reached.graph, reached.replay) == ("prepare", graph.model.name, 4)
    assert "input_ids" not in said[0]
    assert all("end of kv_indices (int32[64], 256 bytes), as far as input_ids, first" in one for one in said[1:3])
    assert all("end of kv_indices (int32[64], 256 bytes), over input_ids, first" in one for one in said[3:])
    assert f"wrote up to {beyond:,} bytes past the end" in found.message
    assert (reached.overwritten, reached.sure, found.detail.extent_nbytes) == (128, True, beyond)
    assert [(one.buffer.name, one.bytes.side) for one in parts] == [("input_ids", "before"), ("input_ids", "after")]
    assert {(one.continues.fingerprint, one.continues.finding) for one in parts} == {(found.fingerprint, found.id)}
    assert facts.told == (found,)
    assert facts.damage == (found, *parts)
    assert sum(line.startswith("SUMMARY") for line in lines) == 1
    assert lines[-2] == "shadowgraph: 1 finding"
    assert f"  extent     {beyond:,} bytes past the end, to the last one that is known" in lines
    assert any(line.startswith("  ran over   input_ids (int64[16]): all its 128 bytes; first while") for line in lines)
    assert facts.faults == {}


def shown(debugger: sg.Debugger) -> set[str]:
    """The buffers of what is shown, which must be findings of their own."""
    assert all(each.continues is None and each.caused_by is None for each in debugger.findings)
    assert debugger.notes == ()
    return {each.buffer.name for each in debugger.findings}


def test_a_suppressed_overrun_takes_no_other_finding_with_it(tmp_path: Path) -> None:
    known = tmp_path / "known.txt"
    known.write_text("buffer=kv_indices\n")
    with sg.debug(suppressions=known) as debugger:
        first, second = neighbours(debugger)
        graph, _kept = reader_of(second)
        for stop in steps_of(first, second):
            write(first, 0, stop)
            graph.replay()
        assert shown(debugger) == {"input_ids"}
        assert {each.buffer.name for each in debugger.facts().hidden} == {"kv_indices"}
    known.write_text("buffer=input_ids\n")
    with sg.debug(suppressions=known) as debugger:
        first, second = neighbours(debugger)
        write(first, 0, steps_of(first, second)[-1])
        assert only(debugger.check()).buffer.name == "kv_indices"


@pytest.mark.parametrize("rule", ["kernel=fill buffer=kv_indices", "kernel=fill"])
def test_an_overrun_that_is_suppressed_once_it_is_located(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, rule: str
) -> None:
    known = tmp_path / "known.txt"
    known.write_text(f"{rule}\n")
    with played(monkeypatch, suppressions=known) as debugger:
        first, second = neighbours(debugger)
        stop = steps_of(first, second)[-1]
        graph = sg.HostGraph()
        with sg.host_graph(graph):
            write(first, 0, stop)
            first.mul_(2)
        for _ in range(2):
            graph.replay()
        assert "kv_indices" in {each.buffer.name for each in debugger.findings}, "precondition: its writer is a guess"
        for _ in range(3):
            graph.replay()
        debugger.check()
        assert "kv_indices" in {each.buffer.name for each in debugger.facts().hidden}
        assert shown(debugger) == ({"input_ids"} if "buffer" in rule else set()), "which the rule does not name"


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_bounded_launch_is_silent(layout: str) -> None:
    with sg.debug(layout=layout) as debugger:
        first, second = neighbours(debugger)
        graph, _kept = reader_of(second)
        for stop in steps_of(first, second):
            write(first, 0, min(stop, first.numel()))
            graph.replay()
        assert debugger.check() == ()
        assert debugger.notes == ()


def test_an_overrun_downwards() -> None:
    with sg.debug() as debugger:
        first, second = neighbours(debugger)
        write(second, -between(first, second) - 100, 0)
        found = only(debugger.check())
        parts = parts_of(debugger)
    assert (found.buffer.name, found.bytes.side) == ("input_ids", "before")
    assert [(one.name, one.over, one.beyond) for one in found.detail.reaches] == [
        ("kv_indices", True, 4 * (between(first, second) + 100))
    ]
    assert "before the start of input_ids (int64[16], 128 bytes), over kv_indices, during set-up" in found.message
    assert {(one.buffer.name, one.continues.buffer) for one in parts} == {("kv_indices", "input_ids")}


def test_a_guard_that_is_judged_before_the_one_where_it_began() -> None:
    with sg.debug() as debugger:
        before, second = guarded(debugger, 64), guarded(debugger, 16, dtype=torch.int64)
        del before
        first = guarded(debugger, 64)
        assert_side_by_side(debugger, first, second)
        assert buffer_of(debugger, first).serial > buffer_of(debugger, second).serial
        write(first, 0, between(first, second) + 48)
        found = only(debugger.check())
        parts = parts_of(debugger)
    assert found.buffer.shape == (64,)
    assert [(one.buffer.shape, one.bytes.side) for one in parts] == [((16,), "before"), ((16,), "after")]


def test_over_several_buffers() -> None:
    with sg.debug() as debugger:
        row = [guarded(debugger, 8) for _ in range(4)]
        for low, high in pairwise(row):
            assert_side_by_side(debugger, low, high)
        for number, tensor in enumerate(row):
            debugger.name(f"t{number}", tensor)
        write(row[0], 0, between(row[0], row[3]) - 10)
        found = only(debugger.check())
    assert [(one.name, one.over) for one in found.detail.reaches] == [("t1", True), ("t2", True), ("t3", False)]
    assert ", over t1 and t2, during set-up" in found.message


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_node_of_a_graph_that_runs_over_the_next_tensor_of_its_pool(layout: str) -> None:
    with sg.debug(layout=layout) as debugger:
        graph = sg.HostGraph()
        with sg.host_graph(graph):
            first = torch.zeros(64, dtype=torch.int32)
            second = torch.zeros(16, dtype=torch.int64)
            write(first, 0, max(64, between(first, second) + 48))
            _kept = second.sum() + first.sum()
        assert_side_by_side(debugger, first, second)
        graph.replay()
        found = only(debugger.check())
    assert (found.buffer.shape, found.phase, found.replay, found.culprit.name) == ((64,), "replay", 1, "fill")
    assert [(one.shape, one.over) for one in found.detail.reaches] == [((16,), True)]


# -- what is no continuation -----------------------------------------------------------------------------------------


def test_two_launches_that_each_break_their_own_guards() -> None:
    with sg.debug() as debugger:
        first, second = neighbours(debugger)
        write(first, 0, between(first, second) - 128)
        write(second, -128, 36)
        found = debugger.check()
    assert [(one.buffer.name, one.bytes.side) for one in found] == [
        ("kv_indices", "after"),
        ("input_ids", "before"),
        ("input_ids", "after"),
    ]
    assert [one.detail.reaches for one in found] == [(), (), ()]
    assert parts_of(debugger) == []


def test_a_launch_that_was_given_both() -> None:
    with sg.debug() as debugger:
        first, second = neighbours(debugger)
        write_both(first, second, between(first, second) + 48)
        found = debugger.check()
    assert {one.culprit.name for one in found} == {"fill_two"}
    assert [(one.buffer.name, one.bytes.side) for one in found] == [
        ("kv_indices", "after"),
        ("input_ids", "before"),
        ("input_ids", "after"),
    ]


@pytest.mark.parametrize("stop", [70, None], ids=["its own guard", "a guard between"])
def test_a_launch_that_jumps_over_a_whole_guard(stop: int | None) -> None:
    with sg.debug() as debugger:
        first, second = neighbours(debugger)
        third = guarded(debugger, 8)
        assert_side_by_side(debugger, second, third)
        write(first, 0, stop or between(first, second) - 128)  # to the end of its guard, and no further
        write(first, between(first, third) - 128, between(first, third) - 120)
        found = debugger.check()
    assert [(one.buffer.shape, one.bytes.side) for one in found] == [((64,), "after"), ((8,), "before")]
    assert found[0].bytes.truncated == (stop is None)
    assert {one.culprit.name for one in found} == {"fill"}


def test_a_guard_that_the_same_kernel_breaks_for_itself_as_well() -> None:
    with sg.debug() as debugger:
        first, second = neighbours(debugger)
        write(first, 0, between(first, second) + 48)
        assert len(debugger.check()) == 1
        write(second, 0, 36)
        found = debugger.check()
    assert [(one.buffer.name, one.bytes.side) for one in found] == [("kv_indices", "after"), ("input_ids", "after")]
    assert [(one.buffer.name, one.bytes.side) for one in parts_of(debugger)] == [("input_ids", "before")]
    assert [(one.name, one.over) for one in found[0].detail.reaches] == [("input_ids", False)]


# -- where the culprit is known later --------------------------------------------------------------------------------


@pytest.mark.parametrize("growth", [0, 1])
def test_a_device_names_the_launch_later(monkeypatch: pytest.MonkeyPatch, growth: int) -> None:
    """Each step writes further, the same values or others; who breaks the second buffer's guards is not known when they
    are seen first."""
    with played(monkeypatch) as debugger:
        first, second = neighbours(debugger)
        graph, _kept = reader_of(second)
        start, first_seen = between(first, second), {}
        for step, stop in enumerate([80, 100, *range(start - 128, start + 120, 8)]):
            write(first, 0, stop, value=1 + growth * step)
            graph.replay()
            for one in debugger.check():
                first_seen.setdefault(one.id, (one.buffer.name, str(one.bytes.side), str(one.culprit.status)))
        found, parts = only(debugger.check()), parts_of(debugger)
    assert set(first_seen.values()) == {("kv_indices", "after", "candidate")}, "one run of bytes is one finding"
    assert (found.buffer.name, found.culprit.name, found.culprit.status) == ("kv_indices", "fill", "confirmed")
    assert [(one.name, one.over) for one in found.detail.reaches] == [("input_ids", True)]
    assert sorted((one.buffer.name, str(one.bytes.side)) for one in parts) == [
        ("input_ids", "after"),
        ("input_ids", "before"),
    ], "each guard once, whenever its culprit got known"
    assert {one.continues.serial for one in parts} == {found.buffer.serial}
    assert {one.culprit.status for one in parts} == {"confirmed"}


def test_a_device_with_the_bounded_launch_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    with played(monkeypatch) as debugger:
        first, second = neighbours(debugger)
        graph, _kept = reader_of(second)
        for step in range(8):
            write(first, 0, first.numel(), value=1 + step)
            graph.replay()
        assert debugger.check() == ()
        assert debugger.notes == ()


def test_in_sync_mode_the_overrun_is_raised_and_not_where_it_went_on() -> None:
    raised: list[Any] = []
    with sg.debug(sync=True) as debugger:
        first, second = neighbours(debugger)
        with pytest.raises(sg.FindingsError, match="past the end of kv_indices"):
            write(first, 0, between(first, second) + 48)
        raised = list(debugger.findings)
    assert [one.buffer.name for one in raised] == ["kv_indices"]
