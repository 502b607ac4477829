"""Details of stale rows: rows left from an older replay, with names.

Called by the finding pipeline, in the thread of the event that reports.
"""

from __future__ import annotations

from shadowgraph.checks.base import Context, Detection
from shadowgraph.checks.row_epochs import stretches
from shadowgraph.model.findings import Staleness, StaleRows

_WITNESSES = 8


def staleness_of(draft: Detection, context: Context) -> Staleness | None:
    """The details of a detection about stale rows; None for any other detection."""
    stale = draft.stale
    if stale is None:
        return None
    names = (context.names.name_of(buffer, view.hull)[0] for buffer, view in stale.witnesses[:_WITNESSES])
    return Staleness(
        rows=stale.count,
        stale=tuple(StaleRows(*rows) for rows in stale.rows),
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
