"""Facts of SG103, beside those of every finding. Pure data, no torch."""

from __future__ import annotations

import msgspec

from shadowgraph.checks.stale_rows import CODE
from shadowgraph.model.kinds import TAG, Detail
from shadowgraph.model.redaction import Kept, OwnerPath


class StaleStretch(msgspec.Struct, frozen=True):
    """Rows (both numbers included) with values written for an older replay; `graph` and `replay` name it if known."""

    first: Kept[int]
    last: Kept[int]
    graph: Kept[str | None]
    replay: Kept[int | None]


class StaleRowsDetail(Detail, msgspec.Struct, frozen=True, tag=CODE, tag_field=TAG):
    """The stale rows of the input that a graph reads.

    Attributes
    ----------
    rows
        Rows that the graph reads.
    stale
        Rows left from older replays.
    refreshed
        First and last row of each stretch that was written for this replay.
    padded
        Other inputs of the graph whose corresponding rows were written for this replay.
    viewed
        The view that names the buffer has another shape, with other rows.
    """

    rows: Kept[int]
    stale: tuple[StaleStretch, ...]
    refreshed: Kept[tuple[tuple[int, int], ...]]
    padded: tuple[OwnerPath, ...] = ()
    viewed: bool = False
