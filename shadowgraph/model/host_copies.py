"""Copies between host and device memory, as pure data: nodes of a graph, copies that host code queued, and writes of
host code to memory that such a copy has yet to read. No lock; no storage is kept alive.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

import msgspec

from shadowgraph.model.launches import Launch
from shadowgraph.model.ranges import ByteRange
from shadowgraph.model.views import TensorView

if TYPE_CHECKING:
    import torch


COMPARED = 64 << 10  # bytes of a copy that are compared, at most
PIECES = 8  # of a larger one, in equal distances from the first byte to the last


def pieces_of(nbytes: int) -> tuple[ByteRange, ...]:
    """Offsets of a copy's bytes that are compared: all, or pieces that begin with the first byte and end with the
    last."""
    if nbytes <= COMPARED:
        return (ByteRange(0, nbytes),)
    size = COMPARED // PIECES
    last = nbytes - size
    starts = [last * place // (PIECES - 1) // 16 * 16 for place in range(PIECES - 1)]
    return tuple(ByteRange(start, start + size) for start in (*starts, last))


def bytes_at(address: int, pieces: tuple[ByteRange, ...]) -> tuple[bytes, ...]:
    """The bytes of host memory, which must be there, at offsets from an address."""
    return tuple(ctypes.string_at(address + piece.start, piece.nbytes) for piece in pieces)


class HostKind(StrEnum):
    """What the driver knows of an address of the host."""

    PINNED = "pinned"  # allocated or registered by the driver
    PAGEABLE = "pageable"  # nothing: memory of malloc, or of nothing any more


class HostBlock(msgspec.Struct, frozen=True):
    """What the driver says of an address of the host.

    Attributes
    ----------
    allocation
        The driver's id of the allocation, never used again; 0 where it has none.
    """

    kind: HostKind
    allocation: int = 0


class HostCopy(msgspec.Struct, frozen=True):
    """A memcpy node of a graph with host memory on one side.

    Attributes
    ----------
    node
        Index of the node in `Graph.device_nodes`.
    host, device
        The bytes on either side; from the first to the last one where rows have gaps.
    to_host
        Whether it copies from the device to the host.
    block
        The host memory at the end of the capture; None where the driver was not asked.
    flat
        Whether the bytes have no gaps on either side.
    """

    node: int
    host: ByteRange
    device: ByteRange
    to_host: bool
    block: HostBlock | None = None
    flat: bool = True


@dataclass(slots=True, eq=False)
class QueuedCopy:
    """An asynchronous copy from pinned memory to the device that host code has queued.

    Attributes
    ----------
    launch
        Makes the launch; the stack is resolved when it is called.
    source, target
        The memory on both sides, contiguous, with equal numbers of elements.
    pieces, before
        Offsets in the source of the bytes that are compared, and the bytes when it was queued.
    storage
        The source's storage.
    """

    launch: Callable[[], Launch]
    source: TensorView
    target: TensorView
    pieces: tuple[ByteRange, ...]
    before: tuple[bytes, ...]
    storage: weakref.ref[torch.UntypedStorage] = field(repr=False)


@dataclass(slots=True, eq=False)
class HostWrite:
    """An operator that writes host memory which a copy may have yet to read.

    Attributes
    ----------
    launch
        The operator.
    ranges
        The host memory that it writes.
    """

    launch: Launch
    ranges: tuple[ByteRange, ...]
