"""Guards as the device reads them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from shadowgraph.engines.device import Device
from shadowgraph.model.guards import Guard, Side

GUARD = np.dtype([("near", "<u8"), ("whole", "<u8"), ("nbytes", "<u8"), ("near_nbytes", "<u4"), ("flags", "<u4")])
FAR = np.dtype([("start", "<u8"), ("nbytes", "<u8"), ("guard", "<u4"), ("unused", "<u4")])
FAR_BYTES = 8192  # as in kernels.cu


@dataclass(frozen=True, slots=True, eq=False)
class GuardTable:
    """One tuple of guards, uploaded.

    Attributes
    ----------
    guards
        Kept, so that the table can be found again by the tuple's identity.
    memory
        Device memory that holds all of the table.
    rows, hits, far
        Addresses in it: the guards, a word each for what a check found, and the parts beyond the near ones.
    far_count, far_pieces
        Guards with a far part, and pieces of `FAR_BYTES` of the longest.
    """

    guards: Sequence[Guard]
    memory: Any
    rows: int
    hits: int
    far: int
    far_count: int
    far_pieces: int


def table_of(device: Device, guards: Sequence[Guard]) -> GuardTable:
    """The table of a tuple of guards; the host waits for one upload."""
    rows = np.empty(len(guards), dtype=GUARD)
    far: list[tuple[int, int, int, int]] = []
    for index, guard in enumerate(guards):
        near, whole, after = guard.near, guard.whole, guard.side is not Side.BEFORE
        rows[index] = (near.start, whole.start, whole.nbytes, near.nbytes, after | (not guard.rearm) << 1)
        if whole.nbytes > near.nbytes:
            far.append((near.stop if after else whole.start, whole.nbytes - near.nbytes, index, 0))
    longest = max((nbytes for _, nbytes, _, _ in far), default=0)
    beyond = np.array(far, dtype=FAR)
    memory = device.upload(np.frombuffer(rows.tobytes() + beyond.tobytes() + bytes(4 * len(guards)), dtype=np.uint8))
    start = int(memory.data.ptr)
    behind = start + rows.nbytes
    return GuardTable(guards, memory, start, behind + beyond.nbytes, behind, len(far), -(-longest // FAR_BYTES))
