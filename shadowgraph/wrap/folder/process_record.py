"""Record of one process in a run folder, as data."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from shadowgraph.common.words import plural
from shadowgraph.model.failures import Failure
from shadowgraph.model.findings import Finding, Severity
from shadowgraph.model.run_facts import RunFacts
from shadowgraph.wrap.folder.findings_log import RAISED
from shadowgraph.wrap.folder.heartbeats import Heartbeat
from shadowgraph.wrap.folder.last_check import LastCheck


@dataclass(frozen=True, slots=True)
class Counts:
    """Numbers of findings, of their consequences and of notes; parts of overruns are none of these."""

    findings: int = 0
    consequences: int = 0
    notes: int = 0

    def __bool__(self) -> bool:
        return bool(self.findings or self.consequences or self.notes)

    def said(self) -> str:
        """``1 finding, 2 notes``; empty without any."""
        rows = ((self.findings, "finding"), (self.consequences, "consequence"), (self.notes, "note"))
        return ", ".join(plural(number, noun) for number, noun in rows if number)


@dataclass(slots=True)
class ProcessRecord:
    """The contents of one process's files in a run folder.

    Attributes
    ----------
    born
        ``start``, ``multiprocessing``, ``fork``, ``wrap`` (another wrap), or ``unknown``.
    backend
        ``host``, ``cuda``, or None while no debugger ran.
    title
        Name of a multiprocessing child, and the function that it was started to run.
    ended
        ``exit``, ``running``, ``killed`` (by a signal), ``os._exit``, ``gone`` (one of the last two, unknown which),
        ``replaced`` (by `exec`), ``unknown``.
    findings
        The last known state of each finding and note, in order of arrival.
    summaries
        The latest facts of each of its debuggers, without findings; from an interim record if the debugger did not end.
    pulse
        Its last heartbeat.
    failures
        Exceptions of its program, recorded with their context.
    events
        Its other messages, one line each.
    lost
        Number of records that it could not write.
    damaged
        Number of lines that could not be read.
    last_check
        What its check log and launch log say, of a process that did not end by itself.
    cut
        Whether its last line is incomplete, or the size limit of the file was reached.
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
    last_check: LastCheck | None = None

    @property
    def raised(self) -> str:
        """The type of the uncaught exception that ended it; empty without one."""
        said = next((event for event in self.events if event.startswith(RAISED)), "")
        return said.removeprefix(RAISED).partition(":")[0]

    @property
    def found(self) -> Counts:
        """How much of what it found is told as what, as in the last lines of a report; parts of overruns and what is
        suppressed are not."""
        told = [finding for finding in self.findings if finding.continues is None and not finding.suppressed_by]
        errors = [finding for finding in told if finding.severity is Severity.ERROR]
        follow = sum(finding.is_consequence for finding in errors)
        return Counts(len(errors) - follow, follow, len(told) - len(errors))
