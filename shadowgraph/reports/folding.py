"""What several processes of a run found alike is told once: the ranks of a server run the same code.

Alike are findings with the same fingerprint, of buffers with the same name and form; addresses, replays and the bytes
themselves may differ.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from shadowgraph.findings import Finding, Severity
from shadowgraph.reports.document import RunFacts
from shadowgraph.reports.finding_rows import FactRow
from shadowgraph.reports.verdicts import plural

_PROCESSES = 8  # that are told one by one
_Key = tuple[object, ...]


class Told(NamedTuple):
    """A finding, and those of other processes that are like it."""

    finding: Finding
    elsewhere: tuple[Finding, ...] = ()


def folded(facts: RunFacts) -> list[Told]:
    """Findings and notes in the order in which a report tells them, those alike at the place of the first."""
    groups: dict[tuple[_Key, int], list[Finding]] = {}
    times: dict[tuple[_Key, int], int] = {}  # of a key, by process: what one process found twice are two things
    for finding in facts.told:
        key = _key(finding)
        nth = times[key, finding.pid] = times.get((key, finding.pid), 0) + 1
        groups.setdefault((key, nth), []).append(finding)
    return [Told(first, tuple(others)) for first, *others in groups.values()]


def errors(facts: RunFacts) -> list[Told]:
    """The same without notes."""
    return [told for told in folded(facts) if told.finding.severity is Severity.ERROR]


def in_processes(facts: RunFacts) -> bool:
    """Whether it must be said which process found what."""
    return len({finding.pid for finding in (*facts.findings, *facts.notes)}) > 1


def process_rows(told: Told) -> Iterator[FactRow]:
    """Which process found it, and which others found the same."""
    yield FactRow("in process", _process(told.finding))
    for other in told.elsewhere[:_PROCESSES]:
        when = f" in replay {other.replay} of {other.graph}" if other.graph and other.replay is not None else ""
        times = "" if other.occurrences == 1 else f", seen {other.occurrences:,} times"
        yield FactRow("", f"{_process(other)}: the same{when}{times}: finding #{other.id}")
    more = len(told.elsewhere) - _PROCESSES
    if more > 0:
        yield FactRow("", f"... and {more:,} more {'process' if more == 1 else 'processes'}")


def found(facts: RunFacts) -> str:
    """How many findings there are, for the last line of a report."""
    if not facts.findings:
        return "no findings"
    kinds, all_of_them = len(errors(facts)), len(facts.findings)
    return plural(kinds, "finding") + (f" ({all_of_them:,} with each process's own)" if all_of_them > kinds else "")


def _process(finding: Finding) -> str:
    rank = f", rank {finding.rank}" if finding.rank is not None else ""
    return f"{finding.pid}{rank}, {finding.device}"


def _key(finding: Finding) -> _Key:
    origin = finding.continues.fingerprint if finding.continues is not None else None
    buffer = finding.buffer
    return finding.code, finding.fingerprint, finding.severity, buffer.name, buffer.dtype, buffer.shape, origin
