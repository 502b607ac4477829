"""Details of a dangling pointer: the allocations that now occupy the range, and the owner's current target.

Called by the finding pipeline, in the thread of the event that reports.
"""

from __future__ import annotations

from dataclasses import dataclass

from shadowgraph.checks.base import Context, Detection
from shadowgraph.checks.dangling.facts import DanglingDetail
from shadowgraph.checks.successors import successor_of
from shadowgraph.model.buffers import Buffer
from shadowgraph.model.findings import Successor
from shadowgraph.model.owners import Owner
from shadowgraph.model.ranges import ByteRange

_VICTIMS = 8


@dataclass(frozen=True, slots=True)
class Ended:
    """How a graph uses a buffer that was freed or moved, and the buffers that now occupy its bytes.

    Attributes
    ----------
    live_in
        Whether the graph reads the bytes before it writes them.
    written
        Whether the graph writes them at all.
    known
        Whether that is known of the first use, and not only that a kernel was given a pointer.
    moved
        Whether the storage lives on at another address or with another size, or its tensor was resized.
    victims
        Live buffers that occupy bytes that the graph was given.
    """

    live_in: bool
    written: bool
    moved: bool
    known: bool = True
    victims: tuple[Buffer, ...] = ()


def ending_of(draft: Detection, context: Context) -> DanglingDetail | None:
    """The details of a detection about a dangling pointer, with names; None for any other detection."""
    ended, buffer = draft.facts, draft.buffer
    if not isinstance(ended, Ended):
        return None
    span = ByteRange(draft.first, draft.last + 1)
    victims = [successor_of(victim, context) for victim in ended.victims]
    victims += [_seen(owner) for owner in _untracked(span, buffer, context)]
    return DanglingDetail(
        access="live-in" if ended.live_in else "external-out",
        writes=ended.written,
        fate="moved" if ended.moved else "freed",
        first=draft.first - buffer.start,
        last=draft.last - buffer.start,
        victims=tuple(victims[:_VICTIMS]),
        replaced_by=_replacement(buffer, context),
        known=ended.known,
        freed_by=buffer.freed_by,
    )


def _seen(owner: Owner) -> Successor:
    view = owner.view
    return Successor(owner.path, view.start, view.nbytes, view.dtype, view.shape)


def _untracked(span: ByteRange, buffer: Buffer, context: Context) -> list[Owner]:
    """Owners of memory in the span that is in no ledger; one for each storage."""
    found: dict[int, Owner] = {}
    for owner in _later(buffer, context):
        if owner.view.hull.overlaps(span) and context.ledger.owner(owner.view.start, owner.view.stop) is None:
            found.setdefault(owner.view.storage_address, owner)
    return list(found.values())


def _replacement(buffer: Buffer, context: Context) -> Successor | None:
    """The current target of an owner of the buffer, if that is other memory."""
    _, names = context.names.name_of(buffer)
    by_path = {owner.path: owner for owner in _later(buffer, context)}
    for owner in (by_path[name] for name in names if name in by_path):
        now = context.ledger.owner(owner.view.start, owner.view.stop)
        return successor_of(now, context) if now is not None else _seen(owner)
    return None


def _later(buffer: Buffer, context: Context) -> list[Owner]:
    """Owners that may lead to memory allocated after a buffer: all except owners that were walked once and may have
    been the buffer's own, as their memory had its place and size."""
    fresh = {id(owner) for owner in context.names.living(fresh=True)}
    place = buffer.start, buffer.nbytes
    return [
        owner
        for owner in context.names.living()
        if id(owner) in fresh or (owner.view.storage_address, owner.view.storage_nbytes) != place
    ]
