"""A replay in which memory is looked at after every node: what is asked, and what comes back. Pure data.

Whoever wants to know puts a `Probe` on a graph; the backend takes it off at the next replay, runs that replay with its
nodes one after the other, compares each part with what it held before that node, and delivers the `Outcome`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from shadowgraph.model.ranges import ByteRange


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


class Search(msgspec.Struct, frozen=True):
    """A graph was run in part, several times: the node's bytes are as before without it, and changed with it.

    Attributes
    ----------
    runs, nodes
        How often it was run, in part or whole, and how many nodes it has.
    how
        What kept the other nodes from running: ``removed`` from a copy of the graph, or ``disabled``.
    """

    runs: int
    nodes: int
    how: str


@dataclass(frozen=True, slots=True)
class Fallback:
    """What to do where a replay cannot be probed.

    Attributes
    ----------
    targets
        Indices in `Probe.parts` of what is worth a search.
    state
        Given who knows of other allocations, the ranges to put back after each run; raises `NotRerun`.
    """

    targets: tuple[int, ...]
    state: Callable[[Callable[[int], tuple[int, int] | None]], list[ByteRange]]


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
        Why the replay ran without probes, or None. With `search`, hits come from that.
    dropped
        Hits for which there was no room; of a search, parts that changed without a node being found.
    search
        How it was searched for instead, or None.
    """

    replay: int
    hits: tuple[Hit, ...] = ()
    refused: str | None = None
    dropped: int = 0
    search: Search | None = None

    @property
    def shows(self) -> bool:
        """Whether anything was looked at."""
        return self.refused is None or self.search is not None


@dataclass(frozen=True, slots=True, eq=False)
class Probe:
    """What to look at during one replay.

    Attributes
    ----------
    parts
        Ranges of memory that is there as long as the replay runs.
    deliver
        Called once, when the replay is over and before its listeners are told so.
    fallback
        What to do where the replay cannot be probed, or None.
    """

    parts: tuple[ByteRange, ...]
    deliver: Callable[[Outcome], None]
    fallback: Fallback | None = None
