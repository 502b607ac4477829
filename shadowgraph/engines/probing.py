"""Probe kernel arguments: memory compared with its copy after a graph node; changes are reported and copied anew.

The kernel may be a node of a graph. Used by probed replays, in the replaying thread; not thread-safe.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from shadowgraph.engines.device import Device
from shadowgraph.engines.launcher import Launcher
from shadowgraph.model.ranges import ByteRange

TAKE = 0xFFFFFFFF  # in place of a node index: copy, report nothing
THREADS = 256
PIECE = np.dtype([("source", "<u8"), ("copy", "<u8"), ("nbytes", "<u4"), ("part", "<u4")])
HIT = np.dtype([("node", "<u4"), ("part", "<u4"), ("first", "<u8"), ("last", "<u8"), ("count", "<u8")])
_ROOM = 1 << 16  # hits
_SMALLEST, _LARGEST, _WARPS = 1 << 10, 32 << 10, 8192


class ProbeTable:
    """The compared memory of one probed replay; its owner waits for the replay before `close`.

    Parameters
    ----------
    function
        ``probe`` of kernels.cu.
    parts
        Ranges of device memory.
    """

    def __init__(self, device: Device, function: int, parts: Sequence[ByteRange]) -> None:
        self._device = device
        # A memory pool of its own, which `close` returns to CUDA: it may hold gigabytes that a server needs.
        self._pool: Any = device.cp.cuda.MemoryPool()
        with device.cp.cuda.using_allocator(self._pool.malloc):
            self._fill(function, parts)

    def _fill(self, function: int, parts: Sequence[ByteRange]) -> None:
        device = self._device
        offsets, total = _offsets(parts)
        self._copies: Any = device.zeros(total)
        base = int(self._copies.data.ptr)
        size = min(_LARGEST, max(_SMALLEST, total // _WARPS // 16 * 16))
        rows = [
            row
            for part, (w, at) in enumerate(zip(parts, offsets, strict=True))
            for row in _pieces(w, base + at, part, size)
        ]
        self._pieces: Any = device.upload(np.array(rows, dtype=PIECE))
        self._hits: Any = device.zeros(16 + _ROOM * HIT.itemsize)
        self.blocks = -(-len(rows) // (THREADS // 32))
        wide, narrow = ctypes.c_uint64, ctypes.c_uint32
        self._launcher = Launcher(device.context, function, (wide, narrow, narrow, wide, narrow))
        self._launcher.set((int(self._pieces.data.ptr), len(rows), TAKE, int(self._hits.data.ptr), _ROOM))
        self.function = function

    @property
    def nbytes(self) -> int:
        """Device memory that the table uses."""
        return int(self._copies.nbytes + self._pieces.nbytes + self._hits.nbytes)

    def close(self) -> None:
        """Free the memory; no queued launch may still use it."""
        self._copies = self._pieces = self._hits = None
        with self._device.context.current():
            self._pool.free_all_blocks()

    def take(self, stream: int) -> None:
        """Copy every part at this point of a stream."""
        self._launcher.values[2].value = TAKE
        self._launcher.launch(self.blocks, THREADS, stream)

    def arguments(self, node: int) -> int:
        """Address of the kernel's arguments for the probe after a node; valid until the next call."""
        self._launcher.values[2].value = node
        return self._launcher.arguments

    def hits(self) -> tuple[npt.NDArray[np.void], int]:
        """The changes, as unordered rows of `HIT`, one for each piece; and the number dropped for lack of space.
        The caller has waited for the replay."""
        with self._device.context.current():
            loading = self._device.loading
            told = int(self._device.cp.asnumpy(self._hits[:16], stream=loading).view("<u4")[0])
            count = min(told, _ROOM)
            rows: Any = self._device.cp.asnumpy(self._hits[16 : 16 + count * HIT.itemsize], stream=loading)
        return rows.view(HIT), told - count


def _offsets(parts: Sequence[ByteRange]) -> tuple[list[int], int]:
    """Offsets of consecutive copies, aligned to 16 bytes like their sources; and the total bytes."""
    offsets, total = [], 0
    for where in parts:
        total = -(-total // 16) * 16 + where.start % 16
        offsets.append(total)
        total += where.nbytes
    return offsets, total


def _pieces(where: ByteRange, copy: int, part: int, size: int) -> list[tuple[int, int, int, int]]:
    """Pieces of a part whose inner boundaries are aligned to 16 bytes."""
    pieces, start = [], where.start
    while start < where.stop:
        stop = min(where.stop, start - start % 16 + size)
        pieces.append((start, copy + start - where.start, stop - start, part))
        start = stop
    return pieces
