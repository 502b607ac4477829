"""Findings that are consequences of an overrun: a buffer that it wrote over then breaks rules, or changes in a replay.

A consequence stays a finding of its own and names its cause in `Finding.caused_by`. Two rules. The cause is sure where
all launches named by the finding are the overrun's confirmed launch, which was not given the finding's buffer. It is a
possible one where no launch of the finding is confirmed, and its bytes lie where the overrun went, in one phase of one
replay. A finding whose confirmed launch is another one is independent. SG109 names the launch that took an index, or
the last launch that was seen to write, which proves nothing on a device: an overrun's stores are not seen there.

A dangling pointer (SG104) is a cause as well: where a replay writes on through memory that was freed, past the end of
the smaller buffer that has its first bytes now, the guard that breaks is evidence of that.

Used by `FindingPipeline`, in the thread of an event, under the debugger's lock.
"""

from __future__ import annotations

from collections.abc import Iterator

from shadowgraph.checks.dangling.facts import DanglingDetail
from shadowgraph.checks.kind import CulpritIs
from shadowgraph.checks.kinds import kind_of
from shadowgraph.checks.out_of_bounds.facts import overrun_of
from shadowgraph.model.buffers import Buffer
from shadowgraph.model.findings import Finding
from shadowgraph.model.guards import Side
from shadowgraph.model.overrun_extents import CausedBy, Reached
from shadowgraph.model.phases import Phase
from shadowgraph.model.ranges import ByteRange
from shadowgraph.monitor.broken_guards import VALUE, BrokenGuard, BrokenGuards, confirmed_of, who_of
from shadowgraph.monitor.overrun_chain import OverrunChain


class Consequences:
    """Sets and withdraws `Finding.caused_by`."""

    def __init__(self, guards: BrokenGuards, overruns: OverrunChain) -> None:
        self._guards, self._overruns = guards, overruns
        self._over: dict[int, set[int]] = {}  # ids of overruns' findings, by the serials of buffers that they reached

    def of(self, *changed: Finding) -> list[Finding]:
        """Findings were stored or revised: set the cause of each, and of those that are about buffers which they
        reached. Returns the new revisions of findings."""
        concerned = {finding.id: finding for finding in changed if finding.id}
        for finding in changed:
            serials = {reached.serial for reached in overrun_of(finding).reaches}
            for serial in serials:
                self._over.setdefault(serial, set()).add(finding.id)
            if serials:
                about = (each for each in self._guards.book if _values_of(each) in serials or _names(each, finding))
                concerned |= {each.id: each for each in about}
        told: dict[int, Finding] = {}
        for id in concerned:
            told |= {finding.id: finding for finding in self._judge(id)}
        return list(told.values())

    def _judge(self, id: int) -> Iterator[Finding]:
        """Set the cause of a finding, if it has changed."""
        finding = self._guards.book.get(id)
        if finding is None:
            return
        cause = self._cause(finding) if finding.continues is None else None
        if cause == finding.caused_by:
            return
        kept = self._guards.book.set_cause(id, cause)
        if kept is None:
            return
        yield kept
        if cause is not None and cause.sure and kept.bytes is not None and self._guards.get(cause.finding) is not None:
            yield from self._shown(cause.finding, kept, kept.bytes.first, kept.bytes.last + 1)

    def _shown(self, cause: int, kept: Finding, first: int, stop: int) -> Iterator[Finding]:
        """A consequence shows which bytes the overrun changed."""
        buffer = self._guards.ledger.get(kept.buffer.serial)
        if buffer is None:
            return
        start = kept.buffer.address
        where = ByteRange(start + first, start + stop).intersect(buffer.range)
        revised = self._overruns.changed(cause, buffer, where) if where is not None else None
        if revised is not None:
            yield revised

    def _cause(self, finding: Finding) -> CausedBy | None:
        own, serial = self._guards.get(finding.id), _values_of(finding)
        if own is not None:
            dangling = self._dangling(finding)
            if dangling is not None:
                return self._named(dangling.id, sure=_is_known(dangling))
            return self._named(own.perhaps, sure=False) if own.perhaps is not None else None
        buffer = self._guards.ledger.get(serial) if serial is not None and serial in self._over else None
        if buffer is None:
            return None
        found = [cause for id in self._over[buffer.serial] if (cause := self._from(id, finding, buffer)) is not None]
        return min(found, key=lambda cause: (not cause.sure, cause.finding), default=None)

    def _dangling(self, finding: Finding) -> Finding | None:
        """The dangling pointer through which a replay broke a guard, if all that it changed was the freed buffer's."""
        if finding.phase is not Phase.REPLAY or finding.bytes is None:
            return None
        start = finding.buffer.address
        broken = ByteRange(start + finding.bytes.first, start + finding.bytes.last + 1)
        return next((each for each in self._guards.book if _wrote_on(each, finding, broken)), None)

    def _from(self, id: int, finding: Finding, buffer: Buffer) -> CausedBy | None:
        """The reference to an overrun, if a finding about the values of a buffer follows from it."""
        known = self._guards.get(id)
        overrun = self._guards.finding(known) if known is not None else None
        if known is None or overrun is None or overrun.continues is not None or known.buffer is buffer:
            return None
        reached = next((one for one in overrun_of(overrun).reaches if one.serial == buffer.serial), None)
        if reached is None:
            return None
        if _is_by(finding, overrun, known):
            return self._named(id, sure=True)
        if _is_possible(finding, overrun, known) and _goes_into(buffer, reached, known):
            return self._named(id, sure=False) if _is_there(finding, reached, known) else None
        return None

    def _named(self, id: int, sure: bool) -> CausedBy | None:
        cause = self._guards.book.get(id)
        if cause is None or cause.suppressed_by:  # a hidden one takes no other finding with it
            return None
        return CausedBy(cause.id, cause.code, cause.fingerprint, cause.buffer.name, cause.buffer.serial, sure)


def _wrote_on(dangling: Finding, finding: Finding, broken: ByteRange) -> bool:
    """Whether broken bytes, of a buffer that has memory of a freed one, were among those that the graph was given."""
    detail = dangling.detail
    if not isinstance(detail, DanglingDetail) or not detail.writes or dangling.graph != finding.graph:
        return False
    start = dangling.buffer.address
    given = ByteRange(start + detail.first, start + detail.last + 1)
    took = any(victim.serial == finding.buffer.serial for victim in detail.victims)
    return took and given.start <= broken.start and broken.stop <= given.stop


def _is_known(dangling: Finding) -> bool:
    return isinstance(dangling.detail, DanglingDetail) and dangling.detail.known


def _values_of(finding: Finding) -> int | None:
    return kind_of(finding.code).values_of(finding)


def _names(finding: Finding, cause: Finding) -> bool:
    return finding.caused_by is not None and finding.caused_by.finding == cause.id


def _is_by(finding: Finding, overrun: Finding, known: BrokenGuard) -> bool:
    """Whether all launches named by a finding are the overrun's own, which was not given the finding's buffer."""
    if kind_of(finding.code).culprit_is(finding) is CulpritIs.READER:
        return False
    sure = {who_of(one, overrun) for one in confirmed_of(overrun)}
    named = [who_of(one, finding) for one in (finding.culprit, *finding.candidates) if one.name is not None]
    strange = all(finding.buffer.serial not in known.given.get(each, {finding.buffer.serial}) for each in named)
    return bool(named) and strange and sure.issuperset(named)


def _is_possible(finding: Finding, overrun: Finding, known: BrokenGuard) -> bool:
    """Whether a finding belongs to the step of an overrun, and no launch is confirmed to have written its bytes after
    it."""
    role = kind_of(finding.code).culprit_is(finding)
    proves = role is CulpritIs.WRITER or (role is CulpritIs.LAST_SEEN and bool(known.stores))
    return not (proves and confirmed_of(finding)) and _together(finding, known, overrun)


def _goes_into(buffer: Buffer, reached: Reached, known: BrokenGuard) -> bool:
    """Whether an overrun went as far as a buffer's own bytes, as far as is known."""
    if reached.overwritten is not None:
        return reached.overwritten > 0
    near = buffer.start - known.edge if known.side is Side.AFTER else known.edge - buffer.stop
    return reached.beyond > near - VALUE


def _is_there(finding: Finding, reached: Reached, known: BrokenGuard) -> bool:
    """Whether a finding's bytes lie where an overrun went."""
    role, bytes, size = kind_of(finding.code).culprit_is(finding), finding.bytes, finding.buffer.nbytes
    if role is CulpritIs.READER or bytes is None:
        return role is CulpritIs.READER
    up, depth = known.side is Side.AFTER, reached.overwritten
    near, far = (bytes.first, bytes.last + 1) if up else (size - 1 - bytes.last, size - bytes.first)
    if depth is not None:
        return near < depth if role is CulpritIs.LAST_SEEN else far <= depth
    return near < VALUE or role is CulpritIs.LAST_SEEN


def _together(finding: Finding, known: BrokenGuard, overrun: Finding) -> bool:
    """Whether a finding and an overrun belong to one phase, or the overrun to the preparation of the finding's
    replay."""
    if (finding.phase, finding.graph) == (overrun.phase, overrun.graph) and finding.replay is None:
        return True
    if finding.graph is None or finding.graph != overrun.graph:
        return False
    if finding.phase is Phase.PREPARE and overrun.phase is Phase.REPLAY:
        return False
    replays = {overrun.replay, *(replay for _, _, replay, exact in known.dates if not exact)}
    return finding.replay in replays
