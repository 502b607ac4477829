"""A kernel that reaches its buffers by a tensor of their addresses, on a device: a candidate there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from helpers_cuda import capture, guarded, only, warm_kernels

import shadowgraph as sg

pytestmark = pytest.mark.gpu


@pytest.fixture
def fill_behind() -> Callable[..., None]:
    from support.table_kernels import BLOCK
    from support.table_kernels import fill_behind as kernel

    warm_kernels()
    spare = torch.zeros(64, dtype=torch.int32, device="cuda")
    kernel[(1,)](torch.tensor([spare.data_ptr()], dtype=torch.uint64, device="cuda"), 8, BLOCK=BLOCK)
    torch.cuda.synchronize()

    def run(*given: Any) -> None:
        kernel[(2,)](*given, BLOCK=BLOCK)

    return run


@pytest.mark.parametrize("over", [1, 0])
def test_what_it_breaks_is_its_own(fill_behind: Callable[..., None], over: int) -> None:
    with sg.debug(backend="cuda") as debugger:
        one, other = guarded(debugger, 8), guarded(debugger, 8)
        debugger.name("tables", {"one": one, "other": other})
        addresses = torch.tensor([one.data_ptr(), other.data_ptr()], dtype=torch.uint64, device="cuda")
        graph, out = capture(lambda: one + other)
        graph.replay()
        fill_behind(addresses, 8 + over)
        graph.replay()
        torch.cuda.synchronize()
        debugger.check()
        assert out.tolist() == [2 * at for at in range(8)]
        facts = debugger.facts()
        assert facts.faults == {}
        if not over:
            assert (facts.findings, facts.notes) == ((), ())
            return
        assert {finding.buffer.name for finding in facts.findings} == {'tables["one"]', 'tables["other"]'}
        assert {finding.culprit.name for finding in facts.findings} == {"fill_behind"}


def test_what_a_graph_reaches_by_it_must_live(fill_behind: Callable[..., None]) -> None:
    with sg.debug(backend="cuda") as debugger:
        held = [guarded(debugger, 8), guarded(debugger, 8)]
        addresses = torch.tensor([each.data_ptr() for each in held], dtype=torch.uint64, device="cuda")
        graph, _kept = capture(lambda: fill_behind(addresses, 8))
        graph.replay()
        torch.cuda.synchronize()
        assert debugger.check() == ()
        held.pop()
        graph.replay()
        assert only(debugger.check()).code == "SG104"
