"""Launches of the check kernel: guard tables, prepared arguments, and the rotation of the far parts.

One submission of a check; what it finds arrives through `EvidenceQueue`. The caller holds the engine's lock.
"""

from __future__ import annotations

from collections.abc import Sequence

from shadowgraph.engines.canary_stream import THREADS
from shadowgraph.engines.cupy_shadow import CupyShadow
from shadowgraph.engines.device import Device
from shadowgraph.engines.guard_table import GuardTable, table_of
from shadowgraph.engines.step import Prepared
from shadowgraph.model.guards import Guard

TABLES = 8  # cached guard tables
GUARDS_ONLY, COPY, COMPARE = 0, 1, 2  # modes, as in kernels.cu


class CheckLauncher:
    """Prepares and launches ``check_step``; a replay reuses the arguments of the one before.

    Parameters
    ----------
    function
        ``check_step`` of kernels.cu.
    fixed
        Addresses that every launch is given: `CheckMemory.addresses`.
    """

    def __init__(self, device: Device, function: int, fixed: tuple[int, ...]) -> None:
        self._device = device
        self._prepared = [Prepared(device, function, fixed, mode) for mode in (GUARDS_ONLY, COPY, COMPARE)]
        self._far_turn = 0
        self._tables: dict[int, GuardTable] = {}
        self._table: GuardTable | None = None  # of the last guards
        self._table_guards: Sequence[Guard] = ()

    def prepared(self, mode: int, guards: Sequence[Guard], shadow: CupyShadow | None) -> Prepared:
        """The arguments for these guards and this shadow; with a `grid` of 0 there is nothing to read."""
        table = self._table if guards is self._table_guards else self._table_of(guards)
        prepared = self._prepared[mode]
        if not prepared.fits(table, shadow):
            prepared.set(table, shadow)
        return prepared

    def launch(self, prepared: Prepared, serial: int, stream: int, in_full: bool) -> None:
        """Launch a check of all near parts, and of the far pieces next in rotation; with `in_full` of all guards in
        full. The context is current, and the stream does not capture."""
        if in_full and prepared.table is not None and prepared.table.far_count:
            self._launch_in_full(prepared.table, serial, stream)
            return
        prepared.check.value = serial
        if prepared.far_blocks:
            prepared.far_turn.value = self._far_turn
            self._far_turn += prepared.far_blocks
        prepared.launcher.launch_here(prepared.grid, THREADS, stream)

    def _launch_in_full(self, table: GuardTable, serial: int, stream: int) -> None:
        prepared = self._prepared[GUARDS_ONLY]
        prepared.set(table, None)
        blocks = table.far_count * table.far_pieces
        prepared.step.far_blocks, prepared.far_turn.value, prepared.far_all.value = blocks, 0, 1
        prepared.check.value = serial
        try:
            prepared.launcher.launch_here(prepared.step.guard_blocks + blocks, THREADS, stream)
        finally:
            prepared.grid, prepared.far_all.value = -1, 0

    def _table_of(self, guards: Sequence[Guard]) -> GuardTable | None:
        known = self._tables.get(id(guards))
        if guards and (known is None or known.guards is not guards):
            while len(self._tables) >= TABLES:
                self._tables.pop(next(iter(self._tables)))
            known = self._tables[id(guards)] = table_of(self._device, guards)
        self._table, self._table_guards = known if guards else None, guards
        return self._table
