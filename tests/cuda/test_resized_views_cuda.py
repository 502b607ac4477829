"""Guarded tensors on a device that grow keep what shares their memory."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import shadowgraph as sg

pytestmark = pytest.mark.gpu


@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
@pytest.mark.parametrize("layout", ["isolate", "faithful"])
@pytest.mark.parametrize(
    "resize",
    [lambda x: x.resize_(5000), lambda x: torch.add(torch.zeros(5000, device="cuda"), 1, out=x)],
    ids=["resize_", "out="],
)
def test_a_view_follows(layout: str, resize: Callable[[torch.Tensor], object]) -> None:
    with sg.debug(backend="cuda", layout=layout) as debugger:
        with debugger.guard():
            x = torch.zeros(8, device="cuda")
        view, alias = x[2:6], x.detach()
        resize(x)
        view.fill_(3)
        alias[0] = 5
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            total = x[:8].sum()
        graph.replay()
        first = x[1].item()
        assert x[:8].tolist() == [5, first, 3, 3, 3, 3, first, first]
        assert total.item() == 17 + 3 * first
        assert debugger.findings == ()
        assert debugger.facts().faults == {}
