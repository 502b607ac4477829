"""What a dump of a live debugger would hold, without a file: live runs are looked at as dumps are."""

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

_MOST = 64 << 20  # bytes of memory that are copied


class Snapshot(Dump):
    """A dump that was never written. Owned data: nothing of the debugger or its tensors is kept."""

    def __init__(self, collected: Collected) -> None:
        self.path = Path("live")
        self.manifest = manifest_of(collected, [0] * len(collected.bytes))
        self._data = {f"payload.{index}": each.data for index, each in enumerate(collected.bytes)}

    def payload(self, row: PayloadRow) -> bytes:
        return bytes(self._data[row.tensor])

    def close(self) -> None:
        """Nothing is open."""


def snapshot_of(debugger: LiveDebugger, contents: bool) -> Snapshot:
    """What a debugger knows now. Checks nothing; reads memory, as a dump does, only with `contents`."""
    collected = collect(debugger.monitor, debugger.facts, "a picture", _MOST, redact=not contents)
    return Snapshot(replace(collected, redacted=False))
