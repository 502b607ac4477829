"""Details of a rebound input: the memory that host code refreshes in place of the graph's, with names.

Called by the finding pipeline, in the thread of the event that reports.
"""

from __future__ import annotations

from shadowgraph.checks.base import Context, Detection, Rebound
from shadowgraph.checks.dangling_details import tracked
from shadowgraph.model.findings import Rebinding, Successor
from shadowgraph.model.ranges import ByteRange


def rebinding_of(draft: Detection, context: Context) -> Rebinding | None:
    """The details of a detection about a rebound input; None for any other detection."""
    rebound = draft.rebound
    if rebound is None:
        return None
    return Rebinding(
        attribute=_path(draft, rebound, context),
        moved=rebound.now is not None,
        now=_now(rebound, context),
        planned=rebound.planned,
    )


def _path(draft: Detection, rebound: Rebound, context: Context) -> str:
    """The attribute behind a path to its object: a name that leads to its memory, now or at the capture."""
    ending = f".{rebound.attribute}"
    places = [rebound.now.hull] if rebound.now is not None else []
    where = draft.view.hull if draft.view is not None else draft.buffer.range
    for place in (*places, where):
        for owner in context.names.owners_of(place):
            if owner.path.endswith(ending) and owner.view.start == place.start:
                return owner.path
    return f"{rebound.owner}{ending}"


def _now(rebound: Rebound, context: Context) -> Successor | None:
    """The memory that is refreshed instead: the one that holds the values, else the attribute's target."""
    where = rebound.where or (rebound.now.hull if rebound.now is not None else None)
    if where is None:
        return None
    buffer = rebound.buffer or context.ledger.owner(where.start, where.stop)
    if buffer is not None:
        return tracked(buffer, context)
    return _untracked(where, rebound, context)


def _untracked(where: ByteRange, rebound: Rebound, context: Context) -> Successor | None:
    view = rebound.now
    if view is None or view.start != where.start:
        return None
    paths = [owner.path for owner in context.names.owners_of(where)]
    name = paths[0] if paths else f"{rebound.owner}.{rebound.attribute}"
    return Successor(name, view.start, view.nbytes, view.dtype, view.shape)
