"""Which of a process's dumps to read: the newest one is of little use where the buffers in question are freed by then,
as at the program's exit. Used by verbs, pages and the status server; pure, no lock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from shadowgraph.common.errors import UsageError
from shadowgraph.dumps.naming import BufferNames
from shadowgraph.dumps.reader import Dump
from shadowgraph.model.findings import Finding

Identity = tuple[str, int, str]  # fingerprint, serial of the buffer, side


def fullest(dumps: Sequence[Dump], finding: int | None = None, buffer: str | None = None) -> Dump:
    """The newest of a process's dumps with the bytes of a finding, else with those of a buffer; without both, the one
    with the bytes of the most findings. The newest one where none has any.

    Parameters
    ----------
    dumps
        At least one, the newest first.
    buffer
        A name or an address.
    """
    return max(dumps, key=_worth(finding, buffer))  # the first of equals


def _worth(finding: int | None, buffer: str | None) -> Callable[[Dump], int]:
    if finding is not None:
        return lambda dump: _of_finding(dump, finding)
    return worth_of if buffer is None else lambda dump: _of_buffer(dump, buffer)


def _of_finding(dump: Dump, number: int) -> int:
    """2 with its bytes, 1 where it is only known, else 0."""
    facts = dump.manifest.facts
    serials = {each.buffer.serial for each in (*facts.damage, *facts.notes) if each.id == number}
    return 1 + bool(serials & held_buffers(dump)) if serials else 0


def _of_buffer(dump: Dump, wanted: str) -> int:
    try:
        serials = {each.serial for each in BufferNames(dump).buffers(wanted)}
    except UsageError:  # the end of several names
        return 1
    return 1 + bool(serials & held_buffers(dump)) if serials else 0


def worth_of(dump: Dump) -> int:
    """The number of findings whose bytes it has."""
    held = held_buffers(dump)
    return sum(each.buffer.serial in held for each in dump.manifest.facts.damage)


def knows_finding(dump: Dump, number: int) -> bool:
    """Whether it has a finding or a note with an id."""
    facts = dump.manifest.facts
    return any(each.id == number for each in (*facts.damage, *facts.notes))


def held_buffers(dump: Dump) -> set[int]:
    """The buffers of which it has bytes."""
    return {row.buffer for row in dump.manifest.payloads if row.nbytes}


def later_findings(dump: Dump, findings: Iterable[Finding]) -> list[Finding]:
    """The findings of the dump's process that it does not have: those that came after it was made.

    Parameters
    ----------
    findings
        Those of the run, which are numbered anew where it has several processes.
    """
    facts = dump.manifest.facts
    known = {identity(each) for each in (*facts.damage, *facts.notes, *facts.hidden)}
    return [each for each in findings if each.pid == dump.manifest.pid and identity(each) not in known]


def identity(finding: Finding) -> Identity:
    """What a finding of a process has in common in a dump and in the run's report, which numbers findings anew."""
    return finding.fingerprint, finding.buffer.serial, str(finding.bytes.side if finding.bytes else "")


def later_said(dump: Dump, later: Sequence[Finding]) -> str:
    """What the dump does not have, in words; empty where it has all."""
    if not later:
        return ""
    numbers = ", ".join(f"#{each.id}" for each in later[:8]) + (f" and {len(later) - 8:,} more" if later[8:] else "")
    first = dump.manifest.facts.findings[:1] if dump.manifest.reason == "finding" else ()
    made = f"at finding #{first[0].id}" if first else f"at reason {dump.manifest.reason}"
    is_are = "is" if len(later) == 1 else "are"
    return f"{dump.path.name} was made {made}; {numbers} came later and {is_are} not in it"
