"""Shadow copies of ranges on the device, to compare with, and small ones in pinned memory, which survive a device loss.

Checks use a shadow under the engine's lock; `last_values` reads host memory only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from shadowgraph.engines.base import MIRRORED
from shadowgraph.engines.device import Device
from shadowgraph.model.ranges import ByteRange

CHUNK = np.dtype([("source", "<u8"), ("shadow", "<u8"), ("mirror", "<u8"), ("nbytes", "<u4"), ("part", "<u4")])
PART = np.dtype([(name, "<u8") for name in ("start", "shadow", "nbytes", "first", "last", "count")])
_SMALLEST, _LARGEST = 4 << 10, 32 << 10  # bytes for each block
_BLOCKS = 1024  # enough to occupy every multiprocessor; more bytes make larger chunks


@dataclass(frozen=True, slots=True, eq=False)
class CupyShadow:
    """Device memory for shadow copies of ranges; owned by the caller of `shadow_of`, freed with this object."""

    parts: tuple[tuple[object, ByteRange], ...]
    room: Any
    chunks: Any
    states: Any
    chunk_count: int
    mirror: Any
    mirrored: dict[int, int]

    def last_values(self) -> list[tuple[object, ByteRange, bytes]]:
        """The mirrored parts as last copied; needs no device."""
        view = memoryview(self.mirror) if self.mirrored else memoryview(b"")
        found = []
        for index, offset in self.mirrored.items():
            key, where = self.parts[index]
            found.append((key, where, bytes(view[offset : offset + where.nbytes])))
        return found


def shadow_of(device: Device, parts: tuple[tuple[object, ByteRange], ...]) -> CupyShadow:
    """Allocate zeroed shadow copies of ranges; nothing is copied yet."""
    ranges = [where for _, where in parts]
    offsets, total = offsets_of(ranges)
    small = [index for index, where in enumerate(ranges) if where.nbytes <= MIRRORED]
    places, mirror_total = offsets_of([ranges[index] for index in small])
    mirrored = dict(zip(small, places, strict=True))
    room, mirror = device.zeros(total), device.pinned(mirror_total)
    size = min(_LARGEST, max(_SMALLEST, sum(w.nbytes for w in ranges) // _BLOCKS // _SMALLEST * _SMALLEST))
    states = np.zeros(len(parts), dtype=PART)
    chunks: list[tuple[int, int, int, int, int]] = []
    for index, (where, offset) in enumerate(zip(ranges, offsets, strict=True)):
        shadow, host = int(room.data.ptr) + offset, mirror.ptr + mirrored[index] if index in mirrored else 0
        chunks += chunks_of(where, shadow, host, index, size)
        states[index] = (where.start, shadow, where.nbytes, 2**64 - 1, 0, 0)
    uploaded = [device.upload(np.array(chunks, dtype=CHUNK)), device.upload(states)]
    return CupyShadow(parts, room, uploaded[0], uploaded[1], len(chunks), mirror, mirrored)


def offsets_of(ranges: Sequence[ByteRange]) -> tuple[list[int], int]:
    """Offsets of consecutive copies, aligned like their sources for 16-byte accesses; and the total bytes."""
    offsets, total = [], 0
    for where in ranges:
        total = -(-total // 16) * 16 + where.start % 16
        offsets.append(total)
        total += where.nbytes
    return offsets, total


def chunks_of(where: ByteRange, shadow: int, mirror: int, part: int, size: int) -> list[tuple[int, int, int, int, int]]:
    """Chunks of a range whose inner boundaries are aligned to 16 bytes."""
    pieces = []
    start = where.start
    while start < where.stop:
        stop = min(where.stop, start - start % 16 + size)
        done = start - where.start
        pieces.append((start, shadow + done, mirror + done if mirror else 0, stop - start, part))
        start = stop
    return pieces
