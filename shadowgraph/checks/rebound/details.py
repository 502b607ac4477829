"""Details of a rebound input: the memory that host code refreshes in place of the graph's, with names.

Called by the finding pipeline, in the thread of the event that reports.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from shadowgraph.checks.base import Context, Detection
from shadowgraph.checks.rebound.facts import Evidence, ReboundDetail
from shadowgraph.checks.successors import successor_of
from shadowgraph.model.buffers import Buffer
from shadowgraph.model.findings import Successor
from shadowgraph.model.ranges import ByteRange
from shadowgraph.model.views import TensorView


@dataclass(frozen=True, slots=True)
class Rebound:
    """The memory that host code refreshes in place of the memory that a graph reads.

    Attributes
    ----------
    attribute, owner
        The attribute that led to the graph's memory at the capture, and the class of the object that has it.
    now
        The attribute's current target, if that is other memory.
    where, buffer
        Memory that holds the values that the graph should read, and its buffer if it is tracked; None where none is
        known.
    planned
        Whether a plan gives the values that the graph should read, or the memory that the attribute leads to now.
    evidence, refreshes, lags
        As in `ReboundDetail`; where nothing was declared, `attribute` is a path, or empty.
    """

    attribute: str
    owner: str
    now: TensorView | None
    where: ByteRange | None
    buffer: Buffer | None
    planned: bool
    evidence: Evidence = Evidence.DECLARED
    refreshes: int = 0
    lags: bool = False


def rebinding_of(draft: Detection, context: Context) -> ReboundDetail | None:
    """The details of a detection about a rebound input; None for any other detection."""
    rebound = draft.facts
    if not isinstance(rebound, Rebound):
        return None
    return ReboundDetail(
        attribute=_path(draft, rebound, context) if rebound.evidence is Evidence.DECLARED else rebound.attribute,
        moved=rebound.now is not None,
        now=_now(draft.buffer, rebound, context),
        planned=rebound.planned,
        evidence=rebound.evidence,
        refreshes=rebound.refreshes,
        lags=rebound.lags,
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


def _now(own: Buffer, rebound: Rebound, context: Context) -> Successor | None:
    """The memory that is refreshed instead of a part of the graph's `own` buffer: that which holds the values, else the
    attribute's target."""
    where = rebound.where or (rebound.now.hull if rebound.now is not None else None)
    if where is None:
        return None
    buffer = rebound.buffer or context.ledger.owner(where.start, where.stop)
    if buffer is not None and rebound.evidence is Evidence.WINDOW:
        return _window_of(buffer, where, context)
    if buffer is not None and buffer is own:  # the name of the whole is that of a part here, the graph's or the new one
        place = _window_of(buffer, where, context)
        return msgspec.structs.replace(place, name=f"{_bytes(buffer, where)} of the same buffer")
    if buffer is not None:
        return successor_of(buffer, context)
    return _untracked(where, rebound, context)


def _untracked(where: ByteRange, rebound: Rebound, context: Context) -> Successor | None:
    view = rebound.now
    if view is None or view.start != where.start:
        return None
    paths = [owner.path for owner in context.names.owners_of(where)]
    name = paths[0] if paths else f"memory at {view.start:#x}"
    return Successor(name, view.start, view.nbytes, view.dtype, view.shape)


def _window_of(buffer: Buffer, where: ByteRange, context: Context) -> Successor:
    """A part of a buffer, under the buffer's name."""
    whole = successor_of(buffer, context)
    name = f"{_bytes(buffer, where)} of {whole.name}"
    shape = (where.nbytes // buffer.itemsize,)
    return msgspec.structs.replace(whole, name=name, address=where.start, nbytes=where.nbytes, shape=shape)


def _bytes(buffer: Buffer, where: ByteRange) -> str:
    return f"bytes {where.start - buffer.start:,} to {where.stop - buffer.start - 1:,}"
