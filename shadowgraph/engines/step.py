"""Prepared arguments of a check launch, reused while guards and shadow stay the same. The caller holds the engine's
lock."""

from __future__ import annotations

import ctypes

from shadowgraph.engines.canary_stream import THREADS
from shadowgraph.engines.cupy_shadow import CupyShadow
from shadowgraph.engines.device import Device
from shadowgraph.engines.guard_table import GuardTable
from shadowgraph.engines.launcher import Launcher

LANES = 8  # of a warp check one guard's near part
FAR_BLOCKS = 16  # pieces of far parts that each check reads, in rotation


class Step(ctypes.Structure):
    """``struct Step`` of kernels.cu."""

    _fields_ = (
        *((name, ctypes.c_uint64) for name in ("guards", "hits", "far", "chunks", "parts")),
        *((n, ctypes.c_uint32) for n in ("n_guards", "guard_blocks", "n_far", "far_blocks", "n_parts", "mode")),
    )


class Prepared:
    """A launcher with arguments for one guard table, shadow and mode, which replays reuse."""

    def __init__(self, device: Device, function: int, fixed: tuple[int, ...], mode: int) -> None:
        wide, narrow = ctypes.c_uint64, ctypes.c_uint32
        self.launcher = Launcher(device.context, function, (Step, *[wide] * len(fixed), wide, narrow, narrow))
        values = self.launcher.values
        for value, address in zip(values[1:-3], fixed, strict=True):
            value.value = address
        self.step, (self.far_turn, self.far_all, self.check) = values[0], values[-3:]
        self.mode = mode
        self.table: GuardTable | None = None
        self.shadow: CupyShadow | None = None
        self.far_blocks = 0
        self.grid = -1  # nothing is prepared

    def fits(self, table: GuardTable | None, shadow: CupyShadow | None) -> bool:
        """Whether the arguments are already set for this table and shadow."""
        return self.table is table and self.shadow is shadow and self.grid >= 0

    def set(self, table: GuardTable | None, shadow: CupyShadow | None) -> None:
        """Set the arguments for this table and shadow."""
        self.table, self.shadow, step = table, shadow, self.step
        guards = len(table.guards) if table is not None else 0
        step.mode, step.n_guards, step.guard_blocks = self.mode, guards, -(-guards * LANES // THREADS)
        step.n_far, step.far_blocks = (
            (table.far_count, min(FAR_BLOCKS, table.far_count)) if table is not None else (0, 0)
        )
        if table is not None:
            step.guards, step.hits, step.far = table.rows, table.hits, table.far
        if shadow is not None:
            step.chunks, step.parts = int(shadow.chunks.data.ptr), int(shadow.states.data.ptr)
        step.n_parts = len(shadow.parts) if shadow is not None else 0
        self.far_blocks = step.far_blocks
        self.grid = step.guard_blocks + step.far_blocks + (shadow.chunk_count if shadow is not None else 0)
