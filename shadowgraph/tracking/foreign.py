"""Foreign memory, allocated outside shadowgraph: entered into the ledger while its storage lives.

Any thread; takes no lock but the ledger's. Storage finalizers end the entries, through `frees`.
"""

from __future__ import annotations

import weakref
from functools import partial

import torch

from shadowgraph.common.finalizer_safe_lock import run_deferred
from shadowgraph.model.buffers import Buffer, Ledger, Role
from shadowgraph.model.ranges import ByteRange
from shadowgraph.model.stacks import Stack
from shadowgraph.tracking.frees import finalized

_storages: dict[Buffer, weakref.ref[torch.UntypedStorage]] = {}  # until the finalizer has run
_aliases: dict[int, weakref.ref[torch.UntypedStorage]] = {}  # by the storage's id, while it lives


def note_alias(storage: torch.UntypedStorage) -> None:
    """A storage was made over an address, of memory that something else owns."""
    key = id(storage)
    _aliases[key] = weakref.ref(storage, lambda _: _aliases.pop(key, None))


def is_alias(storage: torch.UntypedStorage) -> bool:
    """Whether a storage was noted as one that owns nothing."""
    known = _aliases.get(id(storage))
    return known is not None and known() is storage


def track_foreign(ledger: Ledger, tensor: torch.Tensor, stack: Stack = ()) -> Buffer:
    """The ledger's buffer that holds a tensor's memory; created from its storage when there is none.

    The entry ends with the storage and does not keep it alive; `drop_stale` ends the entries of storages that moved.
    Dtype and shape are the tensor's when it spans the storage, else those of the storage as a flat array.
    """
    storage = tensor.untyped_storage()
    whole = tensor.storage_offset() == 0 and tensor.numel() * tensor.element_size() == storage.nbytes()
    shape = tuple(tensor.shape) if whole else None
    return track_storage(ledger, storage, tensor.dtype, shape, str(tensor.device), stack)


def track_storage(
    ledger: Ledger,
    storage: torch.UntypedStorage,
    dtype: torch.dtype,
    shape: tuple[int, ...] | None,
    device: str,
    stack: Stack = (),
) -> Buffer:
    """As `track_foreign`, for a storage; without a shape it is a flat array."""
    run_deferred()  # the address may have been reused
    start, nbytes = storage.data_ptr(), storage.nbytes()
    known = ledger.owner(start, start + nbytes)
    while known is not None and not still_there(known):
        ledger.free(known)
        known = ledger.owner(start, start + nbytes)
    if known is not None and known.start <= start and start + nbytes <= known.stop:
        return known
    buffer = _foreign(ledger, ByteRange(start, start + nbytes), dtype, shape, device, stack)
    buffer.alias = is_alias(storage)
    ledger.add(buffer)
    _storages[buffer] = weakref.ref(storage)
    finalizer = weakref.finalize(storage, finalized, buffer, partial(_end, ledger, buffer))
    finalizer.atexit = False
    return buffer


def track_gone(
    ledger: Ledger, where: ByteRange, dtype: torch.dtype, shape: tuple[int, ...] | None, device: str, since: int
) -> Buffer:
    """The ledger's buffer that held a storage's memory until the storage ended; created, and ended, when there is none.

    Parameters
    ----------
    since
        A serial of the ledger from before the storage ended.
    """
    run_deferred()
    for known in reversed(ledger.freed):
        if (known.freed_at or 0) < since:
            break
        if known.start <= where.start and where.stop <= known.stop:
            return known
    buffer = ledger.add(_foreign(ledger, where, dtype, shape, device, ()))
    ledger.free(buffer)
    return buffer


def _foreign(
    ledger: Ledger, where: ByteRange, dtype: torch.dtype, shape: tuple[int, ...] | None, device: str, stack: Stack
) -> Buffer:
    return Buffer(
        serial=ledger.next_serial(),
        start=where.start,
        nbytes=where.nbytes,
        role=Role.FOREIGN,
        dtype=str(dtype).removeprefix("torch."),
        shape=shape if shape is not None else (where.nbytes // dtype.itemsize,),
        itemsize=dtype.itemsize,
        stack=stack,
        device=device,
    )


def still_there(buffer: Buffer) -> bool:
    """Whether a buffer lives and its bytes are still where the ledger has them. Reads none of them; never raises.

    False for foreign memory whose storage is gone, or has another address or size now: after `resize_`,
    ``share_memory_()``, ``untyped_storage().resize_(0)``. This holds even before the finalizer has run.
    """
    if buffer.role is not Role.FOREIGN or not buffer.alive:
        return buffer.alive
    reference = _storages.get(buffer)
    return reference is None or _matches(buffer, reference())


def hold(buffer: Buffer) -> object | None:
    """A reference that keeps a buffer's bytes in place during a read; None if they are gone.

    Memory of the arena always stays mapped, that of a foreign storage as long as the storage lives.
    """
    reference = _storages.get(buffer)
    storage = reference() if reference is not None else None
    if not still_there(buffer) or (reference is not None and storage is None):
        return None
    return storage if storage is not None else buffer


def whereabouts(buffer: Buffer) -> ByteRange | None:
    """The current range of a foreign buffer's storage, even after its entry has ended; None once it is gone."""
    reference = _storages.get(buffer)
    storage = reference() if reference is not None else None
    return None if storage is None else ByteRange(storage.data_ptr(), storage.data_ptr() + storage.nbytes())


def is_borrowed(buffer: Buffer) -> bool:
    """Whether the living storage of a foreign buffer gets its memory from elsewhere: from numpy, another library or
    process. Then the end of the storage says nothing about the memory."""
    reference = _storages.get(buffer)
    storage = reference() if reference is not None else None
    return storage is not None and not storage.resizable()


def drop_stale(ledger: Ledger) -> int:
    """End a ledger's entries of foreign memory that is not `still_there`; call it before a check reads.

    Visits every foreign buffer and reads none. The ledger's version changes if an entry ends.

    Returns
    -------
    int
        Number of ended entries, without those of dead storages.
    """
    run_deferred()
    ended = 0
    for buffer in tuple(_storages.copy()):
        if buffer.alive and not still_there(buffer) and ledger.get(buffer.serial) is buffer:
            ledger.free(buffer)
            ended += 1
    return ended


def _matches(buffer: Buffer, storage: torch.UntypedStorage | None) -> bool:
    return storage is not None and storage.nbytes() == buffer.nbytes and storage.data_ptr() == buffer.start


def _end(ledger: Ledger, buffer: Buffer) -> None:
    _storages.pop(buffer, None)
    ledger.free(buffer)
