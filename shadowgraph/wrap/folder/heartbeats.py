"""A process's pulse: a few numbers in a small file of its own, replaced whole every few seconds while it replays."""

from __future__ import annotations

import contextlib
from pathlib import Path

import msgspec

from shadowgraph.common.atomic_files import atomic_replace
from shadowgraph.model.coverage import Coverage

MOST_COUNTS = 256
_LARGEST = 64 << 10


class Heartbeat(msgspec.Struct, frozen=True):
    """How a process is doing. Sums are over the debuggers that it has had.

    Attributes
    ----------
    time
        When this was so, in seconds since 1970.
    replays, checked
        Replays that began, and those that were checked.
    every
        One replay of a graph in so many is checked now; 0 where checking has stopped for good.
    overhead
        What checking took of the wall time since the pulse before, in percent; None where it is not measured.
    faults
        Faults of our own.
    coverage
        Of the debugger that watches now.
    occurrences
        Of the latest findings: debugger, id, how often it was seen.
    pauses, off, off_since
        How often checking was switched off from outside, for how many seconds in all, the present pause left out, and
        since when it is off now.
    """

    time: float = 0.0
    replays: int = 0
    checked: int = 0
    every: int = 1
    overhead: float | None = None
    faults: int = 0
    coverage: Coverage | None = None
    occurrences: tuple[tuple[int, int, int], ...] = ()
    pauses: int = 0
    off: float = 0.0
    off_since: float | None = None

    @property
    def seconds_off(self) -> float:
        """For how long checking was off, up to the time of the pulse."""
        return self.off + (max(0.0, self.time - self.off_since) if self.off_since is not None else 0.0)


def heartbeat_file(findings: Path) -> Path:
    """The pulse file that belongs to a process's file of findings."""
    return findings.with_name(findings.stem.replace("findings", "pulse", 1) + ".json")


def write_pulse(path: Path, pulse: Heartbeat) -> None:
    """Replace a pulse file. What cannot be written is not: the next one comes."""
    with contextlib.suppress(OSError):
        atomic_replace(path, msgspec.json.encode(pulse), durable=False)


def read_heartbeat(path: Path) -> Heartbeat | None:
    """The last pulse of a process; None where there is none that can be read."""
    try:
        with open(path, "rb") as file:
            return msgspec.json.decode(file.read(_LARGEST + 1), type=Heartbeat)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
