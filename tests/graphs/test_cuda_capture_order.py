"""What is done around torch's own begin and end of a capture, with torch's methods replaced: no GPU is needed."""

from __future__ import annotations

import gc
from types import SimpleNamespace

import pytest
import torch

from shadowgraph.graphs.cuda import graph as cuda_graphs
from shadowgraph.graphs.cuda.graph import CudaGraphs
from shadowgraph.tracking.captures import captures


class CapturedGraph:
    """In place of a `torch.cuda.CUDAGraph`."""


class NoMode:
    """In place of a `CaptureMode`."""

    def __init__(self, *_: object) -> None:
        self.marks = None

    def drop(self) -> None:
        """It has nothing to release."""


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> CudaGraphs:
    assert gc.isenabled(), "invalid: the collector is off already"
    assert not captures.running
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    made = CudaGraphs.__new__(CudaGraphs)
    made._allocator = SimpleNamespace(index=0, ledger=None, settle=lambda: None)  # type: ignore[assignment]
    made._native = SimpleNamespace(  # type: ignore[assignment]
        dropped=lambda model: None, may_guard=lambda *_: False, left_alone={"a device that is not watched": 0}
    )
    made._live, made._pools, made._expandable, made._checks = set(), None, False, None
    made._lines = SimpleNamespace(begin=lambda *_: NoMode())  # type: ignore[assignment]
    monkeypatch.setattr(cuda_graphs, "Marks", lambda *_: None)
    monkeypatch.setattr(cuda_graphs, "driver", lambda: None)
    monkeypatch.setattr(cuda_graphs.cuda_capture, "enter", lambda mode: None)
    monkeypatch.setattr(cuda_graphs.cuda_capture, "leave", lambda mode: None)
    monkeypatch.setattr(made, "_end", lambda *_: None)
    return made


def counts() -> bool:
    """Whether a capture counts as running, with the collector off; both or neither."""
    assert (captures.running > 0) == (not gc.isenabled())
    return captures.running > 0


def test_a_capture_counts_from_before_torch_begins_to_after_it_has_ended(graphs: CudaGraphs) -> None:
    seen: list[tuple[str, bool]] = []
    begin = graphs._wrap_begin(lambda *_: seen.append(("begins", counts())))
    end = graphs._wrap_end(lambda _: seen.append(("ends", counts())))
    graph = CapturedGraph()
    for _ in range(2):
        begin(graph)
        assert counts()
        end(graph)
        assert not counts()
    assert seen == [("begins", True), ("ends", True)] * 2


def test_so_does_one_on_a_device_that_is_not_watched(graphs: CudaGraphs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    graph = CapturedGraph()
    graphs._wrap_begin(lambda *_: None)(graph)
    assert counts()
    graphs._wrap_end(lambda _: None)(graph)
    assert not counts()


def test_so_does_one_whose_watching_fails(graphs: CudaGraphs, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("a fault of ours")

    monkeypatch.setattr(graphs, "_begin", fail)
    graph = CapturedGraph()
    graphs._wrap_begin(lambda *_: None)(graph)
    assert counts()
    graphs._wrap_end(lambda _: None)(graph)
    assert not counts()


def refuse(*_: object) -> None:
    assert counts()
    raise RuntimeError("refused")


def test_what_torch_refuses_to_begin_or_to_end_runs_no_more(graphs: CudaGraphs) -> None:
    graph = CapturedGraph()
    with pytest.raises(RuntimeError, match="refused"):
        graphs._wrap_begin(refuse)(graph)
    assert not counts()
    graphs._wrap_begin(lambda *_: None)(graph)
    with pytest.raises(RuntimeError, match="refused"):
        graphs._wrap_end(refuse)(graph)
    assert not counts()


def test_a_graph_that_dies_in_its_capture_or_is_reset_ends_it(graphs: CudaGraphs) -> None:
    graph = CapturedGraph()
    graphs._wrap_begin(lambda *_: None)(graph)
    assert counts()
    del graph
    assert not counts()
    graph = CapturedGraph()
    graphs._wrap_begin(lambda *_: None)(graph)
    graphs._wrap_reset(lambda _: None)(graph)
    assert not counts()
