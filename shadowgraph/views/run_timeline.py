"""Timeline of a process: replays, batches, findings and high-water marks over its run, in a bounded number of steps.

Pure data. A run folder has the counts of its processes' heartbeats for the whole run, however long, and the last rows
of the launch log with their times; a dump has the last replays.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

from shadowgraph.common.errors import ShadowgraphError
from shadowgraph.dumps.reader import Dump, read_dump
from shadowgraph.model import launch_log_reader
from shadowgraph.model.findings import Finding, Severity
from shadowgraph.model.high_water import HighWaterMark, fullest_first
from shadowgraph.model.launch_log_format import RowKind
from shadowgraph.model.launch_log_reader import LoggedEvent
from shadowgraph.model.recorded_files import LAUNCHES, in_folder
from shadowgraph.wrap.folder.process_record import ProcessRecord
from shadowgraph.wrap.folder.reader import Run

STEPS = 40
_FINDINGS, _MARKS = 200, 40
_LEAST = 1e-3  # seconds, of a step


class TimelineStep(msgspec.Struct, frozen=True):
    """What happened from `start` to the next step: replays that began, and batches, with the text of the last."""

    start: float
    replays: int
    batches: int = 0
    batch: str = ""


class FoundAt(msgspec.Struct, frozen=True):
    """When a finding or a note was first seen."""

    time: float
    id: int
    code: str
    is_error: bool
    message: str
    occurrences: int


class MarkAt(msgspec.Struct, frozen=True):
    """A high-water mark: when a static buffer was at its fullest; `time` is None where the replay's is not known."""

    time: float | None
    buffer: str
    used: int
    capacity: int
    graph: str
    replay: int

    @property
    def percent(self) -> int:
        """The part of the buffer in use."""
        return 100 * self.used // self.capacity if self.capacity else 0


class RunTimeline(msgspec.Struct, frozen=True):
    """One process over time.

    Attributes
    ----------
    start, stop
        The range of the steps, in seconds since 1970.
    replays
        All replays of the process; those before `since` are in no step.
    since
        The first moment at which replays were counted; None where none is known.
    unread
        Why something could not be read, a line each.
    """

    pid: int
    title: str
    start: float
    stop: float
    replays: int
    since: float | None
    steps: tuple[TimelineStep, ...]
    findings: tuple[FoundAt, ...]
    marks: tuple[MarkAt, ...]
    more_findings: int = 0
    more_marks: int = 0
    unread: tuple[str, ...] = ()

    @property
    def width(self) -> float:
        """Seconds of a step."""
        return (self.stop - self.start) / len(self.steps) if self.steps else 0.0

    def step_of(self, time: float) -> int:
        """The step in which a moment is; the nearest for one outside."""
        return min(max(int((time - self.start) / self.width), 0), len(self.steps) - 1) if self.steps else 0


@dataclass(slots=True)
class _Facts:
    """What is known of a process. `counted` has moments and the number of all replays up to each: one row a replay, or
    with `sampled` some moments of the run."""

    pid: int
    title: str
    started: float
    findings: Sequence[Finding]
    marks: Sequence[HighWaterMark]
    replays: int
    counted: list[tuple[float, int]]
    begun: dict[tuple[str, int], float]
    batches: list[tuple[float, str]]
    sampled: bool = False
    unread: tuple[str, ...] = ()


def run_timelines(run: Run, pid: int | None = None, steps: int = STEPS) -> tuple[RunTimeline, ...]:
    """The timeline of each process of a run that replayed or has findings, in order of start."""
    numbers = {(f.pid, f.fingerprint, f.buffer.serial): f for f in run.merged().told}
    found: dict[int, list[Finding]] = {}
    for (owner, _, _), finding in numbers.items():
        found.setdefault(owner, []).append(finding)
    return tuple(
        _made(facts, steps)
        for process in run.processes
        if process.backend is not None and pid in (None, process.pid)
        for facts in (_facts_of(run, process, found.get(process.pid, [])),)
        if facts.counted or facts.findings or facts.marks
    )


def dump_timeline(dump: Dump, steps: int = STEPS) -> RunTimeline:
    """The timeline of a dump: of the last replays that it remembers."""
    manifest = dump.manifest
    names = {graph.serial: graph.name for graph in manifest.graphs}
    total = sum(graph.replays for graph in manifest.graphs)
    counted, begun = _of_replays(((row.time, names.get(row.graph, ""), row.replay) for row in manifest.replays), total)
    return _made(
        _Facts(
            manifest.pid, dump.path.name, counted[0][0] if counted else manifest.time, manifest.facts.told,
            manifest.facts.high_water, total, counted, begun, [],
        ),
        steps,
    )  # fmt: skip


def _of_replays(
    rows: Iterable[tuple[float, str, int]], total: int
) -> tuple[list[tuple[float, int]], dict[tuple[str, int], float]]:
    """Counts of replays over time, and the time of each, of the last replays out of all."""
    known = sorted(rows)
    first = max(0, total - len(known))
    return (
        [(time, first + number) for number, (time, _, _) in enumerate(known, 1)],
        {(graph, replay): time for time, graph, replay in known},
    )


def _facts_of(run: Run, process: ProcessRecord, findings: Sequence[Finding]) -> _Facts:
    marks = [mark for facts in process.summaries for mark in facts.high_water]
    pulse = process.pulse
    facts = _Facts(
        process.pid, process.title or " ".join(process.argv), process.started, findings, marks,
        pulse.replays if pulse is not None else 0, [], {}, [],
    )  # fmt: skip
    _add_log(run, process, facts)
    if not facts.counted:
        _add_dump(run, process, facts)
    if pulse is not None and pulse.history:
        points = sorted({*((time, count) for time, count in pulse.history), (pulse.time, pulse.replays)})
        facts.counted, facts.sampled = [(process.started, 0), *points], True
    return facts


def _add_log(run: Run, process: ProcessRecord, facts: _Facts) -> None:
    """Add the rows of the launch log, where the run folder has one."""
    path = in_folder(run.folder, process.path.stem.removeprefix("findings-"), LAUNCHES)
    if not Path(path).exists():
        return
    try:
        log = launch_log_reader.read(path)
    except ShadowgraphError as error:
        facts.unread = (*facts.unread, str(error))
        return
    events = [row for row in log.since(0) if isinstance(row, LoggedEvent)]
    begins = [row for row in events if row.kind is RowKind.REPLAY_BEGINS]
    rows = ((row.time, log.graphs.get(row.graph, f"graph#{row.graph}"), row.replay) for row in begins)
    facts.counted, facts.begun = _of_replays(rows, max(facts.replays, len(begins)))
    facts.batches = [(row.time, row.text) for row in events if row.kind is RowKind.BATCH]


def _add_dump(run: Run, process: ProcessRecord, facts: _Facts) -> None:
    """Add the replays of the process's newest dump."""
    mine = [path for path in run.dumps if path.stem.split("-")[1:2] == [str(process.pid)]]
    for path in sorted(mine, key=lambda path: path.stat().st_mtime_ns, reverse=True)[:1]:
        try:
            with read_dump(path) as dump:
                names = {graph.serial: graph.name for graph in dump.manifest.graphs}
                rows = [(row.time, names.get(row.graph, ""), row.replay) for row in dump.manifest.replays]
                facts.marks = facts.marks or dump.manifest.facts.high_water
        except ShadowgraphError as error:
            facts.unread = (*facts.unread, str(error))
        else:
            facts.counted, facts.begun = _of_replays(rows, max(facts.replays, len(rows)))


def _made(facts: _Facts, count: int) -> RunTimeline:
    marks = [_mark(mark, facts.begun) for mark in fullest_first(facts.marks)]
    found = sorted(map(_found, facts.findings), key=lambda each: each.time)
    times = [
        *(time for time, _ in facts.counted),
        *(each.time for each in found),
        *(each.time for each in marks if each.time is not None),
        *(time for time, _ in facts.batches),
    ]
    start = min([facts.started, *times]) if facts.started else min(times, default=0.0)
    stop = max([*times, start]) + _LEAST
    return RunTimeline(
        facts.pid,
        facts.title,
        start,
        stop,
        max(facts.replays, facts.counted[-1][1] if facts.counted else 0),
        facts.counted[0][0] if facts.counted else None,
        tuple(_steps(facts, np.linspace(start, stop, count + 1).tolist())) if times else (),
        tuple(found[:_FINDINGS]),
        tuple(marks[:_MARKS]),
        max(0, len(found) - _FINDINGS),
        max(0, len(marks) - _MARKS),
        facts.unread,
    )


def _steps(facts: _Facts, edges: list[float]) -> Iterator[TimelineStep]:
    """Counts between the edges: between two sampled moments replays are taken to be spread evenly."""
    times, totals = [time for time, _ in facts.counted], [total for _, total in facts.counted]
    if facts.sampled:
        at = np.interp(edges, times, np.maximum.accumulate(totals))
    else:
        at = np.searchsorted(times, edges).astype(float)
    counts = np.diff(np.round(at).astype(int))
    moments = [time for time, _ in facts.batches]
    places = np.searchsorted(moments, edges) if moments else np.zeros(len(edges), int)
    for step, replays in enumerate(counts.tolist()):
        low, high = int(places[step]), int(places[step + 1])
        last = facts.batches[high - 1][1] if high > low else ""
        yield TimelineStep(edges[step], replays, high - low, last)


def _found(finding: Finding) -> FoundAt:
    is_error = finding.severity is Severity.ERROR
    return FoundAt(finding.time, finding.id, finding.code, is_error, finding.message, finding.occurrences)


def _mark(mark: HighWaterMark, begun: dict[tuple[str, int], float]) -> MarkAt:
    graph = mark.graph or ""
    return MarkAt(begun.get((graph, mark.replay)), mark.buffer, mark.used, mark.capacity, graph, mark.replay)
