"""Folding of equal findings of several processes into one: the ranks of a server run the same code.

Findings are equal if they have the same fingerprint, buffer name and form, confidence, culprit status and reached
buffers; addresses, replays and the bytes themselves may differ.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from shadowgraph.checks.kinds import kind_of
from shadowgraph.common.words import plural
from shadowgraph.model.findings import Finding, Severity
from shadowgraph.model.run_facts import RunFacts
from shadowgraph.render.text.finding_rows import FactRow

_PROCESSES = 8  # processes listed one by one
_Key = tuple[object, ...]


@dataclass(slots=True, eq=False)
class Told:
    """A finding, and the equal findings of other processes."""

    finding: Finding
    elsewhere: list[Finding] = field(default_factory=list)


class _Group:
    """Findings with equal ones folded into the first; `told` is in that order."""

    def __init__(self) -> None:
        self.told: list[Told] = []
        self._alike: dict[tuple[_Key, int], Told] = {}
        self._times: dict[tuple[_Key, int], int] = {}  # by process: two equal findings of one process stay apart

    def add(self, finding: Finding) -> Told:
        key = _key(finding)
        nth = self._times[key, finding.pid] = self._times.get((key, finding.pid), 0) + 1
        told = self._alike.get((key, nth))
        if told is None:
            told = self._alike[key, nth] = Told(finding)
            self.told.append(told)
        else:
            told.elsewhere.append(finding)
        return told


def folded(facts: RunFacts) -> list[Told]:
    """Findings and notes in the order of a report: each finding, in any process, before the notes that continue its
    overrun.
    """
    heads = _Group()
    going_on: dict[int, _Group] = {}  # by the id() of the folded finding
    latest: Told | None = None
    for finding in facts.told:
        if latest is not None and _goes_on(finding, [latest.finding, *latest.elsewhere][-1]):
            going_on.setdefault(id(latest), _Group()).add(finding)
        else:
            told = heads.add(finding)
            latest = told if finding.continues is None else None
    none = _Group()
    return [each for head in heads.told for each in (head, *going_on.get(id(head), none).told)]


def _goes_on(note: Finding, finding: Finding) -> bool:
    """Whether a note continues the overrun of a finding in the same process."""
    origin = note.continues
    same = origin is not None and (origin.fingerprint, origin.serial) == (finding.fingerprint, finding.buffer.serial)
    return same and note.pid == finding.pid


def of(severity: Severity, facts: RunFacts) -> list[Told]:
    """The folded findings of a severity."""
    return [told for told in folded(facts) if told.finding.severity is severity]


def in_processes(facts: RunFacts) -> bool:
    """Whether a report must name the process of each finding."""
    return len({finding.pid for finding in (*facts.findings, *facts.notes)}) > 1


def process_rows(told: Told) -> Iterator[FactRow]:
    """The process of a finding, and the other processes with an equal finding."""
    yield FactRow("in process", _process(told.finding))
    for other in told.elsewhere[:_PROCESSES]:
        when = f" in replay {other.replay} of {other.graph}" if other.graph and other.replay is not None else ""
        times = "" if other.occurrences == 1 else f", seen {other.occurrences:,} times"
        yield FactRow("", f"{_process(other)}: the same{when}{_bytes(other, told.finding)}{times}: #{other.id}")
    more = len(told.elsewhere) - _PROCESSES
    if more > 0:
        yield FactRow("", f"... and {more:,} more {'process' if more == 1 else 'processes'}")


def found(facts: RunFacts) -> str:
    """The counts of findings and notes, for the last line of a report."""
    findings = _counted(len(of(Severity.ERROR, facts)), len(facts.findings), "finding")
    notes = _counted(len(of(Severity.NOTE, facts)), len(facts.notes), "note")
    return f"{findings or 'no findings'}{', ' if notes else ''}{notes}"


def _counted(kinds: int, all_of_them: int, noun: str) -> str:
    more = f" ({all_of_them:,} with each process's own)" if all_of_them > kinds else ""
    return f"{plural(kinds, noun)}{more}" if kinds else ""


def _bytes(other: Finding, told: Finding) -> str:
    """The changed bytes, where they differ from those of the shown finding."""
    if other.bytes is None or (
        told.bytes and (told.bytes.first, told.bytes.last) == (other.bytes.first, other.bytes.last)
    ):
        return ""
    return f", bytes {other.bytes.first:,} to {other.bytes.last:,}"


def _process(finding: Finding) -> str:
    rank = f", rank {finding.rank}" if finding.rank is not None else ""
    return f"{finding.pid}{rank}, {finding.device}"


def _key(finding: Finding) -> _Key:
    buffer, origin = finding.buffer, finding.continues
    return (
        (finding.code, finding.fingerprint, finding.severity, finding.confidence, finding.culprit.status),
        (buffer.name, buffer.dtype, buffer.shape, origin.fingerprint if origin is not None else None),
        kind_of(finding.code).alike(finding),
    )
