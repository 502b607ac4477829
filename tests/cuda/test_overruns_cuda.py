"""An overrun that goes on through the guards of the next buffer, where nobody sees a kernel's stores."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from helpers_cuda import capture, guarded, name_of, only, warm_kernels

import shadowgraph as sg

pytestmark = pytest.mark.gpu

LAYOUTS = ["isolate", "faithful"]
LANES = 4096


def put(tensor: torch.Tensor, count: int) -> None:
    """One launch that is given a tensor of int32 and writes `count` elements from its start."""
    from kernels_cuda import put as kernel

    assert count <= LANES
    kernel[(1,)](tensor, 0, count, BLOCK=LANES)


@pytest.fixture(autouse=True)
def warm() -> None:
    warm_kernels()
    put(torch.zeros(64, dtype=torch.int32, device="cuda"), 1)
    torch.cuda.synchronize()


def buffer_of(debugger: Any, tensor: torch.Tensor) -> Any:
    return only([one for one in debugger.buffers if one.start == tensor.data_ptr()])


def neighbours(debugger: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Two buffers of which the guards lie side by side, ``kv_indices`` and ``input_ids``."""
    kept = []
    for _ in range(256):  # what other tests gave back is handed out first
        first, second = guarded(debugger, 64), guarded(debugger, 16, dtype=torch.int64)
        kept.append((first, second))
        low, high = buffer_of(debugger, first), buffer_of(debugger, second)
        if low.guard_start + low.tail_guard == high.start - high.head_guard:
            debugger.name("kv_indices", first)
            debugger.name("input_ids", second)
            return first, second
    pytest.fail("no two buffers side by side")


def steps(debugger: Any, first: torch.Tensor, second: torch.Tensor, bounded: bool) -> tuple[str, list[Any]]:
    """Prepare a bit further in each step, past the next buffer, and replay a graph that reads that one.

    Returns
    -------
    tuple
        The graph's name, and every finding as it was seen first.
    """
    graph, _kept = capture(lambda: second.sum())
    start, seen = (second.data_ptr() - first.data_ptr()) // 4, dict[int, Any]()
    for stop in (80, 100, *range(start - 128, start + 120, 8)):
        put(first, first.numel() if bounded else stop)
        graph.replay()
        torch.cuda.synchronize()
        for one in debugger.check():
            seen.setdefault(one.id, one)
    return name_of(graph), list(seen.values())


@pytest.mark.parametrize("layout", LAYOUTS)
def test_it_is_one_finding_once_the_launch_is_known(layout: str) -> None:
    with sg.debug(backend="cuda", layout=layout, infer=False) as debugger:
        first, second = neighbours(debugger)
        name, seen = steps(debugger, first, second, bounded=False)
        found, parts = only(debugger.check()), list(debugger.facts().parts)
        facts = debugger.report(quiet=True).facts
    assert {one.buffer.name for one in seen} == {"kv_indices"}, "one run of bytes is one finding, also at first"
    assert debugger.notes == ()
    assert (found.buffer.name, found.bytes.side) == ("kv_indices", "after")
    assert (found.culprit.name, found.culprit.status) == ("put", "confirmed")
    (reached,) = found.detail.reaches
    assert (reached.name, reached.over, reached.graph) == ("input_ids", True, name)
    assert ", over input_ids, first" in found.message
    assert sorted((one.buffer.name, str(one.bytes.side)) for one in parts) == [
        ("input_ids", "after"),
        ("input_ids", "before"),
    ]
    assert {one.continues.fingerprint for one in parts} == {found.fingerprint}
    assert facts.faults == {}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_bounded_launch_is_silent(layout: str) -> None:
    with sg.debug(backend="cuda", layout=layout, infer=False) as debugger:
        first, second = neighbours(debugger)
        _, seen = steps(debugger, first, second, bounded=True)
        assert seen == []
        assert (debugger.check(), debugger.notes) == ((), ())
    assert not second.any()


def test_two_launches_that_each_break_their_own_guard_stay_two_findings() -> None:
    with sg.debug(backend="cuda", infer=False) as debugger:
        first, second = neighbours(debugger)
        graph, _kept = capture(lambda: second.sum())
        for extra in range(4):
            put(first, 64 + 4 * extra)
            put(second.view(torch.int32), 32 + 4 * extra)
            graph.replay()
            torch.cuda.synchronize()
        found = debugger.check()
    assert [(one.buffer.name, one.bytes.side, one.detail.reaches) for one in found] == [
        ("kv_indices", "after", ()),
        ("input_ids", "after", ()),
    ]
