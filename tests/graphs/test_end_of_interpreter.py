"""Finalizers that run after the globals of modules have ended: they must say nothing."""

from __future__ import annotations

from typing import Any

import pytest

from shadowgraph.graphs.cuda import graph as cuda_graph
from shadowgraph.graphs.cuda import isolated_pools


class Graph:
    """Stands in for torch's own class, whose finalizer is wrapped."""

    def __del__(self) -> None:
        pass


@pytest.fixture
def unraisable(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What finalizers raised."""
    raised: list[Any] = []
    monkeypatch.setattr("sys.unraisablehook", lambda told: raised.append(told.exc_value))
    return raised


def test_a_guarded_pool(monkeypatch: pytest.MonkeyPatch, unraisable: list[Any]) -> None:
    pool = isolated_pools.IsolatedPool(object())  # type: ignore[arg-type]
    monkeypatch.setattr(isolated_pools, "captures", None)
    del pool
    assert not unraisable


def test_a_graph_of_the_program(monkeypatch: pytest.MonkeyPatch, unraisable: list[Any]) -> None:
    monkeypatch.setattr(Graph, "__del__", cuda_graph._wrap_del(Graph.__del__))
    graph = Graph()
    monkeypatch.setattr(cuda_graph, "captures", None)
    del graph
    assert not unraisable
