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
    """Findings and notes in the order of a report."""
    group = _Group()
    for finding in facts.told:
        group.add(finding)
    return group.told


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
    """The counts of findings, their consequences and notes, for the last line of a report."""
    errors = of(Severity.ERROR, facts)
    own = [told for told in errors if not told.finding.is_consequence]
    every = sum(not finding.is_consequence for finding in facts.findings)
    findings = _counted(len(own), every, "finding")
    more = _counted(len(errors) - len(own), len(facts.findings) - every, "consequence")
    notes = _counted(len(of(Severity.NOTE, facts)), len(facts.notes), "note")
    return ", ".join(filter(None, (findings or "no findings", more, notes)))


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
    buffer, cause = finding.buffer, finding.caused_by
    return (
        (finding.code, finding.fingerprint, finding.severity, finding.confidence, finding.culprit.status),
        (buffer.name, buffer.dtype, buffer.shape, (cause.fingerprint, cause.sure) if cause is not None else None),
        kind_of(finding.code).alike(finding),
    )
