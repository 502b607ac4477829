"""What a timeline is made of: events of one buffer. Pure data."""

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
        What happened, in words.
    graph, replay, node
        Name of the graph, which replay, the launch's number in it.
    access
        What a launch may do with the buffer: ``read``, ``write``, ``read_write``, ``unknown``; empty for other events.
    first, last
        Bytes that it was given, or that changed, from the buffer's start, inclusive.
    finding, code
        Of the finding that this is.
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
    """A buffer and what happened to it.

    Attributes
    ----------
    events
        Oldest first: those without a time come where they belong.
    earlier
        Events before these that were left out.
    since
        When the oldest launch and the oldest replay that the dump remembers began.
    """

    events: tuple[Event, ...]
    earlier: int
    since: float | None
