"""Guarded static tensors behave as ordinary ones: they are resized, grow as ``out=``, and keep what they held."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from blocks import buffer_of, intact

from shadowgraph.graphs.dispatch.eager import EagerMode, guard_allocations
from shadowgraph.model.buffers import Role
from shadowgraph.model.guards import GuardPolicy
from shadowgraph.tracking.allocator import HostAllocator


@pytest.fixture(autouse=True)
def mode(allocator: HostAllocator, policy: GuardPolicy) -> Iterator[EagerMode]:
    with EagerMode(allocator, lambda where: True) as entered:
        yield entered


def test_a_guarded_tensor_can_be_resized_at_any_time(allocator: HostAllocator) -> None:
    with guard_allocations():
        x = torch.arange(6.0)
    before = buffer_of(x)
    x.resize_(2, 50)
    assert x.flatten()[:6].tolist() == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
    assert (buffer_of(x).nbytes, buffer_of(x).role) == (400, Role.STATIC)
    assert not before.alive
    assert intact(allocator, buffer_of(x))
    kept = x.data_ptr()
    x.resize_(3)
    x.resize_as_(torch.zeros(4, 25))
    assert x.data_ptr() == kept
    assert x.shape == (4, 25)


def test_a_guarded_out_tensor_grows(allocator: HostAllocator) -> None:
    with guard_allocations():
        small = torch.zeros(2)
    with pytest.warns(UserWarning, match="resized"):
        torch.add(torch.ones(50), 1, out=small)
    assert torch.equal(small, torch.full((50,), 2.0))
    assert intact(allocator, buffer_of(small))


def test_an_empty_out_tensor_is_guarded_in_the_context_and_left_alone_outside(allocator: HostAllocator) -> None:
    with guard_allocations():
        inside = torch.empty(0)
        torch.mul(torch.ones(30), 3, out=inside)
    outside = torch.mul(torch.ones(30), 3, out=torch.empty(0))
    assert torch.equal(inside, outside)
    assert buffer_of(inside).nbytes == 120
    assert not allocator.arena.holds(outside.data_ptr())


def test_an_error_of_the_operator_stays_that_error() -> None:
    with guard_allocations():
        x = torch.zeros(3)
    with pytest.raises(RuntimeError, match="size of tensor"):
        torch.add(torch.ones(4), torch.ones(5), out=x)
    with pytest.raises(RuntimeError, match="can't be cast"):
        torch.add(torch.ones(3), 1, out=torch.zeros(3, dtype=torch.int32))
