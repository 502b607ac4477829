"""Memory that we did not allocate: entered into the ledger while its storage lives."""

from __future__ import annotations

import weakref
from functools import partial

import torch

from shadowgraph.tracking.buffers import Buffer, Ledger, Role
from shadowgraph.tracking.quiet import later, settle
from shadowgraph.tracking.stacks import Stack


def track_foreign(ledger: Ledger, tensor: torch.Tensor, stack: Stack = ()) -> Buffer:
    """The ledger's buffer that holds a tensor's memory; made from its storage when there is none.

    The entry ends with the storage and does not keep it alive. Dtype and shape are the tensor's when it spans the
    storage, else those of the storage as a flat array.
    """
    settle()  # an address may have changed hands since
    storage = tensor.untyped_storage()
    start, nbytes = storage.data_ptr(), storage.nbytes()
    known = ledger.owner(start, start + nbytes)
    if known is not None and known.start <= start and start + nbytes <= known.stop:
        return known
    whole = tensor.storage_offset() == 0 and tensor.numel() * tensor.element_size() == nbytes
    buffer = Buffer(
        serial=ledger.next_serial(),
        start=start,
        nbytes=nbytes,
        role=Role.FOREIGN,
        dtype=str(tensor.dtype).removeprefix("torch."),
        shape=tuple(tensor.shape) if whole else (nbytes // tensor.element_size(),),
        itemsize=tensor.element_size(),
        stack=stack,
        device=str(tensor.device),
    )
    ledger.add(buffer)
    finalizer = weakref.finalize(storage, later, partial(ledger.free, buffer))
    finalizer.atexit = False
    return buffer
