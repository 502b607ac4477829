"""SG101 judged by a launch's own stores: what is no fault, and what a later sighting adds."""

# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"

from __future__ import annotations

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from programs import guarded, only, overflow, reader_of

import shadowgraph as sg
from shadowgraph.tracking.stores import SHARED

pytestmark = pytest.mark.filterwarnings("ignore:Conversion of an array")


@triton.jit
def add_rows(out, width, last, BLOCK: tl.constexpr):
    """Each program adds one to its row and to the next."""
    row, lane = tl.program_id(0), tl.arange(0, BLOCK)
    tl.atomic_add(out + row * width + lane, 1, mask=lane < width)
    tl.atomic_add(out + tl.minimum(row + 1, last) * width + lane, 1, mask=lane < width)


@triton.jit
def write_two(one, two, n_one, n_two, BLOCK: tl.constexpr):
    lane = tl.arange(0, BLOCK)
    tl.store(one + lane, lane + 1, mask=lane < n_one)
    tl.store(two + lane, lane + 1, mask=lane < n_two)


@triton.jit
def ramp(out, n, BLOCK: tl.constexpr):
    lane = tl.arange(0, BLOCK)
    tl.store(out + lane, lane, mask=lane < n)


@pytest.mark.parametrize("captured", [True, False])
def test_rows_that_are_summed_by_atomics_lose_nothing(captured: bool) -> None:
    with sg.debug() as debugger:
        out = guarded(debugger, 4, 4)
        if captured:
            graph = sg.HostGraph()
            with sg.host_graph(graph):
                add_rows[(4,)](out, 4, 3, BLOCK=4)
            graph.replay()
        else:
            add_rows[(4,)](out, 4, 3, BLOCK=4)
    assert out.sum().item() == 32
    assert debugger.findings == ()


def neighbours(debugger: sg.Debugger) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Three slices of one array side by side, of which only the second is tracked."""
    array = np.zeros(24, np.int32)
    before, tracked, after = (torch.from_numpy(array[8 * i : 8 * i + 8]) for i in range(3))
    debugger.name("state", {"tracked": tracked})
    return before, tracked, after


@pytest.mark.parametrize("side", [0, 2])
def test_an_untracked_output_next_to_a_tracked_one_is_no_overrun(side: int) -> None:
    with sg.debug() as debugger:
        parts = neighbours(debugger)
        graph, _kept = reader_of(parts[1])
        write_two[(1,)](parts[1], parts[side], 8, 8, BLOCK=32)
        graph.replay()
    assert parts[side].tolist() == list(range(1, 9))
    assert debugger.findings == ()


def test_a_run_past_a_tracked_output_that_no_argument_covers_is_told() -> None:
    with sg.debug() as debugger:
        before, tracked, _after = neighbours(debugger)
        graph, _kept = reader_of(tracked)
        write_two[(1,)](tracked, before, 11, 8, BLOCK=32)
        graph.replay()
    found = only(debugger.findings)
    assert (found.code, found.bytes.side, found.past_end) == ("SG101", "after", 12)


def test_a_run_ends_where_another_argument_begins() -> None:
    array = np.zeros(24, np.int32)
    with sg.debug() as debugger:
        tracked, far = torch.from_numpy(array[:8]), torch.from_numpy(array[12:])
        debugger.name("state", {"tracked": tracked})
        graph, _kept = reader_of(tracked)
        write_two[(1,)](tracked, far, 12, 12, BLOCK=32)
        graph.replay()
    assert only(debugger.findings).past_end == 16, "four elements lie between the two"


def test_stores_of_eager_launches_are_bounded() -> None:
    lanes = 1 << 16
    with sg.debug() as debugger:
        out = torch.zeros(lanes, dtype=torch.int32)
        for _ in range(100):
            ramp[(1,)](out, lanes, BLOCK=lanes)
        writes = list(debugger._work.context.writes)
        assert SHARED.held <= SHARED.limit
        assert [write.ranges.nbytes for write in writes] == [4 * lanes] * 100
        compacted = [write.stores.compacted for write in writes if write.stores is not None]
        assert compacted == sorted(compacted)
        assert any(compacted)
        assert not compacted[0]
    assert debugger.findings == ()


def test_a_launch_beyond_the_bound_still_gets_its_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SHARED, "limit", 0)
    with sg.debug() as debugger:
        table = guarded(debugger, 16)
        graph, _kept = reader_of(table)
        overflow(table, 3)
        graph.replay()
    found = only(debugger.findings)
    assert (found.past_end, found.culprit.name, found.culprit.status) == (12, "fill", "confirmed")


def test_a_later_worse_sighting_is_told() -> None:
    with sg.debug() as debugger:
        table = guarded(debugger, 8)
        graph, _kept = reader_of(table)
        for elements in (1, 32, 2):
            overflow(table, elements)
            graph.replay()
        report = str(debugger.report(quiet=True))
    found = only(debugger.findings)
    assert (found.past_end, found.bytes.first, found.bytes.count) == (128, 32, 128)
    assert (found.revision, found.occurrences, found.phase, found.replay) == (2, 3, "prepare", 1)
    assert f"up to 128 bytes past the end of {found.buffer.name}" in found.message
    assert report.splitlines()[0] == found.message
    assert "#1, revision 2, error" in report
