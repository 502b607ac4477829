"""Timelines of processes as one self-contained page, drawn by its style sheet alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from shadowgraph.render.engine import render
from shadowgraph.render.text.run_timeline_text import by_step, clock, headed, told_finding, told_mark, told_step
from shadowgraph.views.run_timeline import RunTimeline


@dataclass(frozen=True, slots=True)
class StepRow:
    """A step: its share of the most replays in percent, and what was found and was fullest in it."""

    time: str
    share: float
    told: str
    findings: tuple[str, ...]
    marks: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TimelinePart:
    """The timeline of one process."""

    title: str
    rows: tuple[StepRow, ...]
    unread: tuple[str, ...]
    timeless: tuple[str, ...]


def timeline_page(timelines: Sequence[RunTimeline]) -> str:
    """The page."""
    return render("timeline.html", parts=[_part(each) for each in timelines]) + "\n"


def _part(each: RunTimeline) -> TimelinePart:
    most = max((step.replays for step in each.steps), default=0) or 1
    found, marks = by_step(each, each.findings), by_step(each, [mark for mark in each.marks if mark.time is not None])
    rows = (
        StepRow(
            clock(step.start, each.width),
            round(100 * step.replays / most, 2),
            told_step(step),
            tuple(told_finding(one, each.width) for one in found.get(at, ())),
            tuple(told_mark(one, each.width) for one in marks.get(at, ())),
        )
        for at, step in enumerate(each.steps)
    )
    timeless = tuple(told_mark(mark, each.width) for mark in each.marks if mark.time is None)
    return TimelinePart(headed(each), tuple(rows), each.unread, timeless)
