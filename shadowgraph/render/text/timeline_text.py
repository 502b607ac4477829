"""Timelines of buffers as text and JSON: one line for an event, its stack below where it matters."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

from rich.text import Text

from shadowgraph.common.source_paths import at, short
from shadowgraph.common.words import form, plural
from shadowgraph.model.launches import Access
from shadowgraph.render.text.shown import Reporter, said
from shadowgraph.views.events import Event, Timeline, What

SCHEMA = "shadowgraph.timeline/1"
_STACK = 5
_STYLES = {What.FOUND: "bold red", What.REVISED: "red", What.FREED: "yellow", What.CHANGED: "yellow"}
_DOES = {Access.READ: "reads", Access.WRITE: "writes", Access.READ_WRITE: "reads and writes"}
_INDENT = " " * 26


class TimelineReport(Reporter):
    """Timelines of the buffers that match a name. Holds data only."""

    schema = SCHEMA

    def __init__(self, timelines: Sequence[Timeline]) -> None:
        self.timelines = tuple(timelines)

    def document(self) -> dict[str, Any]:
        return {"timelines": self.timelines}

    def lines(self, width: int | None = None) -> Iterator[Text]:
        """Every line; names are never shortened."""
        for place, each in enumerate(self.timelines):
            if place:
                yield Text()
            yield from _timeline(each)


def _timeline(each: Timeline) -> Iterator[Text]:
    yield said(
        f"{each.name}  {form(each.dtype, each.shape)}  {plural(each.nbytes, 'byte')} at {each.address:#x}, "
        f"{each.role}, allocation {each.serial} of process {each.pid}{'' if each.alive else ', freed'}",
        "bold",
    )
    told = False
    for event in each.events:
        if event.time is not None and not told:
            told = True
            yield from _skipped(each)
        yield from _event(event)
    if not told:
        yield from _skipped(each)


def _skipped(each: Timeline) -> Iterator[Text]:
    if each.earlier:
        yield said(f"  ... {plural(each.earlier, 'earlier event')} left out; --last shows more", "dim")
    elif each.since is None:
        yield said("  the dump remembers no launch and no replay", "dim")
    else:
        yield said(f"  ... the dump remembers launches and replays since {_clock(each.since)}", "dim")


def _event(event: Event) -> Iterator[Text]:
    moment = _clock(event.time) if event.time is not None else "-"
    line = said(f"  {moment:<13} {event.what:<9} {_told(event)}", _STYLES.get(event.what, ""))
    line.rstrip()
    yield line
    if event.what is What.ALLOCATED:
        for frame in event.stack[1:_STACK]:
            yield said(f"{_INDENT}{short(frame.file)}:{frame.line} in {frame.function}", "dim")


def _told(event: Event) -> str:
    place = at(event.stack[0].file, event.stack[0].line) if event.stack else ""
    if event.what is What.LAUNCHED:
        return f"{event.text}{_of(event)} {_does(event)}{_bytes(event)}{place}"
    if event.what is What.CAPTURED:
        return f"{event.graph} {_does(event)}: {event.text}{place}"
    if event.what is What.ALLOCATED:
        inside = f" in {event.stack[0].function}" if event.stack else "by code whose stack is not known"
        return " ".join(filter(None, (place.strip() + inside, event.text)))
    return f"{event.text}{place}"


def _does(event: Event) -> str:
    named = f" ({event.argument})" if event.argument else ""
    known = {str(access): text for access, text in _DOES.items()}
    return f"{known.get(event.access, 'was given')}{named}" if event.access else ""


def _of(event: Event) -> str:
    """The graph of a launch, else its phase."""
    if event.graph is not None:
        return f" ({event.graph} node {event.node})" if event.node is not None else f" ({event.graph})"
    return f" (in {event.phase})" if event.phase is not None else ""


def _bytes(event: Event) -> str:
    return f" bytes {event.first:,} to {event.last:,}" if event.first is not None else ""


def _clock(moment: float) -> str:
    """Time of day, UTC, to the millisecond."""
    try:
        day = time.strftime("%H:%M:%S", time.gmtime(moment))
    except (OSError, OverflowError, ValueError):
        return "?"
    return f"{day}.{int(moment % 1 * 1000):03d}"
