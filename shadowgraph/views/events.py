"""Records of a timeline: the events of one buffer. Pure data."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from shadowgraph.model.stacks import Stack
from shadowgraph.views.buffer_head import BufferHead


class What(StrEnum):
    """Kinds of event."""

    ALLOCATED = "allocated"
    CAPTURED = "captured"
    LAUNCHED = "launched"
    REPLAYED = "replayed"
    FOUND = "found"
    REVISED = "revised"
    CHANGED = "changed"  # seen by `Debugger.watch`
    FREED = "freed"


class Event(msgspec.Struct, frozen=True):
    """One event.

    Attributes
    ----------
    time
        Seconds since 1970; None where only the order is known.
    text
        The event in words.
    graph, replay, node
        Name of the graph, number of the replay, number of the launch in the graph.
    access
        Possible access of a launch: ``read``, ``write``, ``read_write``, ``unknown``; empty for other events.
    first, last
        Bytes that were passed to the launch, or that changed, from the buffer's start, inclusive.
    finding, code
        Id and code, for the event of a finding.
    """

    what: What
    text: str
    time: float | None = None
    phase: str | None = None
    graph: str | None = None
    replay: int | None = None
    node: int | None = None
    access: str = ""
    argument: str = ""
    first: int | None = None
    last: int | None = None
    finding: int | None = None
    code: str | None = None
    stack: Stack = ()


class Timeline(BufferHead, frozen=True):
    """A buffer and its events.

    Attributes
    ----------
    events
        Oldest first; events without a time stand at their place in the order.
    earlier
        Number of earlier events that were left out.
    since
        Start of the oldest launch or replay in the dump's journal.
    """

    events: tuple[Event, ...]
    earlier: int
    since: float | None
