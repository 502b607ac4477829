"""In-memory snapshot of a live debugger with the interface of a dump, for views and plots of live runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from shadowgraph.dumps.collecting import Collected, collect
from shadowgraph.dumps.reader import Dump
from shadowgraph.dumps.schema import PayloadRow
from shadowgraph.dumps.tables import manifest_of

if TYPE_CHECKING:
    from shadowgraph.dumps.live import LiveDebugger

_MOST = 64 << 20  # bytes of memory copied at most


class Snapshot(Dump):
    """A dump without a file. Owns its data: holds no reference to the debugger or its tensors."""

    def __init__(self, collected: Collected) -> None:
        self.path = Path("live")
        self.manifest = manifest_of(collected, [0] * len(collected.bytes))
        self._data = {f"payload.{index}": each.data for index, each in enumerate(collected.bytes)}

    def payload(self, row: PayloadRow) -> bytes:
        return bytes(self._data[row.tensor])

    def close(self) -> None:
        """Does nothing: no file is open."""


def snapshot_of(debugger: LiveDebugger, contents: bool) -> Snapshot:
    """The debugger's current facts. Runs no check; copies memory, as a dump does, only with `contents`."""
    collected = collect(debugger.monitor, debugger.facts, "a picture", _MOST, redact=not contents)
    return Snapshot(replace(collected, redacted=False))
