"""What the rows of a graph's static inputs held when its last replays began: pure data, for dumps and pictures."""

from __future__ import annotations

from enum import StrEnum

import msgspec


class RowState(StrEnum):
    """How a row came to hold what it holds, as the writes that were seen say."""

    REFRESHED = "refreshed"  # written for this replay
    PADDED = "padded"  # filled with one value for this replay
    KEPT = "kept"  # written for an older replay
    UNKNOWN = "unknown"  # in set-up, by a fill before this replay, or by nobody that was seen


class RowStretch(msgspec.Struct, frozen=True, array_like=True):
    """Rows of one state, both numbers included; `replay` of graph `graph` (a serial) is the one that kept rows were
    written for, None where that is not known or not asked."""

    first: int
    last: int
    state: RowState
    graph: int | None = None
    replay: int | None = None


class RowsAtReplay(msgspec.Struct, frozen=True, array_like=True):
    """An input's rows when a replay began; `cut` where later stretches were left out."""

    replay: int
    order: int
    rows: tuple[RowStretch, ...]
    cut: bool = False


class InputRows(msgspec.Struct, frozen=True, array_like=True):
    """The rows of a view that a graph reads, replay by replay, the oldest first.

    Attributes
    ----------
    graph, buffer
        Serials; row 0 begins `offset` bytes into the buffer.
    count, stride, nbytes
        Rows, bytes from one to the next, bytes of one.
    """

    graph: int
    buffer: int
    offset: int
    count: int
    stride: int
    nbytes: int
    replays: tuple[RowsAtReplay, ...] = ()
