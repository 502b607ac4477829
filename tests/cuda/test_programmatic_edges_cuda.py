"""SG112 over programmatic edges: a kernel that begins before the one before it has ended, and does not wait."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from helpers_cuda import capture, guarded, only

import shadowgraph as sg
from shadowgraph.debugger import model_of
from shadowgraph.graphs.cuda.driver import driver, raw_graph

pytestmark = pytest.mark.gpu

SIZE = 128


@pytest.fixture
def watching() -> Iterator[Any]:
    if torch.cuda.get_device_capability() < (9, 0):
        pytest.skip("programmatic dependent launch needs a Hopper GPU")
    with sg.debug(backend="cuda") as debugger:
        yield debugger


def pair(out: torch.Tensor, releases: bool, waits: bool) -> torch.cuda.CUDAGraph:
    """A graph of two kernels that fill `out`, the second launched programmatically."""
    from kernels_cuda import write_early

    def body() -> None:
        write_early[(1,)](out, EARLY=releases, WAITS=False, VALUE=1, SPINS=1000, BLOCK=SIZE)
        write_early[(1,)](out, EARLY=False, WAITS=waits, VALUE=2, SPINS=0, BLOCK=SIZE, launch_pdl=True)

    body()  # compiles both
    torch.cuda.synchronize()
    graph, _ = capture(body)
    return graph


@pytest.mark.parametrize(
    ("releases", "waits", "races"), [(True, False, True), (True, True, False), (False, False, False)]
)
def test_a_pair_that_fills_one_buffer(watching: Any, releases: bool, waits: bool, races: bool) -> None:
    out = guarded(watching, SIZE)
    watching.name("out", out)
    graph = pair(out, releases, waits)
    assert len(driver().early_edges(raw_graph(graph))) == 1, "invalid: the edge is not programmatic"
    graph.replay()
    out.fill_(7)  # else the kernel that came last by chance has left what the other one writes
    watching.locate(graph)
    graph.replay()
    watching.check()
    graph.replay()
    model = model_of(graph)
    assert model is not None
    first, second = (node for node in model.device_nodes if "write_early" in node.name)
    assert second.triggered_by == (first.index,)
    assert [model.launch_of(node).code.waits for node in (first, second)] == [False, waits]  # type: ignore[union-attr]
    if not races:
        assert watching.check() == ()
        return
    found = only(watching.check())
    assert (found.code, found.buffer.name) == ("SG112", "out")
    assert (found.bytes.first, found.bytes.last) == (0, SIZE * 4 - 4), "of each number the first byte"
    assert {found.culprit.node, *(one.node for one in found.candidates)} == {first.index, second.index}
    assert watching.facts().faults == {}
