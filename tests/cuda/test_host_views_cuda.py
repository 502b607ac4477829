"""Tensors of the device that own no memory: views of pinned host memory, as vLLM makes of its block tables, and aliases
by address."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from helpers_cuda import capture, warm_kernels

import shadowgraph as sg
from shadowgraph.monitor.backends import OF_HOST

pytestmark = [pytest.mark.gpu, pytest.mark.parametrize("layout", ["isolate", "faithful"])]
COUNT = 1024


@pytest.fixture(autouse=True)
def warm() -> None:
    warm_kernels()


def over(address: int, nbytes: int) -> torch.Tensor:
    """A tensor of the device over an address."""
    storage = torch._C._construct_storage_from_data_pointer(address, torch.device("cuda:0"), nbytes)
    return torch.empty(0, dtype=torch.int32, device="cuda").set_(storage, 0, (nbytes // 4,), (1,))


def is_quiet(debugger: Any) -> bool:
    torch.cuda.synchronize()
    assert debugger.check() == ()
    facts = debugger.facts()
    assert facts.faults == {}
    assert any(replays for _, _, replays in facts.graphs), "a silence over nothing"
    return facts.findings == () and facts.notes == ()


def test_a_view_of_host_memory_is_left_where_it_is_and_not_compared(layout: str) -> None:
    pinned = torch.zeros(COUNT, dtype=torch.int32).pin_memory()
    with sg.debug(backend="cuda", layout=layout, guard_eager="all") as debugger:
        view = over(pinned.data_ptr(), pinned.nbytes)
        debugger.name("runner", {"block_table": view})
        debugger.protect(view)
        graph, out = capture(lambda: view + 1)
        for step in range(6):
            pinned.fill_(step)
            graph.replay()
            torch.cuda.synchronize()
            assert out.unique().tolist() == [step + 1]
        assert is_quiet(debugger)
        assert debugger.facts().left_alone[OF_HOST] == 1


def test_its_twin_on_the_device_is_compared(layout: str) -> None:
    with sg.debug(backend="cuda", layout=layout) as debugger:
        with debugger.guard():
            table = torch.zeros(COUNT, dtype=torch.int32, device="cuda")
        debugger.name("runner", {"block_table": table})
        debugger.protect(table)
        graph, _kept = capture(lambda: table.add_(1))
        graph.replay()
        graph.replay()
        torch.cuda.synchronize()
        debugger.check()
        assert {finding.code for finding in debugger.findings} == {"SG102"}
        assert OF_HOST not in debugger.facts().left_alone


def test_an_alias_by_address_may_end(layout: str) -> None:
    owner = torch.zeros(COUNT, dtype=torch.int32, device="cuda")
    with sg.debug(backend="cuda", layout=layout) as debugger:
        held = [over(owner.data_ptr(), owner.nbytes)]
        graph, out = capture(lambda: held[0] + 1)
        held.clear()
        for step in range(4):
            owner.fill_(step)
            graph.replay()
            assert out.unique().tolist() == [step + 1]
        assert is_quiet(debugger)
