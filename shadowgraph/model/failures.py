"""Context recorded with an exception of the program, as plain data: the last plan, the last replay, the batch."""

from __future__ import annotations

import msgspec

from shadowgraph.model.findings import Batch, Culprit
from shadowgraph.model.redaction import Kept, OwnerPath


class LastWriter(msgspec.Struct, frozen=True):
    """The last seen writer of one array entry; `graph` and `replay` are set if it is a node of a graph."""

    entry: Kept[int]
    culprit: Culprit
    graph: Kept[str | None] = None
    replay: Kept[int | None] = None


class PlanFacts(msgspec.Struct, frozen=True):
    """The latest plan, and the last writers of the index pointers that it was computed from.

    Attributes
    ----------
    planner, kind
        Class of the planner, and the kind of plan.
    batch_size, entries
        Number of requests, and of index pointers.
    indptr, first
        An excerpt of the index pointers, and the position of its first one.
    broken
        Positions of the first few index pointers that are smaller than their predecessor.
    buffer
        Name of the buffer that holds the index pointers.
    graph, replay
        The graph whose next replay the plan was for, and the number of that replay.
    failed
        Whether the planner raised.
    writers
        Last writers of the first broken entry and of its predecessor.
    finding, found
        Id of an earlier finding about the same memory, and its text.
    """

    planner: Kept[str]
    kind: Kept[str]
    batch_size: Kept[int]
    entries: Kept[int]
    indptr: tuple[int, ...]
    first: Kept[int] = 0
    broken: Kept[tuple[int, ...]] = ()
    buffer: OwnerPath = ""
    graph: Kept[str | None] = None
    replay: Kept[int | None] = None
    failed: Kept[bool] = False
    writers: tuple[LastWriter, ...] = ()
    finding: Kept[int | None] = None
    found: str = ""


class Failure(msgspec.Struct, frozen=True):
    """An exception of the program, or a watchdog's alarm, with the context at that moment.

    Attributes
    ----------
    kind
        ``planner``, ``device`` or ``timeout``.
    error, said
        Class of the exception, and the first line of its message.
    where
        The place that caught it, where an adapter knows.
    graph, replay
        The last replay that began; `seconds` have passed since.
    batch
        The batch that this replay was prepared for; for a planner's exception, the batch of the next replay.
    """

    kind: Kept[str]
    error: Kept[str]
    said: str
    where: Kept[str] = ""
    time: Kept[float] = 0.0
    plan: PlanFacts | None = None
    graph: Kept[str | None] = None
    replay: Kept[int | None] = None
    seconds: Kept[float] = 0.0
    batch: Batch | None = None
