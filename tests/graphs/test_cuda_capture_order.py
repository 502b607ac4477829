"""What is done around torch's own begin and end of a capture, with torch's methods replaced: no GPU is needed."""

from __future__ import annotations

import gc
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from shadowgraph.graphs.cuda import CudaGraphs, _State


class CapturedGraph:
    """In place of a `torch.cuda.CUDAGraph`."""


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> CudaGraphs:
    gc.collect()
    assert not gc.get_freeze_count(), "invalid: somebody has frozen objects"
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    made = CudaGraphs.__new__(CudaGraphs)
    made._allocator = SimpleNamespace(index=0)  # type: ignore[assignment]
    made._native = SimpleNamespace(dropped=lambda model: None, may_guard=lambda *_: False)  # type: ignore[assignment]
    made._live, made._pools, made._expandable = set(), None, False

    def began(graph: Any, state: _State) -> None:
        graph._shadowgraph = state

    monkeypatch.setattr(made, "_began", began)
    return made


def frozen() -> bool:
    return gc.get_freeze_count() > 0


def test_garbage_stays_from_before_torch_begins_to_after_it_has_ended(graphs: CudaGraphs) -> None:
    seen: list[tuple[str, bool]] = []
    begin = graphs._wrap_begin(lambda *_: seen.append(("begins", frozen())))
    end = graphs._wrap_end(lambda _: seen.append(("ends", frozen())))
    for _ in range(2):
        graph = CapturedGraph()
        begin(graph)
        assert frozen()
        end(graph)
        assert not frozen()
    assert seen == [("begins", True), ("ends", True)] * 2


def refuse(*_: object) -> None:
    assert frozen()
    raise RuntimeError("refused")


def test_what_torch_refuses_to_begin_or_to_end_keeps_nothing(graphs: CudaGraphs) -> None:
    graph = CapturedGraph()
    with pytest.raises(RuntimeError, match="refused"):
        graphs._wrap_begin(refuse)(graph)
    assert not frozen()
    graphs._wrap_begin(lambda *_: None)(graph)
    with pytest.raises(RuntimeError, match="refused"):
        graphs._wrap_end(refuse)(graph)
    assert not frozen()


def test_a_graph_that_is_gone_in_its_capture_keeps_nothing(graphs: CudaGraphs) -> None:
    state = graphs._begin(None)
    assert frozen()
    graphs._gone(state.model, state.kept)
    assert not frozen()
