from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest
import torch

from shadowgraph.model.buffers import Buffer, Ledger, Role
from shadowgraph.model.ranges import ByteRange
from shadowgraph.model.stacks import Frame
from shadowgraph.tracking.foreign import drop_stale, is_borrowed, track_foreign, whereabouts


@pytest.fixture
def ledger() -> Ledger:
    return Ledger()


def test_a_tensor_that_spans_its_storage_gives_its_own_form(ledger: Ledger) -> None:
    tensor = torch.zeros(3, 8, dtype=torch.int32)
    stack = (Frame("model.py", 3, "plan"),)
    buffer = track_foreign(ledger, tensor, stack)
    assert (buffer.start, buffer.nbytes) == (tensor.data_ptr(), 96)
    assert (buffer.dtype, buffer.shape, buffer.itemsize, buffer.device) == ("int32", (3, 8), 4, "cpu")
    assert (buffer.role, buffer.stack, buffer.guarded) == (Role.FOREIGN, stack, False)
    assert ledger.at(tensor.data_ptr() + 95) is buffer


@pytest.mark.parametrize("first", [slice(0, 4), slice(2, 6), slice(0, 10, 2)])
def test_a_view_gives_the_storage_as_a_flat_array(ledger: Ledger, first: slice) -> None:
    base = torch.zeros(10, dtype=torch.int64)
    buffer = track_foreign(ledger, base[first])
    assert (buffer.start, buffer.nbytes, buffer.shape) == (base.data_ptr(), 80, (10,))
    assert track_foreign(ledger, base) is buffer


def test_every_view_of_known_memory_gives_the_same_buffer(ledger: Ledger) -> None:
    tensor = torch.zeros(3, 8, dtype=torch.int32)
    buffer = track_foreign(ledger, tensor)
    assert track_foreign(ledger, tensor[1:]) is buffer
    assert track_foreign(ledger, tensor.view(torch.float32).reshape(-1)) is buffer
    assert track_foreign(ledger, tensor.t()) is buffer
    assert len(ledger) == 1


def test_memory_that_is_ours_already_is_not_entered_again(ledger: Ledger) -> None:
    tensor = torch.zeros(4)
    ours = ledger.add(Buffer(ledger.next_serial(), tensor.data_ptr(), 16, Role.STATIC))
    assert track_foreign(ledger, tensor[1:3]) is ours


@pytest.mark.parametrize("piece", [slice(10, 20), slice(0, 20), slice(80, 100)])
def test_a_known_part_does_not_stand_for_the_whole(ledger: Ledger, piece: slice) -> None:
    """Storages over borrowed memory may be parts of each other; what is returned must hold the tensor."""
    memory = np.zeros(100, dtype=np.int32)
    part, whole = torch.from_numpy(memory[piece]), torch.from_numpy(memory)
    small, large = track_foreign(ledger, part), track_foreign(ledger, whole)
    assert (small.nbytes, large.nbytes) == (part.nbytes, 400)
    assert (track_foreign(ledger, part), track_foreign(ledger, whole)) == (small, large)


def test_the_entry_ends_with_the_storage_and_not_with_the_tensor(ledger: Ledger) -> None:
    tensor = torch.zeros(8)
    buffer = track_foreign(ledger, tensor)
    view = tensor[2:]
    del tensor
    gc.collect()
    assert buffer.alive
    assert ledger.at(buffer.start) is buffer
    del view
    assert not buffer.alive
    assert ledger.freed == (buffer,)


def test_nothing_is_kept_alive(ledger: Ledger) -> None:
    tensor = torch.zeros(8)
    gone = weakref.ref(tensor.untyped_storage())
    track_foreign(ledger, tensor)
    del tensor
    assert gone() is None


def test_an_address_that_changed_hands_is_a_new_buffer(ledger: Ledger) -> None:
    memory = np.zeros(64, dtype=np.uint8)
    first = torch.from_numpy(memory)
    old = track_foreign(ledger, first)
    del first
    second = torch.from_numpy(memory).view(torch.int16)
    new = track_foreign(ledger, second)
    assert new is not old
    assert new.start == old.start
    assert (new.dtype, new.shape) == ("int16", (32,))
    assert ledger.at(new.start) is new


def test_storages_that_only_the_collector_frees_are_noticed(ledger: Ledger) -> None:
    holder: list[object] = [torch.zeros(8)]
    buffer = track_foreign(ledger, holder[0])  # type: ignore[arg-type]
    holder.append(holder)
    del holder
    gc.collect()
    assert buffer not in list(ledger)
    assert not buffer.alive


def test_whereabouts_of_a_storage() -> None:
    ledger, tensor = Ledger(), torch.zeros(8)
    entry = track_foreign(ledger, tensor)
    assert whereabouts(entry) == entry.range
    tensor.untyped_storage().resize_(1 << 16)
    drop_stale(ledger)
    assert not entry.alive
    assert whereabouts(entry) == ByteRange(tensor.data_ptr(), tensor.data_ptr() + (1 << 16))
    del tensor
    gc.collect()
    assert whereabouts(entry) is None


def test_memory_that_another_library_owns_is_borrowed() -> None:
    ledger, tensor = Ledger(), torch.zeros(8)
    array = torch.zeros(8).numpy()
    lent = torch.from_numpy(array)
    own, borrowed = track_foreign(ledger, tensor), track_foreign(ledger, lent)
    assert (is_borrowed(own), is_borrowed(borrowed)) == (False, True)
    del lent
    gc.collect()
    assert not is_borrowed(borrowed), "nothing is known of it any more"
