"""What a capture's mode notes of an operator besides its tensors; the host's tensors play those of a device."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from shadowgraph.graphs.cuda import capture
from shadowgraph.graphs.cuda.capture import CaptureMode
from shadowgraph.graphs.dispatch import tensors
from shadowgraph.model.buffers import Ledger
from shadowgraph.model.graphs import Graph

AT = torch.tensor([1])
NAMES = {"index_put", "put", "index_copy"}


@pytest.mark.parametrize(
    ("body", "adds"),
    [
        (lambda x: x.__setitem__(AT, 1.0), False),
        (lambda x: x.index_put_((AT,), torch.ones(1)), False),
        (lambda x: x.index_put_((AT,), torch.ones(1), accumulate=True), True),
        (lambda x: x.put_(AT, torch.ones(1), True), True),
        (lambda x: x.put_(AT, torch.ones(1)), False),
        (lambda x: x.index_copy_(0, AT, torch.ones(1)), None),
    ],
)
def test_whether_an_operator_adds_to_what_it_stores_over(
    body: Callable[[torch.Tensor], object], adds: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(capture, "is_plain", lambda tensor, device="cpu": tensors.is_plain(tensor))
    graph, x = Graph(5, "graph#5"), torch.zeros(4)
    mode = CaptureMode(graph, Ledger(), isolate=False)
    mode.begin()
    try:
        body(x)
    finally:
        mode.end()
        mode.finish()
    (launch,) = [node.launch for node in graph.nodes if node.launch.name.split(".")[1].rstrip("_") in NAMES]
    assert launch.accumulates is adds
