"""Overruns that continue through the guards of other buffers: one finding, with its extent and what it ran over.

A launch that runs over the end of a buffer breaks the guards of the next buffers by address as well. `overrun_origins`
says which broken guards belong to one overrun, `overrun_reach` how far it went. Called by `FindingPipeline`, in the
thread of an event, under the debugger's lock.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

import msgspec

from shadowgraph.checks.base import Detection
from shadowgraph.checks.out_of_bounds import CODE
from shadowgraph.common.internal_errors import log
from shadowgraph.model.buffers import Buffer
from shadowgraph.model.findings import Finding
from shadowgraph.model.guards import Side
from shadowgraph.model.overrun_extents import Origin
from shadowgraph.model.ranges import ByteRange, RangeSet
from shadowgraph.monitor.broken_guards import (
    BrokenGuard,
    BrokenGuards,
    Date,
    Who,
    date_of,
    is_late,
    serials_at,
    who,
    who_of,
)
from shadowgraph.monitor.overrun_origins import Run, confirmed_origin, is_confirmed
from shadowgraph.monitor.overrun_reach import NameOf, detail_of
from shadowgraph.tracking.writes import Write

_GAP = 4096  # bytes that a strided overrun may leave out, at least
_FAR = 1 << 40  # bytes


class OverrunChain:
    """Links findings of broken guards to the finding where their overrun began.

    Called only when a guard is broken, or its culprit becomes known.

    Attributes
    ----------
    guards
        The broken guards, with the findings, which this class revises.
    """

    def __init__(self, guards: BrokenGuards, name_of: NameOf) -> None:
        self.guards, self._name_of = guards, name_of
        self._fresh: set[Date] = set()  # boundaries whose evidence is being dispatched
        self._waiting: dict[int, BrokenGuard] = {}  # guards seen broken at these

    def noticed(self, draft: Detection, kept: Finding) -> list[Finding]:
        """A finding was stored: link it where possible. Returns the new revisions of other findings."""
        if draft.code != CODE or draft.side not in (Side.BEFORE, Side.AFTER) or not kept.id:
            return []
        known = self.guards.enter(kept.id, draft.buffer, draft.side)
        known.seen_at(draft.checkpoint, is_late(draft))
        self._fresh.add(date_of(draft.checkpoint))
        self._waiting[known.id] = known
        self._take_launches(known, draft, kept)
        return self._revised(known, kept, own=True)

    def _take_launches(self, known: BrokenGuard, draft: Detection, kept: Finding) -> None:
        """Note what the possible culprits were given, and what those with known stores wrote."""
        for write in draft.culprits:
            if write.opaque or write.hull:
                known.suspected = True
                continue
            by = who(str(write.launch.kind), write.launch.name, write.node, kept.graph)
            self._give(known, by, (pointer.view.hull for pointer in write.launch.pointers))
            for part in _strayed(write, known):
                known.stores.add(part)
        known.suspected = known.suspected or bool(draft.logged)

    def revised(self, kept: Finding) -> list[Finding]:
        """A finding was revised: its culprit may be known now. Returns the new revisions of other findings."""
        known = self.guards.get(kept.id)
        return self._revised(known, kept, own=False) if known is not None else []

    def _revised(self, known: BrokenGuard, kept: Finding, own: bool) -> list[Finding]:
        """Settle what has changed; with `own` the finding itself was seen, so that its extent is no new revision."""
        for one in (kept.culprit, *kept.candidates):
            at = (a.address for a in one.arguments if a.sureness != "low" or known.buffer.range.contains(a.address))
            self._give(known, who_of(one, kept), (ByteRange(address, address + 1) for address in at))
        state = kept.revision, sum(map(len, known.given.values())), len(known.dates)
        if state == known.state:
            return []
        known.state = state
        if own:
            self._reach(known, revises=False)
        return [finding for finding in self._settle(known) if finding.id != kept.id]

    def judged(self) -> list[Finding]:
        """All evidence that has arrived was dispatched: guards that were seen broken without their overrun are findings
        of their own. Returns the new revisions of findings."""
        if not self._fresh:
            return []
        self._fresh.clear()
        waiting, self._waiting = list(self._waiting.values()), {}
        told: dict[int, Finding] = {}
        for known in waiting:
            if known.origin is not None and not is_confirmed(self.guards.finding(known)):
                told |= {finding.id: finding for finding in self._settle(known)}
        return list(told.values())

    def changed(self, id: int, buffer: Buffer, where: ByteRange) -> Finding | None:
        """A consequence shows which bytes of a neighbour an overrun changed."""
        known = self.guards.get(id)
        if known is None or known.changed.get(buffer.serial) == where:
            return None
        known.changed[buffer.serial] = where
        known.passed.setdefault(buffer.serial, buffer)
        return self._reach(known)

    def _give(self, known: BrokenGuard, by: Who, pointers: Iterable[ByteRange]) -> None:
        known.given.setdefault(by, set()).update(serials_at(self.guards.ledger, pointers))

    def _settle(self, changed: BrokenGuard) -> list[Finding]:
        """Recompute the links between findings, now that one of them has changed."""
        run = Run.around(self.guards, changed)
        concerned = {known.id: known for known in (changed, *run.parts)}
        concerned |= {known.id: known for known in self.guards if known.origin is None}
        before = {id: known.origin for id, known in concerned.items()}
        for known in concerned.values():
            if is_confirmed(self.guards.finding(known)):
                known.origin, known.perhaps = confirmed_origin(self.guards, known), None
        run.judge(self._fresh)
        told = [self._tie(known) for known in concerned.values()]
        roots = {changed.id, changed.origin, *before.values(), *(known.origin for known in run.parts)}
        roots |= {known.origin for id, known in concerned.items() if known.origin != before[id]}
        told += [self._reach(root) for id in roots if id is not None and (root := self.guards.get(id)) is not None]
        return list({finding.id: finding for finding in told if finding is not None}.values())

    def _tie(self, known: BrokenGuard) -> Finding | None:
        """Link a finding to the overrun that it continues, or undo the link, if that has changed."""
        finding, origin = self.guards.finding(known), self._named(known.origin)
        if finding is None or finding.continues == origin:
            return None
        return self.guards.book.tie(known.id, origin)

    def _named(self, origin: int | None) -> Origin | None:
        first = self.guards.book.get(origin) if origin is not None else None
        if first is None or first.suppressed_by:  # a hidden one takes no other finding with it
            return None
        return Origin(first.buffer.name, first.buffer.serial, first.fingerprint, first.id)

    def _reach(self, known: BrokenGuard, revises: bool = True) -> Finding | None:
        """Update the extent of an overrun, and the list of buffers that it reached, if they have changed."""
        before = self.guards.finding(known)
        if before is None or before.bytes is None:
            return None
        detail = detail_of(self.guards, known, before, self._name_of)
        if known.origin is not None:  # part of another finding, which has them
            detail = msgspec.structs.replace(detail, reaches=(), reaches_total=0)
        if detail == before.detail:
            return None
        kept = self.guards.book.set_detail(known.id, detail, revises)
        if kept is not None and revises and known.origin is None and kept.message != before.message:
            said = "finding #%d, revision %d: %s"
            log(logging.WARNING, said, kept.id, kept.revision, kept.message, finding=kept)
        return kept


def _strayed(write: Write, known: BrokenGuard) -> list[ByteRange]:
    """What a launch with known stores wrote beyond a buffer's edge, up to the next memory that it was given, and as far
    as no gap is larger than the buffer itself: beyond that it may follow addresses that are stored in memory."""
    if write.stores is None:
        return []
    views = (pointer.view for pointer in write.launch.pointers)
    given = RangeSet.of(ByteRange(v.storage_address, v.storage_address + v.storage_nbytes) for v in views)
    up, edge = known.side is Side.AFTER, known.edge
    stop = min((v.start for v in given if v.start >= edge), default=edge + _FAR) if up else edge
    start = edge if up else max((v.stop for v in given if v.stop <= edge), default=max(0, edge - _FAR))
    parts = (write.ranges - given).intersection(ByteRange(start, stop))
    found: list[ByteRange] = []
    for part in parts if up else reversed(parts):
        gap = part.start - edge if up else edge - part.stop
        if gap > max(known.buffer.nbytes, _GAP):
            break
        found.append(part)
        edge = part.stop if up else part.start
    return found
