"""What check nodes count, and that they compare each byte of guards that begin and end anywhere."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from helpers_cuda import capture, captured, fill, guarded, warm_kernels

import shadowgraph as sg
from shadowgraph.monitor.sampling import observation
from shadowgraph.tracking import passing

pytestmark = pytest.mark.gpu
QUIET = 8


@pytest.fixture
def debugger(monkeypatch: pytest.MonkeyPatch) -> Iterator[sg.Debugger]:
    warm_kernels()
    for name, value in (("QUIET", QUIET), ("LOOKS_APART", (10**6, 10**6)), ("PERIOD", 10**6)):
        monkeypatch.setattr(observation, name, value)
    with sg.debug(backend="cuda", watch_eager="sampled") as made:
        yield made


def steady(table: torch.Tensor) -> torch.cuda.CUDAGraph:
    graph, _ = captured(lambda: table.add_(1))
    for _ in range(20 * QUIET):
        graph.replay()
        if passing.on:
            return graph
    raise AssertionError("invalid: launches are observed still")


def test_the_report_counts_as_many_checks_as_replays_and_none_of_a_pause(debugger: sg.Debugger) -> None:
    table = guarded(debugger, 8)
    graph = steady(table)
    for _ in range(1000):
        graph.replay()
    debugger.check()
    torch.cuda.synchronize()
    counts = debugger.facts().replays
    assert counts.made == counts.checked > 1000 > counts.observed
    debugger.pause()
    for _ in range(70):
        graph.replay()
    debugger.resume()
    for _ in range(50):
        graph.replay()
    debugger.check()
    torch.cuda.synchronize()
    later = debugger.facts().replays
    assert later.checked == counts.checked + 50
    assert later.made == counts.made + 120


@pytest.mark.parametrize("distance", [0, 1, 7, 8, 15, 16, 17, 127])
def test_one_byte_is_found_wherever_a_guard_begins(debugger: sg.Debugger, distance: int) -> None:
    import cupy as cp

    with debugger.guard():
        tables = [torch.zeros(size, dtype=torch.uint8, device="cuda") for size in range(1, 34)]
    refreshed = guarded(debugger, 8)
    graph = steady(refreshed)
    runtime: Any = cp.cuda.runtime
    for table in tables:
        known = len(debugger.check())
        assert passing.on or known, "precondition: no launch is observed before the first finding"
        where = table.data_ptr() + table.numel() + distance
        before = int(
            cp.ndarray((1,), cp.uint8, cp.cuda.MemoryPointer(cp.cuda.UnownedMemory(where, 1, None), 0)).get()[0]
        )
        runtime.memset(where, before ^ 0x5A, 1)
        runtime.deviceSynchronize()
        graph.replay()
        found = debugger.check()
        assert len(found) == known + 1, f"{table.numel()} bytes"
        bytes_ = found[-1].bytes
        assert (bytes_.first, bytes_.last) == (table.numel() + distance,) * 2


@pytest.mark.parametrize("where", ["in the graph", "in prepare"])
def test_a_replay_in_which_a_write_is_located_counts_as_checked(debugger: sg.Debugger, where: str) -> None:
    table, refreshed = guarded(debugger, 8), guarded(debugger, 8)
    fill(table)
    graph, _ = capture(lambda: (refreshed.add_(1), fill(table, 4 if where == "in the graph" else 0)))
    for _ in range(40):
        if where == "in prepare":
            fill(refreshed, 4)
        graph.replay()
        debugger.check()
    (finding,) = debugger.findings
    assert finding.culprit is not None
    assert finding.culprit.status == "confirmed", "invalid: nothing was located"
    torch.cuda.synchronize()
    counts = debugger.facts().replays
    assert counts.made == counts.checked == 40
