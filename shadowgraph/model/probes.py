"""A probed replay, in which memory is compared after every node: request and result, as pure data.

The locator puts a `Probe` on a graph; the backend removes it at the next replay, runs that replay with its nodes one
after the other, compares each part with its contents before that node, and delivers the `Outcome`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from shadowgraph.model.ranges import ByteRange


@dataclass(frozen=True, slots=True)
class Hit:
    """The bytes of one part that one node changed.

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
    """A search by partial runs of a graph: the bytes stay without the culprit node, and change with it.

    Attributes
    ----------
    runs, nodes
        Number of partial and whole runs, and of the graph's nodes.
    how
        How the other nodes were kept from running: ``removed`` from a copy of the graph, or ``disabled``.
    """

    runs: int
    nodes: int
    how: str


@dataclass(frozen=True, slots=True)
class Fallback:
    """The search to run where a replay cannot be probed.

    Attributes
    ----------
    targets
        Indices in `Probe.parts` of the parts worth a search.
    state
        Called with a look-up of other allocations; returns the ranges to restore after each run; raises `NotRerun`.
    """

    targets: tuple[int, ...]
    state: Callable[[Callable[[int], tuple[int, int] | None]], list[ByteRange]]


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a probed replay.

    Attributes
    ----------
    replay
        Number of the probed replay.
    hits
        One for each node and part, in order of nodes, then of parts.
    refused
        Why the replay ran without probes, or None. With `search`, hits come from the search.
    dropped
        Hits dropped for lack of space; for a search, changed parts whose node was not found.
    search
        The search that was run instead, or None.
    """

    replay: int
    hits: tuple[Hit, ...] = ()
    refused: str | None = None
    dropped: int = 0
    search: Search | None = None

    @property
    def shows(self) -> bool:
        """Whether the replay was probed or searched."""
        return self.refused is None or self.search is not None


@dataclass(frozen=True, slots=True, eq=False)
class Probe:
    """A request to compare memory after every node of one replay.

    Attributes
    ----------
    parts
        Ranges of memory that stays mapped while the replay runs.
    deliver
        Called once, after the replay and before its listeners are notified.
    fallback
        The search to run where the replay cannot be probed, or None.
    """

    parts: tuple[ByteRange, ...]
    deliver: Callable[[Outcome], None]
    fallback: Fallback | None = None
