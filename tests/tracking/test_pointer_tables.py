"""Tensors of addresses: which buffers a launch that is given one counts as given."""

from __future__ import annotations

import gc

import pytest
import torch

from shadowgraph.model.buffers import Ledger
from shadowgraph.model.launches import Access, Pointer
from shadowgraph.model.views import TensorView
from shadowgraph.tracking.foreign import track_foreign
from shadowgraph.tracking.pointer_tables import MOST, PointerTables


@pytest.fixture
def tables() -> PointerTables:
    return PointerTables()


def addresses(*tensors: torch.Tensor, dtype: torch.dtype = torch.uint64) -> torch.Tensor:
    return torch.tensor([tensor.data_ptr() for tensor in tensors], dtype=dtype)


def given(tables: PointerTables, tensor: torch.Tensor) -> list[tuple[str, int, Access]]:
    found = tables.behind((Pointer("ptrs", TensorView.of(tensor), Access.UNKNOWN),))
    return [(each.argument, each.view.start, each.access) for each in found]


def test_the_buffers_behind_a_table(tables: PointerTables) -> None:
    ledger, one, other, unknown = Ledger(), torch.zeros(8), torch.zeros(16), torch.zeros(4)
    track_foreign(ledger, one)
    track_foreign(ledger, other)
    table = addresses(one, unknown, other[4:])
    tables.note(table, ledger)
    wanted = [("ptrs[0]", one.data_ptr(), Access.UNKNOWN), ("ptrs[2]", other.data_ptr(), Access.UNKNOWN)]
    assert given(tables, table) == wanted
    assert given(tables, table[:2]) == wanted[:1], "the window that a launch is given"
    assert given(tables, addresses(one)) == [], "another table"


def test_what_is_no_table(tables: PointerTables) -> None:
    ledger, one = Ledger(), torch.zeros(8)
    track_foreign(ledger, one)
    for each in (
        addresses(one, dtype=torch.int64),
        torch.tensor([1, 2, 3], dtype=torch.uint64),
        addresses(one).expand(3),
        addresses(*[one] * (MOST + 1)),
        torch.zeros(0, dtype=torch.uint64),
    ):
        tables.note(each, ledger)
        assert given(tables, each) == []


def test_buffers_and_tables_that_are_gone(tables: PointerTables) -> None:
    ledger, one, other = Ledger(), torch.zeros(8), torch.zeros(8)
    ended = track_foreign(ledger, one)
    track_foreign(ledger, other)
    table = addresses(one, other)
    tables.note(table, ledger)
    ledger.free(ended)
    assert [name for name, _, _ in given(tables, table)] == ["ptrs[1]"]
    pointer = (Pointer("ptrs", TensorView.of(table), Access.UNKNOWN),)
    del table
    gc.collect()
    assert tables.behind(pointer) == ()
