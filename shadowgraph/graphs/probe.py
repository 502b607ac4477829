"""A replay in which memory is looked at after every node: what is asked, and what comes back. Pure data.

Whoever wants to know puts a `Probe` on a graph; the backend takes it off at the next replay, runs that replay with its
nodes one after the other, compares each part with what it held before that node, and delivers the `Outcome`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from shadowgraph.tracking.ranges import ByteRange


@dataclass(frozen=True, slots=True)
class Hit:
    """One node changed bytes of one part.

    Attributes
    ----------
    node
        Index of the device node.
    part
        Index in `Probe.parts`.
    first, last, count
        Extreme changed bytes, absolute and inclusive, and how many changed.
    """

    node: int
    part: int
    first: int
    last: int
    count: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a probed replay showed.

    Attributes
    ----------
    replay
        Number of the replay that was probed.
    hits
        In order of nodes, then of parts; one for each node and part.
    refused
        Why the replay ran without probes, or None.
    dropped
        Hits for which there was no room.
    """

    replay: int
    hits: tuple[Hit, ...] = ()
    refused: str | None = None
    dropped: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Probe:
    """What to look at during one replay.

    Attributes
    ----------
    parts
        Ranges of memory that is there as long as the replay runs.
    deliver
        Called once, when the replay is over and before its listeners are told so.
    """

    parts: tuple[ByteRange, ...]
    deliver: Callable[[Outcome], None]
