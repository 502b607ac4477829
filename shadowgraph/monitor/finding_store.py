"""The findings of a run: one per cause, counted, suppressed by fingerprint."""

from __future__ import annotations

import itertools
import os
from pathlib import Path
from typing import Any

import msgspec

from shadowgraph.checks.verdicts import verdict
from shadowgraph.common.errors import MissingFileError, UsageError
from shadowgraph.model.findings import NAP, ByteFacts, Culprit, DanglingDetail, Finding, Severity, Status, fingerprint
from shadowgraph.model.overrun_extents import Origin, Reached
from shadowgraph.monitor.sampling.nap_sightings import Cause, NapSightings
from shadowgraph.monitor.sampling.nap_sightings import Where as _Where

MOST = 4096  # causes kept: with each its texts and bytes, some KB, in every report
_Launch = tuple[_Where, str | None, int | None, str | None]
_Place = tuple[str, int, str, str, str | None]


def read_suppressions(path: str | os.PathLike[str]) -> frozenset[str]:
    """Fingerprints of a file: one a line, the rest of the line and ``#`` comments ignored.

    Raises
    ------
    MissingFileError
        When it cannot be read.
    UsageError
        For a line that does not start with a fingerprint.
    """
    try:
        lines = Path(path).read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise MissingFileError(f"cannot read suppressions {path}: {_why(error)}") from None
    found = set()
    for number, line in enumerate(lines, 1):
        words = line.split("#", 1)[0].split()
        if not words:
            continue
        if len(words[0]) != 12 or any(c not in "0123456789abcdef" for c in words[0]):
            raise UsageError(f"{path}:{number}: {words[0]!r} is no fingerprint (12 hexadecimal digits, see a report)")
        found.add(words[0])
    return frozenset(found)


class FindingStore:
    """Findings in order of arrival.

    Attributes
    ----------
    suppressed
        How many findings (occurrences too) matched a suppression.
    dropped
        Sightings of further causes after the first `most`, which are not kept: a server that allocates the same broken
        buffer for each request has a cause for each, and its memory is not ours to fill.
    """

    def __init__(self, suppressions: frozenset[str] = frozenset(), most: int = MOST) -> None:
        self._ids = itertools.count(1)
        self._by_cause: dict[Cause, Finding] = {}
        self._latest: dict[Cause, Finding] = {}  # the last sighting of each
        self._causes: dict[int, Cause] = {}  # by id
        self._located: dict[_Place, Cause] = {}  # those whose culprit a closer look confirmed
        self._launches: dict[_Launch, Cause] = {}  # the same, by the launch
        self._late: dict[_Where, Cause] = {}  # those that were seen too late to know who did it
        self._naps = NapSightings()
        self._suppressions = suppressions
        self.suppressed = self.dropped = 0
        self._most = most

    def add(self, finding: Finding, key: str, mark: str | None = None, exact: bool = False) -> tuple[Finding, bool]:
        """Enter a finding, or count one more occurrence of a known cause.

        A known cause keeps phase, graph and replay of its first sighting, and the extreme bytes of all. A rule that a
        check finds as broken as it was seen before is no further occurrence: nothing happened since. A sighting whose
        culprit is not confirmed belongs to a cause whose culprit a closer look has confirmed there; one whose culprit
        is, to a cause of the same launch, or to one that was seen too late to know who did it. What replays that passed
        unseen have left belongs to the cause that was last seen there, and is suppressed where that was; if it was the
        first, the next sighting there says when it happens, and who does it, and that it is a note if it is suppressed.

        Parameters
        ----------
        mark
            Its fingerprint, where that is not of the finding as it is.
        exact
            Every launch's stores are known: what none of them did, no launch did, however late it was seen.

        Returns
        -------
        tuple
            The finding as kept, and whether it is new and not suppressed. One that is not kept has no id.
        """
        finding = msgspec.structs.replace(finding, fingerprint=mark or fingerprint(finding))
        where = _where(finding)
        if self._naps.suppressed(finding, where, finding.fingerprint in self._suppressions):
            return self._suppress(finding, where), False
        cause = (finding.code, finding.buffer.serial, _side(finding), key)
        cause = self._naps.cause_of(finding, where, cause, self._by_cause)
        if cause not in self._by_cause and finding.detected_at != NAP:
            cause = self._known_as(finding) or cause
        known, latest = self._by_cause.get(cause), self._latest.get(cause)
        if known is None and len(self._by_cause) >= self._most:
            self.dropped += 1
            return finding, False
        self._latest[cause] = finding
        self._naps.entered(finding, where, cause, known is None)
        if known is None or latest is None:
            kept = msgspec.structs.replace(finding, id=next(self._ids))
            self._by_cause[cause] = kept
            self._causes[kept.id] = cause
            if _nobody_knows(kept) and not exact:
                self._late[_where(kept)] = cause
            return kept, True
        if self._naps.dates(finding, where, cause):
            kept = self._by_cause[cause] = _dated(known, finding)
            return kept, True
        if _still_broken(finding, known, latest):
            return known, False
        kept = _merged(known, finding)
        self._by_cause[cause] = kept
        promoted = known.severity is Severity.NOTE and kept.severity is Severity.ERROR
        return kept, promoted

    def _suppress(self, finding: Finding, where: _Where) -> Finding:
        """Count a sighting that is suppressed; one that was kept before its replay was known becomes a note."""
        self.suppressed += 1
        withdrawn = self._naps.withdrawn(finding, where)
        if withdrawn is None:
            return finding
        kept = msgspec.structs.replace(_dated(self._by_cause[withdrawn], finding), severity=Severity.NOTE)
        self._by_cause[withdrawn] = kept
        return kept

    def sentence(self) -> str | None:
        """What was not kept, for the report; None where all was."""
        if not self.dropped:
            return None
        return f"findings of the first {self._most:,} causes are kept; {self.dropped:,} sightings of others are not"

    @property
    def stirs(self) -> int:
        """A number that changes with each new finding, and with sightings in naps that are a reason to watch."""
        return len(self._by_cause) + self._naps.stirs

    def __len__(self) -> int:
        """Findings and notes, without those that are suppressed."""
        return len(self._by_cause)

    def get(self, id: int) -> Finding | None:
        """A finding by its id."""
        cause = self._causes.get(id)
        return self._by_cause[cause] if cause is not None else None

    def revise(self, id: int, culprit: Culprit, candidates: tuple[Culprit, ...] = ()) -> Finding | None:
        """A closer look has shown who did it, or that it was not seen again: a new revision, or None for no such id.

        Cause and fingerprint stay what they were at the first sighting.
        """
        kept, cause = self._amend(id, culprit=culprit, candidates=candidates), self._causes.get(id)
        if kept is not None and cause is not None and culprit.status is Status.CONFIRMED:
            self._located[_place(kept)] = cause
            self._launches.setdefault(_launch(kept), cause)
        return kept

    def tie(self, id: int, origin: Origin | None) -> Finding | None:
        """A finding goes on from another one, and is a note beside it, or does not any more: a new revision."""
        return self._amend(id, continues=origin, severity=Severity.ERROR if origin is None else Severity.NOTE)

    def reach(self, id: int, reaches: tuple[Reached, ...], total: int) -> Finding | None:
        """Which buffers an overrun went on to: a new revision."""
        return self._amend(id, reaches=reaches, reaches_total=total)

    def _amend(self, id: int, **facts: Any) -> Finding | None:
        known, cause = self.get(id), self._causes.get(id)
        if known is None or cause is None:
            return None
        kept = msgspec.structs.replace(known, revision=known.revision + 1, **facts)
        kept = self._by_cause[cause] = msgspec.structs.replace(kept, message=verdict(kept))
        return kept

    def _known_as(self, finding: Finding) -> Cause | None:
        """The cause that a sighting under a new key belongs to."""
        if finding.culprit.status is not Status.CONFIRMED:
            return self._located.get(_place(finding))
        late = self._late.get(_where(finding))
        if late is not None and not _nobody_knows(self._by_cause[late]):
            late = None
        return self._launches.get(_launch(finding), late)

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Errors, in order of first arrival."""
        return tuple(f for f in self._by_cause.values() if f.severity is Severity.ERROR)

    @property
    def notes(self) -> tuple[Finding, ...]:
        """What is worth knowing and no fault."""
        return tuple(f for f in self._by_cause.values() if f.severity is Severity.NOTE)


def _side(finding: Finding) -> str:
    return str(finding.bytes.side) if finding.bytes and finding.bytes.side else ""


def _where(finding: Finding) -> _Where:
    return finding.code, finding.buffer.serial, _side(finding)


def _place(finding: Finding) -> _Place:
    return *_where(finding), str(finding.phase), finding.graph


def _launch(finding: Finding) -> _Launch:
    culprit = finding.culprit
    return _where(finding), culprit.name, culprit.node, finding.graph if culprit.node is not None else None


def _nobody_knows(finding: Finding) -> bool:
    """Whether damage was seen too late to tell who did it, and no closer look has told."""
    culprit = finding.culprit
    return finding.code == "SG101" and finding.confidence == "low" and culprit.name is None and culprit.kind is None


def _still_broken(finding: Finding, *before: Finding) -> bool:
    """Whether a check on request sees a rule broken in the way that it was seen before."""
    if finding.code != "SG109" or finding.detected_at != "check":
        return False
    sight = finding.severity, finding.rule, finding.bytes
    return any((seen.severity, seen.rule, seen.bytes) == sight for seen in before)


def _merged(known: Finding, again: Finding) -> Finding:
    """The first sighting with one more occurrence; the later one's facts where they are surer or worse."""
    if known.continues is not None:
        again = msgspec.structs.replace(again, severity=known.severity)
    if known.severity is Severity.NOTE and again.severity is Severity.ERROR:
        return msgspec.structs.replace(
            again, id=known.id, revision=known.revision + 1, occurrences=known.occurrences + 1
        )
    known = msgspec.structs.replace(known, occurrences=known.occurrences + 1)
    if known.ending is not None and again.ending is not None:
        return _ended(known, known.ending, again.ending)
    if known.severity is not again.severity or known.rule is not None or known.stale is not None:  # an example
        return known
    return _widened(known, again)


def _dated(known: Finding, again: Finding) -> Finding:
    """What happened in a nap, by its first sighting outside one: whose bytes alone are known to be its culprit's."""
    severity = known.severity if known.severity is Severity.ERROR else again.severity
    return msgspec.structs.replace(
        again, id=known.id, revision=known.revision + 1, occurrences=known.occurrences + 1, severity=severity
    )


def _ended(known: Finding, before: DanglingDetail, now: DanglingDetail) -> Finding:
    """The known finding; with who has the bytes, once somebody has."""
    if before.victims or not now.victims:
        return known
    told = msgspec.structs.replace(known, ending=msgspec.structs.replace(before, victims=now.victims))
    return msgspec.structs.replace(told, revision=known.revision + 1, message=verdict(told))


def _widened(known: Finding, again: Finding) -> Finding:
    """The known finding with the extreme bytes of both, shown by what the worse sighting left."""
    old, new = known.bytes, again.bytes
    if old is None or new is None:
        return known
    shown, bytes_shown = (again, new) if _extent(new) > _extent(old) else (known, old)
    merged = ByteFacts(
        first=min(old.first, new.first),
        last=max(old.last, new.last),
        count=max(old.count, new.count),
        ranges=bytes_shown.ranges,
        ranges_total=bytes_shown.ranges_total,
        side=old.side,
        distance=min(old.distance, new.distance),
        truncated=old.truncated or new.truncated,
    )
    if merged == old and shown is known:
        return known
    grown = _extent(merged)[0] > _extent(old)[0]
    wider = msgspec.structs.replace(
        known, bytes=merged, window=shown.window, rows=shown.rows, revision=known.revision + grown
    )
    return msgspec.structs.replace(wider, message=verdict(wider))


def _extent(facts: ByteFacts) -> tuple[int, int]:
    return facts.last - facts.first, facts.count


def _why(error: OSError | UnicodeDecodeError) -> str:
    return (error.strerror or str(error)) if isinstance(error, OSError) else "it is no text in UTF-8"
