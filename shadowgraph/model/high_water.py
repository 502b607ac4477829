"""High-water marks: how far each static buffer was filled, at most, for which replay, and where its growth leads.

Pure data, no torch: rows of a report and of a dump. `shadowgraph.checks.headroom` makes them.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

import msgspec

from shadowgraph.model.redaction import Kept, OwnerPath


class MarkedBy(StrEnum):
    """Where the use of a buffer is known from."""

    PREPARE = "prepare"  # the bytes that host code wrote before the replay
    PLAN = "plan"  # the entries that a planner's index pointers divide
    GRAPH = "graph"  # the stores of the graph's own kernels


class Driver(StrEnum):
    """What the use of a buffer grows with."""

    TOKENS = "sum of lengths"
    LONGEST = "longest length"
    REQUESTS = "batch size"
    AREA = "batch size times longest length"


class MarkedBatch(msgspec.Struct, frozen=True):
    """The batch of a mark: requests, captured size, longest length and sum of lengths; 0 for what is not known."""

    size: Kept[int]
    padded_to: Kept[int]
    longest: Kept[int] = 0
    tokens: Kept[int] = 0


class Forecast(msgspec.Struct, frozen=True):
    """Where the growth of a buffer's use leads.

    Attributes
    ----------
    driver, now
        What the use grows with, and its value at the mark.
    overflows_at
        The first value of the driver with which the buffer overflows.
    limit, at_limit
        The largest value that the program's configuration allows, and the entries that it takes; 0 where no limits are
        known.
    exact
        Whether each point lies on the relation.
    points
        Some points behind it, oldest first: value of the driver, and entries.
    steps
        Number of points that it was made from.
    """

    driver: Driver
    now: Kept[int]
    overflows_at: Kept[int]
    limit: Kept[int]
    at_limit: Kept[int]
    exact: bool
    points: Kept[tuple[tuple[int, int], ...]]
    steps: Kept[int]


class HighWaterMark(msgspec.Struct, frozen=True):
    """The fullest state of one buffer, of the replays that were observed.

    Attributes
    ----------
    buffer, dtype, shape
        Its name and form; those of a part where a graph reads the buffer in parts.
    used, capacity
        Entries in use at the mark, and entries that there are.
    by_row
        Whether both count within the longest row, not over the whole buffer.
    graph, replay, batch
        The replay with the mark; no batch where no adapter knows it.
    least, latest
        The fewest entries, and those of the last observed replay.
    steps
        Number of replays with a known use.
    forecast
        As of the note on it, if there is one.
    """

    buffer: OwnerPath
    dtype: Kept[str]
    shape: Kept[tuple[int, ...]]
    used: Kept[int]
    capacity: Kept[int]
    by_row: bool
    graph: Kept[str]
    replay: Kept[int]
    least: Kept[int]
    latest: Kept[int]
    steps: Kept[int]
    source: MarkedBy
    batch: MarkedBatch | None = None
    forecast: Forecast | None = None

    @property
    def share(self) -> float:
        """The part of the buffer in use at the mark, from 0 to 1."""
        return self.used / self.capacity if self.capacity else 0.0

    @property
    def varied(self) -> bool:
        """Whether the use differed between replays."""
        return self.least != self.used


def fullest_first(marks: Iterable[HighWaterMark]) -> list[HighWaterMark]:
    """The marks in the order of a report: first those that a note is about, then by the part in use."""
    return sorted(marks, key=lambda mark: (mark.forecast is None, -mark.share, mark.buffer))
