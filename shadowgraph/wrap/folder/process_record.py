"""What one process left behind in a run folder, as data."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from shadowgraph.model.failures import Failure
from shadowgraph.model.findings import Finding
from shadowgraph.model.run_facts import RunFacts
from shadowgraph.wrap.folder.heartbeats import Heartbeat


@dataclass(slots=True)
class ProcessRecord:
    """What one process left behind.

    Attributes
    ----------
    born
        ``start``, ``multiprocessing``, ``fork``, ``wrap`` (another wrap), or ``unknown``.
    backend
        ``host``, ``cuda``, or None while no debugger ran.
    title
        Of a child of multiprocessing its name and what it was started to run.
    ended
        ``exit``, ``running``, ``killed`` (by a signal), ``os._exit``, ``gone`` (one of these two, and it is not known
        which), ``replaced`` (by `exec`), ``unknown``.
    findings
        The last known state of each finding and note, in order of arrival.
    summaries
        The latest facts of each of its debuggers, findings aside; of one that did not end, those of an interim record.
    pulse
        The last numbers that it told while it replayed.
    failures
        Exceptions of its program that were joined with what was known.
    events
        What else it said, one line each.
    lost
        Records that it could not write.
    damaged
        Lines that could not be read.
    cut
        Whether its last line is not whole, or the file's limit was met.
    """

    path: Path
    pid: int = 0
    ppid: int = 0
    argv: tuple[str, ...] = ()
    born: str = "unknown"
    rank: int | None = None
    started: float = 0.0
    backend: str | None = None
    title: str = ""
    ended: str = "unknown"
    findings: list[Finding] = field(default_factory=list)
    summaries: list[RunFacts] = field(default_factory=list)
    pulse: Heartbeat | None = None
    failures: list[Failure] = field(default_factory=list)
    events: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    lost: int = 0
    damaged: int = 0
    cut: bool = False

    @property
    def found(self) -> int:
        """How many findings and notes; those of where an overrun went on belong to its own."""
        return sum(finding.continues is None for finding in self.findings)
