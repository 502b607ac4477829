"""Which eager operators are described at all: nothing that could concern anybody may fall through."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from shadowgraph.graphs.dispatch import op_filter
from shadowgraph.graphs.dispatch.op_filter import Relevance, path_of
from shadowgraph.model.buffers import Buffer, Ledger, Role
from shadowgraph.model.ranges import ByteRange

ADD, COPY, INDEX = torch.ops.aten.add_.Tensor, torch.ops.aten.copy_.default, torch.ops.aten.index.Tensor
FOREACH, NORM = torch.ops.aten._foreach_copy_.default, torch.ops.aten.native_batch_norm.default


class Asked:
    """A ledger of one tensor, and which ranges were asked for."""

    def __init__(self) -> None:
        self.ledger, self.ranges = Ledger(), list[ByteRange]()
        self.relevance = Relevance(self.ledger, self.tracked, "cpu", -1)

    def tracked(self, where: ByteRange) -> bool:
        self.ranges.append(where)
        return self.ledger.owner(where.start, where.stop) is not None

    def track(self, tensor: torch.Tensor) -> Buffer:
        serial = self.ledger.next_serial()
        return self.ledger.add(Buffer(serial, tensor.data_ptr(), tensor.nbytes, Role.STATIC))

    def of(self, operator: Any, /, *args: Any, **kwargs: Any) -> bool:
        return self.relevance.of(path_of(operator, args), args, kwargs)


@pytest.fixture
def asked() -> Iterator[Asked]:
    before = dict(op_filter.paths)
    yield Asked()
    op_filter.paths.clear()
    op_filter.paths.update(before)


def test_what_an_operator_writes_decides_and_what_takes_indices_by_all_it_is_given(asked: Asked) -> None:
    mine, other = torch.zeros(8), torch.zeros(8)
    asked.track(mine)
    at = torch.zeros(2, dtype=torch.int64)
    assert asked.of(ADD, mine, 1)
    assert asked.of(COPY, mine, other)
    assert not asked.of(COPY, other, mine), "it only reads what is tracked"
    assert asked.of(FOREACH, [other, mine], [other, other])
    assert not asked.of(FOREACH, [other, other], [mine, other])
    assert asked.of(INDEX, mine, [at])
    assert not asked.of(INDEX, other, [at])
    assert asked.of(COPY, self=mine, src=other), "by name"


def test_answers_are_remembered_until_the_ledger_changes(asked: Asked) -> None:
    table = torch.zeros(8)
    assert not asked.of(ADD, table, 1)
    assert not asked.of(ADD, table, 1)
    assert len(asked.ranges) == 1
    buffer = asked.track(table)
    assert asked.of(ADD, table, 1)
    asked.ledger.free(buffer)
    assert not asked.of(ADD, table, 1)


def test_part_of_a_buffer_is_enough(asked: Asked) -> None:
    table = torch.zeros(8)
    asked.track(table[4:])
    assert asked.of(ADD, table, 1)
    assert not asked.of(ADD, table[:4], 1)


def strided(table: torch.Tensor) -> torch.Tensor:
    return table[::2]


def fake(table: torch.Tensor) -> torch.Tensor:
    with FakeTensorMode():
        return torch.empty(4)


class Subclass(torch.Tensor):
    pass


@pytest.mark.parametrize(
    "made",
    [strided, fake, lambda t: t.as_subclass(Subclass), lambda t: torch.eye(2).to_sparse(), torch._lazy_clone],
    ids=["strided", "fake", "subclass", "sparse", "lazy copy"],
)
def test_where_it_is_not_easy_to_tell_it_may_be(asked: Asked, made: Any) -> None:
    tensor = made(torch.zeros(8))
    assert asked.of(ADD, tensor, 1)
    assert asked.ranges == [], "not even its address was asked for"
    if made is torch._lazy_clone:
        assert torch._C._is_cow_tensor(tensor), "asking for its address would have made the copy"


def test_an_operator_whose_facts_depend_on_the_call_is_looked_at_each_time(asked: Asked) -> None:
    mean, x = torch.zeros(3), torch.ones(2, 3)
    asked.track(mean)
    evaluates = (x, None, None, mean, torch.ones(3), False, 0.1, 1e-5)
    trains = (*evaluates[:5], True, *evaluates[6:])
    assert not asked.of(NORM, *evaluates)
    assert asked.of(NORM, *trains)
    assert not asked.of(NORM, *evaluates)


def test_memory_of_another_device_concerns_nobody(asked: Asked) -> None:
    assert not asked.of(ADD, torch.zeros(8, device="meta"), 1)
