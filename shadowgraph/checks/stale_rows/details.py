"""Details of stale rows: rows left from an older replay, with names.

Called by the finding pipeline, in the thread of the event that reports.
"""

from __future__ import annotations

from dataclasses import dataclass

from shadowgraph.checks.base import Context, Detection
from shadowgraph.checks.row_epochs import stretches
from shadowgraph.checks.stale_rows.facts import StaleRowsDetail, StaleStretch
from shadowgraph.model.buffers import Buffer
from shadowgraph.model.views import TensorView

_WITNESSES = 8


@dataclass(frozen=True, slots=True)
class Stale:
    """Rows that a graph reads, and the last write to each.

    Attributes
    ----------
    count
        Rows that the graph reads.
    fresh
        The rows that were refreshed for the coming replay.
    rows
        First and last row of each stretch of stale rows, and the graph's name and number of the replay that they were
        written for.
    witnesses
        Inputs that were refreshed in the rows that are stale here.
    """

    count: int
    fresh: tuple[int, ...]
    rows: tuple[tuple[int, int, str | None, int | None], ...]
    witnesses: tuple[tuple[Buffer, TensorView], ...]


def staleness_of(draft: Detection, context: Context) -> StaleRowsDetail | None:
    """The details of a detection about stale rows; None for any other detection."""
    stale = draft.facts
    if not isinstance(stale, Stale):
        return None
    names = (context.names.name_of(buffer, view.hull)[0] for buffer, view in stale.witnesses[:_WITNESSES])
    return StaleRowsDetail(
        rows=stale.count,
        stale=tuple(StaleStretch(*rows) for rows in stale.rows),
        refreshed=tuple(stretches(stale.fresh)),
        padded=tuple(names),
        viewed=_is_viewed(draft, context),
    )


def _is_viewed(draft: Detection, context: Context) -> bool:
    """Whether rows are counted in a view that no owner has, so that the owner's name would stand for other rows."""
    view = draft.view
    if view is None:
        return False
    name = context.names.name_of(draft.buffer, view.hull)[0]
    owners = context.names.owners_of(view.hull, draft.buffer.serial)
    return all(owner.view.shape != view.shape for owner in owners if owner.path == name)
