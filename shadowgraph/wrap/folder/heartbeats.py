"""Heartbeat of a process: a small file of numbers, replaced atomically every few seconds during replays.

Written by `HeartbeatWriter`, in a replaying thread; read by the supervising process and the report.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

import msgspec

from shadowgraph.common.atomic_files import atomic_replace
from shadowgraph.model.coverage import Coverage

MOST_COUNTS = 256
_LARGEST = 64 << 10


class Heartbeat(msgspec.Struct, frozen=True):
    """State of a process. Sums are over all its debuggers.

    Attributes
    ----------
    time
        Time of the heartbeat, in seconds since 1970.
    replays, checked, observed
        Numbers of replays that began, of those whose guards were checked, and of those that were observed in full.
    every
        One replay of a graph in this many is checked now; 0 once checking has stopped for good.
    overhead
        Share of checking in the wall time since the previous heartbeat, in percent; None where it is not measured.
    faults
        Number of internal errors.
    coverage
        Coverage of the debugger that watches now.
    occurrences
        Of the latest findings: debugger number, finding id, number of sightings.
    pauses, off, off_since
        How often checking was paused from outside, for how many seconds in all without the current pause, and the start
        of the current pause.
    history
        Times and numbers of replays of earlier heartbeats, over the whole run; the longer it is, the farther apart.
    """

    time: float = 0.0
    replays: int = 0
    checked: int = 0
    observed: int = 0
    every: int = 1
    overhead: float | None = None
    faults: int = 0
    coverage: Coverage | None = None
    occurrences: tuple[tuple[int, int, int], ...] = ()
    pauses: int = 0
    off: float = 0.0
    off_since: float | None = None
    history: tuple[tuple[float, int], ...] = ()

    @property
    def seconds_off(self) -> float:
        """Seconds without checking, up to the time of the heartbeat."""
        return self.off + (max(0.0, self.time - self.off_since) if self.off_since is not None else 0.0)


def heartbeat_file(findings: Path) -> Path:
    """The heartbeat file that belongs to a process's findings log."""
    return findings.with_name(findings.stem.replace("findings", "pulse", 1) + ".json")


def write_heartbeat(path: Path, pulse: Heartbeat) -> None:
    """Replace a heartbeat file. Errors are ignored: another heartbeat follows."""
    with contextlib.suppress(OSError):
        atomic_replace(path, msgspec.json.encode(pulse), durable=False)


def read_heartbeat(path: Path) -> Heartbeat | None:
    """The last heartbeat of a process; None without a readable one."""
    try:
        with open(path, "rb") as file:
            return msgspec.json.decode(file.read(_LARGEST + 1), type=Heartbeat)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
