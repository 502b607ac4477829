"""Sightings that suppression rules hide, counted by rule, each different finding kept once as an example.

Owned by `FindingStore`, which calls it in the thread of an event, under the debugger's lock; has no lock of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import msgspec

from shadowgraph.model.findings import Finding
from shadowgraph.model.suppressions import Rule, RuleCount, Suppressions

_MOST = 256  # findings kept: each is a few KB in every report
_Key = tuple[str, str]


class SuppressedSightings:
    """What rules hid before it became a finding of the store.

    A hidden sighting is no part of any finding: what is seen at the same place afterwards, and fits no rule, is a
    finding of its own.
    """

    def __init__(self, rules: Suppressions) -> None:
        self.rules = rules
        self._kept: dict[_Key, Finding] = {}  # by rule and fingerprint
        self._counts: Counter[str] = Counter()  # sightings by rule

    @property
    def count(self) -> int:
        """Number of sightings."""
        return self._counts.total()

    def add(self, finding: Finding, rule: Rule) -> Finding:
        """Count a sighting; returns it, marked as hidden by the rule."""
        hidden = msgspec.structs.replace(finding, suppressed_by=rule.place)
        self._counts[rule.place] += 1
        self._keep(self._kept, hidden)
        return hidden

    def with_withdrawn(self, withdrawn: Iterable[Finding]) -> tuple[Finding, ...]:
        """All that is hidden, those included that the store had as findings before their writer was known."""
        kept: dict[_Key, Finding] = {}
        for finding in (*withdrawn, *self._kept.values()):
            self._keep(kept, finding)
        return tuple(kept.values())

    def rows(self, store: Iterable[Finding]) -> tuple[RuleCount, ...]:
        """What each rule has hidden, in the order of the file.

        Parameters
        ----------
        store
            The findings of the store, those included that turned out to be hidden.
        """
        known = list(store)
        withdrawn = [finding for finding in known if finding.suppressed_by]
        sightings = self._counts + Counter[str]()
        for finding in withdrawn:
            sightings[finding.suppressed_by] += finding.occurrences
        different = {(finding.suppressed_by, finding.fingerprint) for finding in (*withdrawn, *self._kept.values())}
        findings = Counter(place for place, _ in different)
        return tuple(
            RuleCount(rule, expired=True, shown=sum(not f.suppressed_by and rule.fits(f) for f in known))
            if rule in self.rules.expired
            else RuleCount(rule, findings[rule.place], sightings[rule.place])
            for rule in self.rules.rules
        )

    def _keep(self, kept: dict[_Key, Finding], finding: Finding) -> None:
        key = finding.suppressed_by, finding.fingerprint
        known = kept.get(key)
        if known is not None:
            kept[key] = msgspec.structs.replace(known, occurrences=known.occurrences + finding.occurrences)
        elif len(kept) < _MOST:
            kept[key] = finding
