"""How a buffer is cut by what a graph's launches were given of it."""

from __future__ import annotations

import msgspec
import pytest
import torch

from shadowgraph.checks.out_of_bounds import view_partition as module
from shadowgraph.checks.out_of_bounds.view_partition import cells_of, given, own_of
from shadowgraph.model.buffers import Buffer, Role
from shadowgraph.model.graphs import Access, Graph, Launch, LaunchKind, Node, Pointer
from shadowgraph.model.ranges import ByteRange, RangeSet
from shadowgraph.model.views import TensorView

TABLE = torch.zeros(4, 8, dtype=torch.int32)
BUFFER = Buffer(1, TABLE.data_ptr(), TABLE.nbytes, Role.STATIC, "int32", (4, 8), 4)


def launch(*parts: torch.Tensor | TensorView, access: Access = Access.UNKNOWN) -> Launch:
    views = [part if isinstance(part, TensorView) else TensorView.of(part) for part in parts]
    return Launch(LaunchKind.TRITON, "kernel", tuple(Pointer(f"a{i}", v, access) for i, v in enumerate(views)))


def cut(*launches: Launch) -> list[tuple[int, int]]:
    """Where the table is cut, in bytes from its start."""
    graph = Graph(1, "graph", [Node(index, each) for index, each in enumerate(launches)])
    return [(cell.start - BUFFER.start, cell.stop - BUFFER.start) for cell in cells_of(graph, BUFFER)]


def test_it_is_cut_where_views_begin_and_end() -> None:
    assert cut(launch(TABLE[1]), launch(TABLE)) == [(0, 32), (32, 64), (64, 128)]
    assert cut(launch(TABLE[0], TABLE[1:3])) == [(0, 32), (32, 96), (96, 128)]


def test_a_view_with_gaps_is_cut_at_each() -> None:
    assert cut(launch(TABLE[2:, :2])) == [(0, 64), (64, 72), (72, 96), (96, 104), (104, 128)]


def test_whole_buffers_and_reads_cut_nothing() -> None:
    assert cut(launch(TABLE), launch(TABLE.T), launch(TABLE.reshape(-1))) == []
    assert cut(launch(TABLE[1], access=Access.READ)) == []
    assert cut() == []


def test_a_view_of_what_was_there_before_counts_for_nothing() -> None:
    """The same addresses, in an allocation that is gone."""
    view = TensorView.of(TABLE[1])
    for other in (
        msgspec.structs.replace(view, storage_nbytes=view.storage_nbytes - 4),
        msgspec.structs.replace(view, storage_address=view.storage_address - 512),
    ):
        assert cut(launch(other)) == []
        assert given(launch(other, view), BUFFER) == (Pointer("a1", view, Access.UNKNOWN),)


def test_too_many_cells_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [launch(TABLE[row]) for row in range(4)]
    assert len(cut(*rows)) == 4
    monkeypatch.setattr(module, "CELLS", 4)
    assert cut(*rows) == []


def test_what_is_a_launches_own() -> None:
    start = BUFFER.start
    own = own_of(given(launch(TABLE[0, :2], TABLE[1]), BUFFER))
    assert own == RangeSet.of([ByteRange(start, start + 8), ByteRange(start + 32, start + 64)])
