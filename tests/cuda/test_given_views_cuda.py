"""Rows that run into their neighbours, and writes outside a given view, in real CUDA graphs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from helpers_cuda import BLOCK, capture, guarded, name_of, only, warm_kernels

import shadowgraph as sg
from shadowgraph.model.findings import Status

pytestmark = pytest.mark.gpu

ROWS, WIDTH = 4, 16


@pytest.fixture(autouse=True)
def warm() -> None:
    warm_kernels()


@pytest.fixture(params=["isolate", "faithful"])
def watching(request: Any) -> Iterator[Any]:
    with sg.debug(backend="cuda", layout=request.param, infer=False) as debugger:
        yield debugger
        assert debugger.facts().faults == {}


def put_at(target: torch.Tensor, count: int) -> None:
    from kernels_cuda import put

    put[(1,)](target, 0, count, BLOCK=BLOCK)


def looked_at(debugger: Any, body: Callable[[torch.Tensor], None], *shape: int) -> torch.cuda.CUDAGraph:
    """A graph over one table, all of which some node reads, after two looks at its replays."""
    table = guarded(debugger, *shape)
    debugger.name("table", table)
    graph, kept = capture(lambda: (body(table), table + 1))
    graph.replay()
    torch.cuda.synchronize()
    look = debugger.locate(graph)
    for _ in range(2):  # what one look shows might be another stream's work: a node is named at the second
        assert debugger.check() == ()
        table.fill_(-1)
        torch.cuda.synchronize()
        graph.replay()
        torch.cuda.synchronize()
    debugger.check()
    assert look.write_sets is not None
    assert any(one.node == 0 for one in look.write_sets.written)
    del kept
    return graph


def test_rows_that_run_into_their_neighbours(watching: Any) -> None:
    def body(table: torch.Tensor) -> None:
        for row in range(3):
            put_at(table[row], WIDTH + 3)

    graph = looked_at(watching, body, ROWS, WIDTH)
    found = only(watching.findings)
    assert watching.notes == ()
    assert (found.code, found.bytes.side, found.buffer.name, found.replay) == ("SG101", "row", "table", 3)
    assert [(row.row, row.width, row.written_past, row.lost, row.into) for row in found.detail.rows] == [
        (0, WIDTH, 3, 3, (1,)),
        (1, WIDTH, 3, 3, (2,)),
        (2, WIDTH, 3, 0, (3,)),
    ]
    culprit = found.culprit
    assert (culprit.status, culprit.name, culprit.node, culprit.seen_in) == (Status.CONFIRMED, "put", 0, 3)
    assert [frame.function for frame in culprit.stack][:2] == ["put_at", "body"]
    assert culprit.led_by is not None
    assert (culprit.led_by.name, culprit.led_by.buffer, culprit.led_by.at) == ("target", "table", 0)
    lost = "into the next; 6 entries lost"
    rows = "wrote past the width of rows 0, 1, 2 of table (int32[4, 16], 256 bytes)"
    assert f"{rows} {lost} in replay 3 of {name_of(graph)}" in found.message


def test_a_kernel_that_writes_the_rows_after_its_own(watching: Any) -> None:
    def body(table: torch.Tensor) -> None:
        for first in (0, 2, 4):
            put_at(table[first : first + 2], 2 * WIDTH + (5 if first == 2 else 0))

    looked_at(watching, body, 6, WIDTH)
    found = only(watching.findings)
    assert (found.code, found.bytes.side, found.culprit.node, found.culprit.name) == ("SG101", None, 1, "put")
    assert (found.bytes.first // 4, found.bytes.last // 4) == (4 * WIDTH, 4 * WIDTH + 4)


def fixed(table: torch.Tensor) -> None:
    for row in range(ROWS):
        put_at(table[row], WIDTH)


def two_rows_each(table: torch.Tensor) -> None:
    for row in (0, 2):
        put_at(table[row], 2 * WIDTH)


def operators(table: torch.Tensor) -> None:
    table[1].mul_(2)
    table[:, :4].sub_(1)
    table.T[2:4].add_(3)
    torch.cumsum(table[2], 0, dtype=torch.int32, out=table[3])
    torch._foreach_add_([table[0], table[2]], 1)
    torch.cat([table[1, :8], table[2, :8]], out=table[0])
    table[1:3].index_add_(0, torch.zeros(2, dtype=torch.int64, device="cuda"), table[2:4].clone())
    table[2:].copy_(table[:2].sort(dim=1).values)
    torch.sum(table, 0, out=table[3])


def transposed(table: torch.Tensor) -> None:
    put_at(table.T, ROWS * WIDTH)
    put_at(table.as_strided((ROWS - 1, WIDTH), (WIDTH, 1), 8), 2 * WIDTH)


@pytest.mark.parametrize("body", [fixed, two_rows_each, operators, transposed])
def test_what_is_meant_is_silent(watching: Any, body: Callable[[torch.Tensor], None]) -> None:
    looked_at(watching, body, ROWS, WIDTH)
    assert watching.findings == watching.notes == ()


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("loss", ["binary_cross_entropy", "soft_margin_loss"])
def test_losses_that_shrink_their_own_result(watching: Any, loss: str, reduction: str) -> None:
    """They compute each element's loss into what they return, and cut that to one element."""
    function = getattr(torch.nn.functional, loss)
    values, target = guarded(watching, WIDTH, dtype=torch.float32), guarded(watching, WIDTH, dtype=torch.float32)

    def refresh() -> None:
        values.uniform_(0.1, 0.9)
        target.fill_(1.0)
        torch.cuda.synchronize()

    refresh()
    graph, kept = capture(lambda: (function(values, target, reduction=reduction), values + 1))
    assert kept[0].untyped_storage().nbytes() > kept[0].nbytes, "the result has all elements' memory"
    for _ in range(4):
        refresh()
        look = watching.locate(graph)
        graph.replay()
        torch.cuda.synchronize()
        assert watching.check() == watching.notes == ()
    assert look.write_sets is not None
    assert look.write_sets.written
