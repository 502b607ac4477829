"""Row history: the state of the rows of a graph's static inputs at its last replays, as pure data for dumps and
plots."""

from __future__ import annotations

from enum import StrEnum

import msgspec


class RowState(StrEnum):
    """The origin of a row's contents, by the writes that were seen."""

    REFRESHED = "refreshed"  # written for this replay
    PADDED = "padded"  # filled with one value for this replay
    KEPT = "kept"  # written for an older replay
    UNKNOWN = "unknown"  # written in set-up, by a fill before this replay, or by no write that was seen


class RowStretch(msgspec.Struct, frozen=True, array_like=True):
    """Rows of one state, both numbers included; `replay` of graph `graph` (a serial) is the replay that kept rows were
    written for, None where unknown or not requested."""

    first: int
    last: int
    state: RowState
    graph: int | None = None
    replay: int | None = None


class RowsAtReplay(msgspec.Struct, frozen=True, array_like=True):
    """The rows of an input at the start of a replay; `cut` where later stretches were left out."""

    replay: int
    order: int
    rows: tuple[RowStretch, ...]
    cut: bool = False


class InputRows(msgspec.Struct, frozen=True, array_like=True):
    """The rows of a view that a graph reads, by replay, the oldest first.

    Attributes
    ----------
    graph, buffer
        Serials; row 0 begins `offset` bytes into the buffer.
    count, stride, nbytes
        Number of rows, bytes from one row to the next, bytes of one row.
    """

    graph: int
    buffer: int
    offset: int
    count: int
    stride: int
    nbytes: int
    replays: tuple[RowsAtReplay, ...] = ()
