"""Merges the records of many processes into the facts of one report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import msgspec

from shadowgraph.common.words import plural
from shadowgraph.model.coverage import Coverage, LargeGuards, added_classes
from shadowgraph.model.fences import HIT, LAID
from shadowgraph.model.findings import Finding, Severity
from shadowgraph.model.high_water import HighWaterMark, fullest_first
from shadowgraph.model.run_facts import Replays, RunFacts
from shadowgraph.model.suppressions import added_counts
from shadowgraph.wrap.folder.fault_stack import SEGFAULT
from shadowgraph.wrap.folder.process_record import ProcessRecord

# Fields of `RunFacts` that are summed over all debuggers: numbers, numbers by reason, and tuples.
_NUMBERS = "suppressed", "guards_shrunk", "guards_dropped", "names_unread", "names_cut_short"
_COUNTS = "left_alone", "stepped_aside"
_ROWS = "watches", "last_values", "last_launches", "fences"
_MARKS = 4096  # high-water marks of a run


def merge(processes: Sequence[ProcessRecord], signal: str = "") -> RunFacts:
    """Findings of all processes in order of time, with new ids; all other facts summed.

    Parameters
    ----------
    signal
        The signal that ended the process of the command, if one did.
    """
    found = _findings(processes)
    summaries = [facts for process in processes for facts in process.summaries]
    return RunFacts(
        findings=_of(found, Severity.ERROR),
        notes=_of(found, Severity.NOTE),
        parts=tuple(each for each in found if each.continues is not None and not each.suppressed_by),
        hidden=tuple(finding for finding in found if finding.suppressed_by),
        suppressions=added_counts(facts.suppressions for facts in summaries),
        ended=_have_ended(processes),
        endings=tuple(_endings(processes, signal)),
        coverage=coverage_of(facts.coverage for facts in summaries),
        graphs=_graphs(processes),
        faults=_faults(processes),
        lost=next((facts.lost for facts in summaries if facts.lost is not None), None),
        limits=_limits(processes),
        replays=_replays(processes),
        high_water=_high_water(processes),
        failures=tuple(failure for process in processes for failure in process.failures),
        **_summed(summaries),
    )


def _findings(processes: Sequence[ProcessRecord]) -> list[Finding]:
    """Findings, notes and parts of overruns with new ids, and the references between them with these."""
    found = [
        (place, finding)
        for place, process in enumerate(processes)
        for finding in (*process.findings, *(hidden for facts in process.summaries for hidden in facts.hidden))
    ]
    found.sort(key=lambda each: (bool(each[1].suppressed_by), each[1].continues is not None, each[1].time))
    numbers = {(place, f.id, f.buffer.serial): number for number, (place, f) in enumerate(found, 1)}
    return [_renumbered(finding, number, place, numbers) for number, (place, finding) in enumerate(found, 1)]


def _renumbered(finding: Finding, number: int, process: int, numbers: Mapping[tuple[int, int, int], int]) -> Finding:
    """A finding with its new id. Two debuggers of one process may both have an id, but never a buffer's serial."""
    replace, cause, origin = msgspec.structs.replace, finding.caused_by, finding.continues
    if cause is not None:
        cause = replace(cause, finding=numbers.get((process, cause.finding, cause.serial), 0))
    if origin is not None:
        origin = replace(origin, finding=numbers.get((process, origin.finding, origin.serial), 0))
    return replace(finding, id=number, caused_by=cause, continues=origin)


def _summed(summaries: Sequence[RunFacts]) -> dict[str, Any]:
    """The facts that are sums of the same facts of all debuggers."""
    numbers = {name: sum(getattr(facts, name) for facts in summaries) for name in _NUMBERS}
    counts = {name: dict(sum((Counter(getattr(facts, name)) for facts in summaries), Counter())) for name in _COUNTS}
    rows = {name: tuple(chain.from_iterable(getattr(facts, name) for facts in summaries)) for name in _ROWS}
    return {**numbers, **counts, **rows}


def _of(found: list[Finding], severity: Severity) -> tuple[Finding, ...]:
    return tuple(f for f in found if f.severity is severity and f.continues is None and not f.suppressed_by)


def _endings(processes: Sequence[ProcessRecord], signal: str) -> Iterator[str]:
    """Ends of processes other than a normal exit, each in words."""
    for place, process in enumerate(processes):
        who = f"process {process.pid}" if place else "the program"
        if met_fence(process) is not None:
            yield f"{who} died at a fence"
        elif process.raised:
            yield f"{who} ended by {process.raised}"
        elif process.ended == "killed":
            yield f"{who} was ended by {signal or 'a signal'}"


def met_fence(process: ProcessRecord) -> str | None:
    """The access of a process that ran into a fence, in a line; of one whose address is not known, where it stood."""
    hit = next((event for event in process.events if event.startswith(HIT)), None)
    stood = next((event for event in process.events if event.startswith(SEGFAULT)), None)
    fences = {fence.sentence() for facts in process.summaries for fence in facts.fences}
    fences |= {event.removeprefix(LAID) for event in process.events if event.startswith(LAID) and not fences}
    if hit is not None or stood is None or not fences:
        return hit
    return f"{HIT}{stood}; fences stand behind {'; '.join(sorted(fences))}"


def _have_ended(processes: Sequence[ProcessRecord]) -> bool:
    """Whether every watched process was watched to its end."""
    watched = [process for process in processes if process.backend is not None]
    return bool(watched) and all(
        process.ended == "exit" and process.summaries and all(facts.ended for facts in process.summaries)
        for process in watched
    )


def coverage_of(parts: Iterable[Coverage]) -> Coverage:
    """The coverage of several debuggers, combined."""
    known = list(parts)
    unguarded = dict.fromkeys(form for part in known for form in part.unguarded)
    return Coverage(
        written=sum(part.written for part in known),
        exact=sum(part.exact for part in known),
        unguarded=tuple(unguarded)[:8],
        dropped=sum(part.dropped for part in known),
        inputs=sum(part.inputs for part in known),
        inexact=sum(part.inexact for part in known),
        gaps=tuple(gap for part in known for gap in part.gaps)[:8],
        classes=added_classes(part.classes for part in known),
        large=sum((part.large for part in known), LargeGuards()),
    )


def _replays(processes: Iterable[ProcessRecord]) -> Replays:
    """Those of every process, as its last heartbeat said."""
    pulses = [process.pulse for process in processes if process.pulse is not None]
    return Replays(*(sum(getattr(pulse, name) for pulse in pulses) for name in ("replays", "checked", "observed")))


def _graphs(processes: Iterable[ProcessRecord]) -> tuple[tuple[str, int, int], ...]:
    """The graphs of every process; names carry the process id when more than one process has graphs."""
    owners = [process for process in processes if any(facts.graphs for facts in process.summaries)]
    return tuple(
        (f"{process.pid}:{name}" if len(owners) > 1 else name, nodes, replays)
        for process in owners
        for facts in process.summaries
        for name, nodes, replays in facts.graphs
    )


def _high_water(processes: Iterable[ProcessRecord]) -> tuple[HighWaterMark, ...]:
    """The marks of every process, the fullest first; graphs are named as in `_graphs`."""
    owners = [process for process in processes if any(facts.graphs for facts in process.summaries)]
    marks = (
        msgspec.structs.replace(mark, graph=f"{process.pid}:{mark.graph}") if len(owners) > 1 else mark
        for process in processes
        for facts in process.summaries
        for mark in facts.high_water
    )
    return tuple(fullest_first(marks))[:_MARKS]


def _faults(processes: Iterable[ProcessRecord]) -> dict[str, int]:
    """Counts from the summaries; for a process without a summary, each logged internal error counts once."""
    total: Counter[str] = Counter()
    for process in processes:
        counted = Counter[str]()
        for facts in process.summaries:
            counted |= Counter(facts.faults)
        total += counted | Counter(set(process.faults))
    return dict(total)


def _limits(processes: Iterable[ProcessRecord]) -> tuple[str, ...]:
    said: list[str] = []
    for process in processes:
        said += [f"process {process.pid}: {limit}" for facts in process.summaries for limit in facts.limits]
        said += filter(None, [_off(process)])
        if process.damaged:
            said.append(f"process {process.pid}: {_damaged(process.damaged)} left out")
        if process.lost:
            said.append(f"process {process.pid}: {plural(process.lost, 'record')} could not be written")
        if process.cut:
            said.append(f"process {process.pid}: its file ends in the middle of a line, or met its limit")
    return tuple(said)


def _damaged(lines: int) -> str:
    return f"{plural(lines, 'damaged line')} in its file {'was' if lines == 1 else 'were'}"


def _off(process: ProcessRecord) -> str | None:
    """A report line on the time during which checking was paused from outside."""
    pulse = process.pulse
    if pulse is None or not pulse.pauses:
        return None
    times = "once" if pulse.pauses == 1 else f"{pulse.pauses:,} times"
    still = "" if pulse.off_since is None else ", and was off when it was last heard of"
    return (
        f"process {process.pid}: checking was switched off {times}, for {pulse.seconds_off:,.1f} s{still}; what "
        "happened meanwhile was not judged"
    )
