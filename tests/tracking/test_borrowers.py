"""When storages that own no memory were first seen, and which buffers came after that."""

from __future__ import annotations

import torch

from shadowgraph.model.buffers import Buffer, Role
from shadowgraph.tracking.pool_watch import Borrowers


def buffer(serial: int, graph: int) -> Buffer:
    return Buffer(serial, 4096, 64, Role.POOL, graph=graph)


def test_a_buffer_that_was_allocated_after_a_storage_was_seen() -> None:
    borrowers, tensor = Borrowers(), torch.zeros(4)
    sight = borrowers.see(tensor.untyped_storage(), 5, born=True, owner=3)
    assert (sight.owner, borrowers.sight_of(tensor.view(2, 2))) == (3, sight)
    assert not borrowers.is_older(sight, buffer(serial=3, graph=1))
    assert borrowers.is_older(sight, buffer(serial=6, graph=1))


def test_a_buffer_of_a_device_is_dated_to_the_end_of_its_capture() -> None:
    """It may be entered into the ledger long after that."""
    borrowers, tensor = Borrowers(), torch.zeros(4)
    borrowers.see(tensor.untyped_storage(), 5, born=True)
    borrowers.redate(4, 8, graph=1)
    sight = borrowers.sight_of(tensor)
    assert sight is not None
    assert not borrowers.is_older(sight, buffer(serial=20, graph=1))
    borrowers.redate(9, 12, graph=2)
    assert borrowers.is_older(sight, buffer(serial=20, graph=2))
    borrowers.forget(1)
    assert borrowers.is_older(sight, buffer(serial=20, graph=1)), "of a graph that is gone no date is kept"


def test_a_storage_that_is_not_known() -> None:
    borrowers, tensor, other = Borrowers(), torch.zeros(4), torch.zeros(4)
    assert borrowers.sight_of(tensor) is None
    borrowers.see(tensor.untyped_storage(), 5)
    assert borrowers.sight_of(other) is None
    del tensor
    assert borrowers.sight_of(other) is None
