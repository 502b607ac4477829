"""Guard tables in device memory, in the layout that the check kernel reads. The caller holds the engine's lock."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from shadowgraph.engines.device import Device
from shadowgraph.model.guards import Guard, Side

GUARD = np.dtype([("near", "<u8"), ("near_nbytes", "<u4"), ("flags", "<u4"), ("whole", "<u8"), ("nbytes", "<u8")])
_ROW = struct.Struct("<QIIQQ")  # as `GUARD`
FAR = np.dtype([("start", "<u8"), ("nbytes", "<u8"), ("guard", "<u4"), ("unused", "<u4")])
FAR_BYTES = 8192  # as in kernels.cu


@dataclass(frozen=True, slots=True, eq=False)
class GuardTable:
    """One tuple of guards in device memory.

    Attributes
    ----------
    guards
        Kept alive, so that the tuple's identity finds the table.
    memory
        Device memory of the whole table.
    rows, hits, far
        Addresses in it: the guards, one hit word for each guard, and the far parts.
    far_count, far_pieces
        Number of guards with a far part, and of `FAR_BYTES` pieces in the longest one.
    """

    guards: Sequence[Guard]
    memory: Any
    rows: int
    hits: int
    far: int
    far_count: int
    far_pieces: int


def row_of(guard: Guard) -> tuple[int, int, int, int, int]:
    """A guard as a row of `GUARD`."""
    near, whole, after = guard.near, guard.whole, guard.side is not Side.BEFORE
    return near.start, near.nbytes, after | (not guard.rearm) << 1, whole.start, whole.nbytes


def _packed(guard: Guard) -> bytes:
    """The same as bytes, made once: a table is made anew for each change of one guard."""
    row = _ROW.pack(*row_of(guard))
    object.__setattr__(guard, "row", row)
    return row


def table_of(device: Device, guards: Sequence[Guard]) -> GuardTable:
    """Upload the table of a tuple of guards; the host waits for the upload."""
    rows = np.frombuffer(b"".join([guard.row or _packed(guard) for guard in guards]), dtype=GUARD)
    (longer,) = np.nonzero(rows["nbytes"] > rows["near_nbytes"])
    far, after = rows[longer], (rows["flags"][longer] & 1).astype(bool)
    beyond = np.zeros(len(far), dtype=FAR)
    beyond["start"] = np.where(after, far["near"] + far["near_nbytes"], far["whole"])
    beyond["nbytes"], beyond["guard"] = far["nbytes"] - far["near_nbytes"], longer
    longest = int(beyond["nbytes"].max(initial=0))
    memory = device.upload(np.frombuffer(rows.tobytes() + beyond.tobytes() + bytes(4 * len(guards)), dtype=np.uint8))
    start = int(memory.data.ptr)
    behind = start + rows.nbytes
    return GuardTable(guards, memory, start, behind + beyond.nbytes, behind, len(beyond), -(-longest // FAR_BYTES))
