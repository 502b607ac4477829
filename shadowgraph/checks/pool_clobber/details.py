"""Details of a pool clobber, with names. Called by the finding pipeline, in the thread of the event that reports."""

from __future__ import annotations

from dataclasses import dataclass

from shadowgraph.checks.base import Context, Detection
from shadowgraph.checks.pool_clobber.facts import Access, ClobberDetail
from shadowgraph.checks.successors import successor_of
from shadowgraph.model.buffers import Buffer


@dataclass(frozen=True, slots=True)
class Clobbered:
    """What a check knows of a pool clobber beside its detection; see `ClobberDetail`."""

    owner: str
    fate: str
    by: Buffer
    by_owner: str
    read: Access
    made: Access
    apart: bool


def clobber_of(draft: Detection, context: Context) -> ClobberDetail | None:
    """The details of a detection about a pool clobber; None for any other detection."""
    facts = draft.facts
    if not isinstance(facts, Clobbered):
        return None
    by = successor_of(facts.by, context)
    return ClobberDetail(facts.owner, facts.fate, by, facts.by_owner, facts.read, facts.made, facts.apart)
