"""Timelines of processes as text and JSON: one line for a step with replays, and what was found in it below."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

from rich.text import Text

from shadowgraph.common.words import plural
from shadowgraph.render.text.shown import Reporter, said
from shadowgraph.views.run_timeline import FoundAt, MarkAt, RunTimeline, TimelineStep

SCHEMA = "shadowgraph.run-timeline/1"
_BAR = 30
_EACH = 5  # findings, and marks, below one step
_INDENT = " " * 12


class RunTimelineReport(Reporter):
    """Timelines of the processes of a run. Holds data only."""

    schema = SCHEMA

    def __init__(self, timelines: Sequence[RunTimeline]) -> None:
        self.timelines = tuple(timelines)

    def document(self) -> dict[str, Any]:
        return {"timelines": self.timelines}

    def lines(self, width: int | None = None) -> Iterator[Text]:
        """Every line."""
        if not self.timelines:
            yield said("no process of this run has replayed a graph or has a finding")
        for place, each in enumerate(self.timelines):
            if place:
                yield Text()
            yield from _timeline(each)


def headed(each: RunTimeline) -> str:
    """The process, its range and its counts in one line."""
    errors = sum(found.is_error for found in each.findings)
    notes = len(each.findings) - errors
    counts = [plural(each.replays, "replay"), plural(errors, "finding"), *([plural(notes, "note")] if notes else [])]
    span = f"{clock(each.start, each.width)} to {clock(each.stop, each.width)} UTC, {lasting(each.stop - each.start)}"
    return f"timeline of process {each.pid}, {each.title}: {span}; {', '.join(counts)}"


def told_step(step: TimelineStep) -> str:
    """The replays and batches of a step."""
    batches = (
        f", {step.batches:,} {'batch' if step.batches == 1 else 'batches'}, the last: {step.batch}"
        if step.batches
        else ""
    )
    return f"{plural(step.replays, 'replay')}{batches}"


def told_finding(found: FoundAt, width: float) -> str:
    """A finding with its number and the time at which it was first seen."""
    times = f" (seen {found.occurrences:,} times)" if found.occurrences > 1 else ""
    return f"{clock(found.time, width)} #{found.id} {found.message}{times}"


def told_mark(mark: MarkAt, width: float) -> str:
    """A high-water mark with its replay."""
    at = f"{clock(mark.time, width)} " if mark.time is not None else ""
    where = f"replay {mark.replay} of {mark.graph}" if mark.graph else f"replay {mark.replay}"
    return f"{at}{mark.percent} % of {mark.buffer} in use, {mark.used:,} of {mark.capacity:,}, its most: {where}"


def _timeline(each: RunTimeline) -> Iterator[Text]:
    yield said(headed(each), "bold")
    for line in each.unread:
        yield said(f"  {line}", "yellow")
    if each.since is not None and each.since > each.start + each.width:
        yield said(f"  replays are counted since {clock(each.since, each.width)}", "dim")
    most = max((step.replays for step in each.steps), default=0)
    found, marks = by_step(each, each.findings), by_step(each, [mark for mark in each.marks if mark.time is not None])
    for at, step in _with_pauses(each, {*found, *marks}):
        if step is None:
            yield said(f"  {'...':>8}  no replay for {lasting(at * each.width)}", "dim")
            continue
        bar = "#" * (-(-step.replays * _BAR // most) if most else 0)
        yield said(f"  {clock(step.start, each.width)}  {bar:<{_BAR}}  {told_step(step)}")
        yield from _below([told_finding(one, each.width) for one in found.get(at, ())], "finding", "red")
        yield from _below([told_mark(one, each.width) for one in marks.get(at, ())], "high-water mark", "yellow")
    timeless = [told_mark(mark, each.width) for mark in each.marks if mark.time is None]
    if timeless:
        yield said("  high-water marks of replays whose time is not known:", "dim")
        yield from _below(timeless, "high-water mark", "yellow")


def by_step(each: RunTimeline, moments: Sequence[Any]) -> dict[int, list[Any]]:
    """Findings or marks by the step in which they are."""
    placed: dict[int, list[Any]] = {}
    for moment in moments:
        placed.setdefault(each.step_of(moment.time), []).append(moment)
    return placed


def _with_pauses(each: RunTimeline, told: set[int]) -> Iterator[tuple[int, TimelineStep | None]]:
    """Steps with their places; of a run of steps without anything only its length, and None."""
    numbered = list(enumerate(each.steps))
    for empty, run in groupby(numbered, lambda one: not (one[1].replays or one[1].batches or one[0] in told)):
        steps = list(run)
        if empty:
            yield len(steps), None
        else:
            yield from steps


def _below(lines: Sequence[str], noun: str, style: str) -> Iterator[Text]:
    for line in lines[:_EACH]:
        yield said(f"{_INDENT}{line}", style)
    if len(lines) > _EACH:
        yield said(f"{_INDENT}... and {plural(len(lines) - _EACH, f'more {noun}')}", "dim")


def clock(moment: float, width: float = 1.0) -> str:
    """Time of day, UTC; with milliseconds where steps are shorter than a second."""
    try:
        day = time.strftime("%H:%M:%S", time.gmtime(moment))
    except (OSError, OverflowError, ValueError):
        return "?"
    return day if width >= 1 else f"{day}.{int(moment % 1 * 1000):03d}"


def lasting(seconds: float) -> str:
    """A length of time: ``0.4 s``, ``12 s``, ``3 min 5 s``, ``2 h 10 min``."""
    if seconds < 10:
        return f"{seconds:.1f} s" if seconds >= 0.1 else f"{1000 * seconds:.0f} ms"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600:,} h {whole % 3600 // 60} min"
