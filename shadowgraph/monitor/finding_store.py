"""Store of a run's findings: one entry per cause, with counts, revisions, and what suppression rules hide.

Written by `FindingPipeline` and `OverrunChain`, in the thread of an event; has no lock of its own.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import msgspec

from shadowgraph.checks.out_of_bounds.facts import overrun_of
from shadowgraph.model.findings import Culprit, Finding, Severity, Status, fingerprint
from shadowgraph.model.kinds import Detail
from shadowgraph.model.overrun_extents import CausedBy, Origin
from shadowgraph.model.suppressions import Rule, RuleCount, Suppressions
from shadowgraph.monitor.merge_rules import attributed, merged, shows_nothing_new, writer_unknown
from shadowgraph.monitor.suppressed_sightings import SuppressedSightings
from shadowgraph.monitor.unobserved_sightings import Cause, UnobservedSightings
from shadowgraph.monitor.unobserved_sightings import Where as _Where

MOST = 4096  # causes kept: each holds some KB of texts and bytes, in every report
_Launch = tuple[_Where, str | None, int | None, str | None]
_Place = tuple[str, int, str, str, str | None]


class FindingStore:
    """Findings in order of arrival.

    What a rule hides is no finding. A sighting that fits a rule is not entered at all, so that no other sighting can
    become a part of it; a finding that fits one only once its culprit is known stays under its id, marked, and is
    neither finding nor note. It is decided again whenever the culprit changes.

    Attributes
    ----------
    dropped
        Sightings of causes beyond the first `most`, which are not kept: a server that allocates the same broken buffer
        for each request has one cause per request, and must not run out of memory because of this.
    """

    def __init__(self, suppressions: Suppressions | None = None, most: int = MOST) -> None:
        self._ids = itertools.count(1)
        self._by_cause: dict[Cause, Finding] = {}
        self._latest: dict[Cause, Finding] = {}  # last sighting of each cause
        self._causes: dict[int, Cause] = {}  # by id
        self._located: dict[_Place, Cause] = {}  # causes with a culprit confirmed by localization
        self._launches: dict[_Launch, Cause] = {}  # the same causes, by launch
        self._late: dict[_Where, Cause] = {}  # causes seen too late to identify the culprit
        self._unobserved = UnobservedSightings()
        self._suppressed = SuppressedSightings(suppressions or Suppressions())
        self.dropped = self._errors = 0
        self._most = most

    def add(
        self, finding: Finding, key: str, mark: str | None = None, exact: bool = False, observed: bool = True
    ) -> tuple[Finding, bool]:
        """Store a finding, or count another occurrence of a known cause.

        Which cause a sighting belongs to is decided by `_cause_of`, what is kept of it by
        `shadowgraph.monitor.merge_rules`. Damage by a launch that was not observed joins the cause that was last seen
        there, and is suppressed if that cause is; if it was the first sighting, the next observed one there supplies
        the culprit, and hides it if suppressed.

        Parameters
        ----------
        mark
            Fingerprint to use, when it is not that of the finding as given.
        exact
            The stores of every launch are known: damage that matches no store was done by no launch, however late.
        observed
            Whether launches before it were observed.

        Returns
        -------
        tuple
            The finding as kept, and whether it is new and not suppressed. A finding that is not kept has no id.
        """
        own, where = fingerprint(finding), _where(finding)
        finding = msgspec.structs.replace(finding, fingerprint=mark or own)
        marks = (own,) if self._unobserved.is_open(where) else ()
        rule = self._unobserved.suppressed(where, observed, self._suppressed.rules.hiding(finding, marks))
        if rule is not None:
            return self._suppress(finding, where, observed, rule), False
        cause = self._cause_of(finding, where, key, observed)
        known, latest = self._by_cause.get(cause), self._latest.get(cause)
        if known is None and len(self._by_cause) >= self._most:
            self.dropped += 1
            return finding, False
        self._latest[cause] = finding
        self._unobserved.entered(where, observed, cause, known is None)
        if known is None or latest is None:
            return self._enter(finding, cause, exact), True
        if self._unobserved.shows_writer(where, observed, cause):
            kept = self._decided(msgspec.structs.replace(attributed(known, finding), fingerprint=own))
            self._by_cause[cause] = kept
            return kept, False
        if shows_nothing_new(finding, known, latest):
            return known, False
        kept = self._by_cause[cause] = self._decided(merged(known, finding))
        promoted = not _is_error(known) and _is_error(kept)
        self._errors += promoted
        return kept, promoted

    def _cause_of(self, finding: Finding, where: _Where, key: str, observed: bool) -> Cause:
        """The cause that a sighting belongs to, by the first of these rules that knows one; else a new one."""
        cause = (finding.code, finding.buffer.serial, _side(finding), key)
        cause = self._unobserved.cause_of(where, observed, cause, self._by_cause)
        if cause in self._by_cause or not observed:
            return cause
        rules = (self.located_there, self.same_launch, self.seen_too_late)
        return next((known for known in (rule(finding) for rule in rules) if known is not None), cause)

    def located_there(self, finding: Finding) -> Cause | None:
        """Of a sighting whose culprit is not confirmed: the cause there whose culprit a closer look has confirmed."""
        return None if finding.culprit.status is Status.CONFIRMED else self._located.get(_place(finding))

    def same_launch(self, finding: Finding) -> Cause | None:
        """Of a sighting whose culprit is confirmed: the cause that a closer look has given the same launch."""
        return self._launches.get(_launch(finding)) if finding.culprit.status is Status.CONFIRMED else None

    def seen_too_late(self, finding: Finding) -> Cause | None:
        """Of a sighting whose culprit is confirmed: the cause there that was seen too late to know its writer."""
        late = self._late.get(_where(finding)) if finding.culprit.status is Status.CONFIRMED else None
        return late if late is not None and writer_unknown(self._by_cause[late]) else None

    def _enter(self, finding: Finding, cause: Cause, exact: bool) -> Finding:
        """Store the first sighting of a cause."""
        kept = msgspec.structs.replace(finding, id=next(self._ids))
        self._by_cause[cause] = kept
        self._causes[kept.id] = cause
        self._errors += kept.severity is Severity.ERROR
        if writer_unknown(kept) and not exact:
            self._late[_where(kept)] = cause
        return kept

    def _suppress(self, finding: Finding, where: _Where, observed: bool, rule: Rule) -> Finding:
        """Count a sighting that is suppressed; one that was kept before its writer was known is hidden with it."""
        withdrawn = self._unobserved.withdrawn(where, observed)
        if withdrawn is None:
            return self._suppressed.add(finding, rule)
        known = attributed(self._by_cause[withdrawn], finding)
        kept = self._by_cause[withdrawn] = msgspec.structs.replace(
            known,
            culprit=finding.culprit,
            candidates=finding.candidates,
            fingerprint=fingerprint(finding),
            suppressed_by=rule.place,
        )
        return kept

    def _decided(self, finding: Finding) -> Finding:
        """A finding whose culprit may have changed: hidden by the rule that fits it now, or shown."""
        rule = self._suppressed.rules.hiding(finding)
        place = rule.place if rule is not None else ""
        return finding if place == finding.suppressed_by else msgspec.structs.replace(finding, suppressed_by=place)

    def sentence(self) -> str | None:
        """A report line on sightings that were not kept; None when all were kept."""
        if not self.dropped:
            return None
        return f"findings of the first {self._most:,} causes are kept; {self.dropped:,} sightings of others are not"

    @property
    def stirs(self) -> int:
        """Counter of new errors, and of unobserved sightings that call for observation."""
        return self._errors + self._unobserved.stirs

    def __len__(self) -> int:
        """Number of findings and notes, without suppressed ones and parts of overruns."""
        return sum(each.continues is None and not each.suppressed_by for each in self._by_cause.values())

    def __iter__(self) -> Iterator[Finding]:
        """Everything kept, parts of overruns and withdrawn findings included, in order of first arrival."""
        return iter(list(self._by_cause.values()))

    def get(self, id: int) -> Finding | None:
        """The finding with this id, or None."""
        cause = self._causes.get(id)
        return self._by_cause[cause] if cause is not None else None

    def revise(self, id: int, culprit: Culprit, candidates: tuple[Culprit, ...] = ()) -> Finding | None:
        """Set the culprit that localization has shown, or that it did not see the damage again: a new revision, or None
        for an unknown id.

        Cause and fingerprint stay those of the first sighting. Whether a rule hides it is decided again.
        """
        kept, cause = self._amend(id, culprit=culprit, candidates=candidates), self._causes.get(id)
        if kept is not None and cause is not None and culprit.status is Status.CONFIRMED:
            self._located[_place(kept)] = cause
            self._launches.setdefault(_launch(kept), cause)
        return kept

    def tie(self, id: int, origin: Origin | None) -> Finding | None:
        """Make a finding part of the overrun that it continues, or a finding of its own again: a new revision."""
        return self._amend(id, continues=origin, severity=Severity.ERROR if origin is None else Severity.NOTE)

    def set_cause(self, id: int, cause: CausedBy | None) -> Finding | None:
        """Set, or withdraw, the finding that a finding is a consequence of: a new revision."""
        return self._amend(id, caused_by=cause)

    def set_detail(self, id: int, detail: Detail, revises: bool = True) -> Finding | None:
        """Set the facts of a finding's kind: a new revision, unless they belong to its present sighting."""
        return self._amend(id, revises, detail=detail)

    def _amend(self, id: int, revises: bool = True, /, **facts: Any) -> Finding | None:
        known, cause = self.get(id), self._causes.get(id)
        if known is None or cause is None:
            return None
        kept = self._decided(msgspec.structs.replace(known, revision=known.revision + revises, **facts))
        self._by_cause[cause] = kept
        self._errors += _is_error(kept) and not _is_error(known)
        return kept

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Errors, in order of first arrival."""
        return tuple(f for f in self._by_cause.values() if _is_error(f))

    @property
    def notes(self) -> tuple[Finding, ...]:
        """Notes: worth knowing, and not errors."""
        return tuple(
            f
            for f in self._by_cause.values()
            if f.severity is Severity.NOTE and f.continues is None and not f.suppressed_by
        )

    @property
    def parts(self) -> tuple[Finding, ...]:
        """Broken guards that belong to the overruns of other findings: neither findings nor notes."""
        return tuple(f for f in self._by_cause.values() if f.continues is not None and not f.suppressed_by)

    @property
    def hidden(self) -> tuple[Finding, ...]:
        """What suppression rules hide: those of one rule and fingerprint as one."""
        return self._suppressed.with_withdrawn(f for f in self._by_cause.values() if f.suppressed_by)

    @property
    def suppressed(self) -> int:
        """Number of sightings (occurrences included) that suppression rules hide."""
        return self._suppressed.count + sum(f.occurrences for f in self._by_cause.values() if f.suppressed_by)

    @property
    def rule_counts(self) -> tuple[RuleCount, ...]:
        """What each suppression rule has hidden."""
        return self._suppressed.rows(self._by_cause.values())

    def about(self, serial: int) -> Finding | None:
        """The finding that says most about a buffer's contents: the first error about it, else an overrun that reached
        it, else the first note about it."""
        own = [f for f in (*self.findings, *self.notes) if f.buffer.serial == serial and f.caused_by is None]
        over = [f for f in self.findings if any(one.serial == serial for one in overrun_of(f).reaches)]
        return next((f for f in (*own, *over) if f.severity is Severity.ERROR), next(iter(own), None))


def _is_error(finding: Finding) -> bool:
    return finding.severity is Severity.ERROR and not finding.suppressed_by


def _side(finding: Finding) -> str:
    return str(finding.bytes.side) if finding.bytes and finding.bytes.side else ""


def _where(finding: Finding) -> _Where:
    return finding.code, finding.buffer.serial, _side(finding)


def _place(finding: Finding) -> _Place:
    return *_where(finding), str(finding.phase), finding.graph


def _launch(finding: Finding) -> _Launch:
    culprit = finding.culprit
    return _where(finding), culprit.name, culprit.node, finding.graph if culprit.node is not None else None
