"""Overruns that continue through the guards of other buffers: one finding, and the buffers that the overrun reached.

A launch that runs over the end of a buffer breaks the guards of the next buffers by address as well. Broken guards
belong to the same overrun when the launch was given no pointer into their buffers, was given one into the buffer where
the overrun began, and no guard between the two is intact. Called by `FindingPipeline`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import msgspec

from shadowgraph.checks.base import Detection
from shadowgraph.checks.out_of_bounds import CODE
from shadowgraph.checks.out_of_bounds.facts import OverrunDetail, overrun_of
from shadowgraph.common.internal_errors import log
from shadowgraph.model.buffers import Buffer, Ledger
from shadowgraph.model.device_nodes import NodeKind
from shadowgraph.model.findings import Culprit, Finding, Status
from shadowgraph.model.guards import Side, guards_of
from shadowgraph.model.launches import LaunchKind
from shadowgraph.model.overrun_extents import Origin, Reached
from shadowgraph.model.ranges import ByteRange
from shadowgraph.monitor.finding_store import FindingStore

_VALUE = 16  # bytes: the part of a stored value that equals the canary does not show
_REACHED = 16  # buffers listed by a finding
_OPEN = frozenset(
    map(str, (LaunchKind.CALLABLE, NodeKind.HOST, NodeKind.CONDITIONAL, NodeKind.CHILD, NodeKind.OTHER))
)  # may hold unknown pointers
_Who = tuple[str | None, str | None, int | None, str | None]
_Place = tuple[int, Side]


@dataclass(slots=True)
class _Broken:
    """The broken guard of a finding.

    Attributes
    ----------
    given
        Serials of the buffers into which each culprit was given a pointer.
    state
        Revision of the finding, and number of pointers given, when it was last examined.
    origin
        Id of the finding that this one continues.
    """

    id: int
    buffer: Buffer
    side: Side
    given: dict[_Who, set[int]] = field(default_factory=dict)
    state: tuple[int, int] = (0, 0)
    origin: int | None = None

    @property
    def place(self) -> _Place:
        return self.buffer.serial, self.side


class OverrunChain:
    """Links findings of broken guards to the finding where their overrun began.

    Called only when a guard is broken, or its culprit becomes known.

    Attributes
    ----------
    book
        The findings, which this class revises.
    """

    def __init__(self, book: FindingStore, ledger: Ledger) -> None:
        self.book, self._ledger = book, ledger
        self._broken: dict[int, _Broken] = {}  # by finding id
        self._places: dict[_Place, list[_Broken]] = {}

    def noticed(self, draft: Detection, kept: Finding) -> list[Finding]:
        """A finding was stored: link it where possible. Returns the new revisions of other findings."""
        if draft.code != CODE or draft.side is None or not kept.id or _guard(draft.buffer, draft.side) is None:
            return []
        known = self._broken_of(kept.id, draft.buffer, draft.side)
        for write in (one for one in draft.culprits if not (one.opaque or one.hull)):
            who = _who(str(write.launch.kind), write.launch.name, write.node, kept.graph)
            self._give(known, who, (pointer.view.hull for pointer in write.launch.pointers))
        return self.revised(kept)

    def _broken_of(self, id: int, buffer: Buffer, side: Side) -> _Broken:
        """The broken guard of a finding, entered by its first sighting."""
        known = self._broken.get(id)
        if known is None:
            known = self._broken[id] = _Broken(id, buffer, side)
            self._places.setdefault(known.place, []).append(known)
        return known

    def revised(self, kept: Finding) -> list[Finding]:
        """A finding was revised: its culprit may be known now. Returns the new revisions of other findings."""
        known = self._broken.get(kept.id)
        if known is None:
            return []
        for one in (kept.culprit, *kept.candidates):
            at = (a.address for a in one.arguments if a.sureness != "low" or known.buffer.range.contains(a.address))
            self._give(known, _of(one, kept), (ByteRange(address, address + 1) for address in at))
        state = kept.revision, sum(map(len, known.given.values()))
        if state == known.state:
            return []
        known.state = state
        return [finding for finding in self._settle(known) if finding.id != kept.id]

    def _give(self, known: _Broken, who: _Who, pointers: Iterable[ByteRange]) -> None:
        into = known.given.setdefault(who, set())
        for where in pointers:
            into.update(b.serial for b in self._ledger.overlapping(where.start, max(where.stop, where.start + 1)))

    def _settle(self, changed: _Broken) -> list[Finding]:
        """Recompute the links between findings, now that one of them has changed."""
        told: dict[int, Finding] = {}
        touched = {changed.origin}
        for known in [one for one in self._broken.values() if one is changed or one.origin is None]:
            origin = self._origin(known)
            if origin != known.origin:
                known.origin = origin
                told |= _by_id(self.book.tie(known.id, self._named(origin)))
            if known is changed or origin is not None:
                touched.add(origin)
        for id in touched - {None}:
            told |= _by_id(self._reach(self._broken[id]) if id is not None else None)
        return list(told.values())

    def _named(self, origin: int | None) -> Origin | None:
        first = self.book.get(origin) if origin is not None else None
        return Origin(first.buffer.name, first.buffer.serial, first.fingerprint) if first is not None else None

    # -- origin of an overrun ----------------------------------------------------------------------------------

    def _origin(self, here: _Broken) -> int | None:
        """The finding that a guard's damage continues, if all its confirmed culprits came from there."""
        finding = self.book.get(here.id)
        if finding is None or finding.culprit.status is not Status.CONFIRMED:
            return None
        sure = _confirmed(finding)
        begun = [self._begun(here, _of(one, finding)) if one.kind not in _OPEN else None for one in sure]
        return begun[0] if None not in begun else None

    def _begun(self, here: _Broken, who: _Who) -> int | None:
        """The finding where a launch began that broke a guard of a buffer that it was not given."""
        given = here.given.get(who, set())
        if here.buffer.serial in given:
            return None
        first = (one for serial in given for side in (Side.BEFORE, Side.AFTER) for one in self._at((serial, side)))
        found = [there for there in first if self._did(there, who) and self._goes_on(there, here)]
        nearest = min(found, key=lambda there: abs(there.buffer.start - here.buffer.start), default=None)
        return nearest.id if nearest is not None else None

    def _at(self, place: _Place) -> list[_Broken]:
        return self._places.get(place, [])

    def _did(self, there: _Broken, who: _Who) -> bool:
        """Whether a launch is a confirmed culprit of a broken guard."""
        finding = self.book.get(there.id)
        return finding is not None and any(_of(one, finding) == who for one in _confirmed(finding))

    def _goes_on(self, there: _Broken, here: _Broken) -> bool:
        """Whether the damage at one guard faces another one, and no guard between the two is intact."""
        up = there.buffer.start < here.buffer.start
        if there.side is not (Side.AFTER if up else Side.BEFORE):
            return False
        if not (
            self._is_broken(there.buffer, there.side, not up, up)
            and self._is_broken(here.buffer, here.side, up, not up)
        ):
            return False
        for buffer, side in self._way(here, there, up):
            if not self._is_broken(buffer, side, True, True):
                return False
            if any(one.origin == there.id for one in self._at((buffer.serial, side))):
                return True  # already linked from there
        return True

    def _way(self, here: _Broken, there: _Broken, up: bool) -> Iterator[tuple[Buffer, Side]]:
        """The sides of buffers between two guards, from one to the other; `up` when the second lies lower."""
        near, far = (Side.BEFORE, Side.AFTER) if up else (Side.AFTER, Side.BEFORE)
        if here.side is far:
            yield here.buffer, near
        each, end = here.buffer, there.buffer.start
        while True:
            previous, following = self._ledger.neighbours(each)
            after = previous if up else following
            if after is None or (after.start <= end if up else after.start >= end):
                return
            each = after
            yield each, far
            yield each, near

    def _is_broken(self, buffer: Buffer, side: Side, down: bool, up: bool) -> bool:
        """Whether a guard is damaged as far as its lower end (`down`) and its upper end (`up`). A missing guard counts
        as damaged."""
        whole = _guard(buffer, side)
        if whole is None:
            return True
        parts = [part for known in self._at((buffer.serial, side)) for part in self._damage(known)]
        if not parts:
            return False
        first, stop = min(part.start for part in parts), max(part.stop for part in parts)
        return (not down or first < whole.start + _VALUE) and (not up or stop > whole.stop - _VALUE)

    def _damage(self, known: _Broken) -> tuple[ByteRange, ...]:
        finding = self.book.get(known.id)
        if finding is None or finding.bytes is None:
            return ()
        start = known.buffer.start
        return (ByteRange(start + finding.bytes.first, start + finding.bytes.last + 1),)

    # -- reach of an overrun -----------------------------------------------------------------------------------

    def _reach(self, known: _Broken) -> Finding | None:
        """Update the list of buffers that an overrun reached, if it has changed."""
        by_buffer: dict[int, list[_Broken]] = {}
        for each in self._broken.values():
            if each.origin == known.id:
                by_buffer.setdefault(each.buffer.serial, []).append(each)
        met = sorted(by_buffer.values(), key=lambda sides: abs(sides[0].buffer.start - known.buffer.start))
        chosen = met if len(met) <= _REACHED else [*met[: _REACHED - 1], met[-1]]
        listed = tuple(one for sides in chosen if (one := self._reached(known, sides)) is not None)
        before = self.book.get(known.id)
        detail = overrun_of(before) if before is not None else OverrunDetail()
        if before is None or (detail.reaches, detail.reaches_total) == (listed, len(met)):
            return None
        kept = self.book.set_detail(known.id, msgspec.structs.replace(detail, reaches=listed, reaches_total=len(met)))
        if kept is not None and _gist(kept) != _gist(before):
            said = "finding #%d, revision %d: %s"
            log(logging.WARNING, said, kept.id, kept.revision, kept.message, finding=kept)
        return kept

    def _reached(self, known: _Broken, sides: list[_Broken]) -> Reached | None:
        """The entry of a reached buffer, with one or both guards broken."""
        far = next((each for each in sides if each.side is known.side), None)
        told, parts = self.book.get((far or sides[0]).id), [part for each in sides for part in self._damage(each)]
        if told is None or not parts:
            return None
        up = known.side is Side.AFTER
        beyond = max(part.stop - known.buffer.stop if up else known.buffer.start - part.start for part in parts)
        about = told.buffer
        return Reached(
            name=about.name,
            serial=about.serial,
            nbytes=about.nbytes,
            dtype=about.dtype,
            shape=about.shape,
            over=far is not None,
            beyond=beyond,
            phase=told.phase,
            graph=told.graph,
            replay=told.replay,
            late=told.confidence == "low",
        )


def _guard(buffer: Buffer, side: Side) -> ByteRange | None:
    return next((guard.whole for guard in guards_of(buffer, 1) if guard.side is side), None)


def _confirmed(finding: Finding) -> list[Culprit]:
    return [one for one in (finding.culprit, *finding.candidates) if one.status is Status.CONFIRMED]


def _gist(finding: Finding) -> list[tuple[int, bool]]:
    return [(one.serial, one.over) for one in overrun_of(finding).reaches]


def _of(culprit: Culprit, finding: Finding) -> _Who:
    return _who(culprit.kind, culprit.name, culprit.node, finding.graph)


def _who(kind: str | None, name: str | None, node: int | None, graph: str | None) -> _Who:
    """Identity of a launch across sightings: a node of its graph, or an eager launch, whatever replay that prepared."""
    return kind, name, node, graph if node is not None else None


def _by_id(finding: Finding | None) -> dict[int, Finding]:
    return {finding.id: finding} if finding is not None else {}
