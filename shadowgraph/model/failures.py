"""What the program's own exception is joined with, as plain data: the last plan, the last replay, the batch."""

from __future__ import annotations

import msgspec

from shadowgraph.model.findings import Batch, Culprit


class LastWriter(msgspec.Struct, frozen=True):
    """Who wrote one entry of an array last, as far as was seen; `graph` and `replay` where a graph's node did."""

    entry: int
    culprit: Culprit
    graph: str | None = None
    replay: int | None = None


class PlanFacts(msgspec.Struct, frozen=True):
    """The latest plan, and who wrote what it was made from.

    Attributes
    ----------
    planner, kind
        The class of the object that planned, and what it plans for.
    batch_size, entries
        Requests, and index pointers in all.
    indptr, first
        Some of the index pointers, and the place of the first of them.
    broken
        Places of those that are smaller than the one before; the first few.
    buffer
        What the index pointers' own memory is called.
    graph, replay
        The graph whose coming replay it was for.
    failed
        Whether the planner raised.
    writers
        Of the first broken entry and the one before it.
    finding, found
        Id of an earlier finding about the same memory, and what it says.
    """

    planner: str
    kind: str
    batch_size: int
    entries: int
    indptr: tuple[int, ...]
    first: int = 0
    broken: tuple[int, ...] = ()
    buffer: str = ""
    graph: str | None = None
    replay: int | None = None
    failed: bool = False
    writers: tuple[LastWriter, ...] = ()
    finding: int | None = None
    found: str = ""


class Failure(msgspec.Struct, frozen=True):
    """An exception of the program, or a watchdog's alarm, with what was known at that moment.

    Attributes
    ----------
    kind
        ``planner``, ``device`` or ``timeout``.
    error, said
        Class of the exception, and the first line of what it says.
    where
        Who caught it, where an adapter knows.
    graph, replay
        The last replay that began, and `seconds` since then.
    batch
        What that replay was prepared for; of a planner's exception, the coming one.
    """

    kind: str
    error: str
    said: str
    where: str = ""
    time: float = 0.0
    plan: PlanFacts | None = None
    graph: str | None = None
    replay: int | None = None
    seconds: float = 0.0
    batch: Batch | None = None
