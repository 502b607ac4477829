"""Details of host memory that a copy node lost: both sides of the copy under names, and what occupies the bytes now.

Called by the finding pipeline, in the thread of the event that reports.
"""

from __future__ import annotations

from dataclasses import dataclass

from shadowgraph.checks.base import Context, Detection
from shadowgraph.checks.host_source.facts import Fate, HostSourceDetail
from shadowgraph.checks.successors import memory_at, successor_of
from shadowgraph.model.buffers import Buffer
from shadowgraph.model.host_copies import HostCopy, HostKind

_VICTIMS = 8


@dataclass(frozen=True, slots=True)
class Ended:
    """A copy node, what became of its host memory, and the host memory that occupies the bytes now."""

    copy: HostCopy
    fate: Fate
    victims: tuple[Buffer, ...] = ()


def ending_of(draft: Detection, context: Context) -> HostSourceDetail | None:
    """The details of a detection about a host source, with names; None for any other detection."""
    ended, buffer = draft.facts, draft.buffer
    if not isinstance(ended, Ended):
        return None
    copy = ended.copy
    return HostSourceDetail(
        fate=ended.fate,
        to_host=copy.to_host,
        pinned=copy.block is not None and copy.block.kind is HostKind.PINNED,
        node=copy.node,
        first=draft.first - buffer.start,
        last=draft.last - buffer.start,
        device=memory_at(copy.device, None, context),
        victims=tuple(successor_of(each, context) for each in ended.victims[:_VICTIMS]),
    )
