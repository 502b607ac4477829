"""Host memory that copies to and from a device use: entered into `Ledger.host` while its storage lives.

Pinned memory is entered where it is allocated, if an operator of torch did that, else where a copy uses it. Called by
the dispatch modes, in the thread of an operator, and by checks; takes no lock but the ledger's.
"""

from __future__ import annotations

import weakref

import torch

from shadowgraph.model.buffers import Buffer, Ledger, Role
from shadowgraph.model.ranges import ByteRange
from shadowgraph.model.stacks import Stack
from shadowgraph.model.views import TensorView
from shadowgraph.tracking.foreign import is_borrowed, track_foreign, track_storage

_MOST = 4096
_written_by_device: dict[tuple[int, int], weakref.ref[torch.UntypedStorage]] = {}


def note_device_writes(tensor: torch.Tensor) -> None:
    """An asynchronous copy from the device will write host memory, at a time that the host does not know."""
    start = tensor.data_ptr()
    if len(_written_by_device) >= _MOST:
        for where in [where for where, storage in list(_written_by_device.items()) if storage() is None]:
            _written_by_device.pop(where, None)
        if len(_written_by_device) >= _MOST:
            _written_by_device.clear()
    _written_by_device[start, start + tensor.nbytes] = weakref.ref(tensor.untyped_storage())


def device_writes(where: ByteRange) -> bool:
    """Whether copies from the device have written host memory that lives in a range."""
    return any(
        start < where.stop and where.start < stop and storage() is not None
        for (start, stop), storage in list(_written_by_device.items())
    )


def note_allocated(ledger: Ledger, tensor: torch.Tensor, stack: Stack) -> Buffer:
    """Enter pinned memory that torch has just allocated.

    Parameters
    ----------
    ledger
        Of the device.
    """
    buffer = track_foreign(ledger.host, tensor, stack)
    buffer.owned = True
    return buffer


def note_used(ledger: Ledger, tensor: torch.Tensor) -> Buffer:
    """Enter host memory that a copy uses, unless it is known."""
    buffer = track_foreign(ledger.host, tensor)
    buffer.owned = buffer.owned or not is_borrowed(buffer)  # torch cannot tell once it is gone
    return buffer


def note_made_in_capture(ledger: Ledger, tensor: torch.Tensor, graph: int) -> Buffer:
    """Enter host memory that an operator of a graph's capture has just allocated."""
    buffer = note_used(ledger, tensor)
    buffer.graph = graph
    return buffer


def used_by_capture(ledger: Ledger, where: ByteRange, began: int, ended: int) -> Buffer | None:
    """The host memory that held a range during a capture, of several tenants the last one; None where none is known.

    Parameters
    ----------
    began, ended
        Allocation serials at the begin and at the end of the capture.
    """
    host = ledger.host
    tenants = [*host.freed, *host.overlapping(where.start, where.stop)]
    held = [each for each in tenants if each.range.covers(where) and each.serial < ended]
    lived = [each for each in held if each.freed_at is None or each.freed_at > began]
    return max(lived, key=lambda each: each.serial, default=None)


def tenants_since(ledger: Ledger, where: ByteRange, serial: int) -> tuple[Buffer, ...]:
    """The known host memory that lives in a range and was allocated after a serial."""
    return tuple(each for each in ledger.host.overlapping(where.start, where.stop) if each.serial > serial)


def memory_of(ledger: Ledger, storage: torch.UntypedStorage, view: TensorView) -> Buffer:
    """The entry of a storage, made if there is none.

    Parameters
    ----------
    view
        A tensor over it.
    """
    whole = view.contiguous and (view.start, view.nbytes) == (storage.data_ptr(), storage.nbytes())
    shape = view.shape if whole else None
    return track_storage(ledger.host, storage, getattr(torch, view.dtype), shape, view.device)


def unowned(ledger: Ledger, where: ByteRange) -> Buffer:
    """A buffer, in no ledger, for host memory of which no storage is known."""
    return Buffer(ledger.next_serial(), where.start, where.nbytes, Role.FOREIGN, shape=(where.nbytes,))
