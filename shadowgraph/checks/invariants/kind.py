"""SG109, invariant broken, as a kind of finding.

Facts and words of the kind; pure, any thread. The check is in `check`, and in
`indices` that of single launches.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import TYPE_CHECKING

import msgspec

from shadowgraph.checks.invariants import CODE
from shadowgraph.checks.invariants.facts import INDEX_RULE, RuleDetail, rule_of
from shadowgraph.checks.kind import CulpritIs, FindingKind, Row
from shadowgraph.checks.verdicts import named, who
from shadowgraph.model.findings import Finding

if TYPE_CHECKING:
    from shadowgraph.checks.base import Check, Context

_INDEX_REMEDY = (
    "Compare what the indices are made from (lengths, steps, page sizes) with the size of what they index: the buffer "
    "may lack rows or columns for this step. Assert their extremes on the host before the launch."
)


class InvariantKind(FindingKind):
    """A rule on a buffer's values does not hold where a graph or the host is about to rely on it."""

    code = CODE
    title = "invariant broken"
    detail = RuleDetail
    keeps_first_example = True
    remedy = (
        "Look at who wrote the buffer last and at the batches before: a prefix that batch sizes share keeps "
        "what another batch left behind. Rewrite all that the coming graph reads."
    )

    def verdict(self, finding: Finding) -> str:
        rule = rule_of(finding)
        about, _, rest = rule.partition(": ")
        if about == INDEX_RULE:
            given = f"{who(finding)} was given an index out of range for {named(finding.buffer)}"
            return f"{given}{', ' if rest else ''}{rest},"
        return f"{finding.buffer.name} breaks {rule}, last written by {who(finding)},"

    def culprit_is(self, finding: Finding) -> CulpritIs:
        return CulpritIs.READER if rule_of(finding).startswith(INDEX_RULE) else CulpritIs.LAST_SEEN

    def values_of(self, finding: Finding) -> int | None:
        detail = finding.detail
        is_index = self.culprit_is(finding) is CulpritIs.READER
        return detail.index if is_index and isinstance(detail, RuleDetail) else finding.buffer.serial

    def cause(self, finding: Finding) -> str:
        return rule_of(finding).split(": ", 1)[0].split("(", 1)[0]  # without numbers and offending values

    def rows(self, finding: Finding) -> Iterable[Row]:
        rule = rule_of(finding)
        return (("rule", rule),) if rule else ()

    def alike(self, finding: Finding) -> Hashable:
        return rule_of(finding)

    def advice(self, finding: Finding) -> str:
        return _INDEX_REMEDY if rule_of(finding).startswith(INDEX_RULE) else self.remedy

    def make_checks(self, context: Context) -> Iterable[Check]:
        from shadowgraph.checks.invariants.check import Invariants
        from shadowgraph.checks.invariants.indices import Indices

        yield Invariants(context)
        yield Indices(context)

    def merged(self, known: Finding, again: Finding) -> Finding | None:
        """A declared rule takes the place of an inferred one that told of the same values."""
        if again.severity is known.severity and (known.confidence, again.confidence) == ("medium", "high"):
            return msgspec.structs.replace(again, id=known.id, revision=known.revision + 1)
        return None

    def is_same_sight(self, known: Finding, again: Finding) -> bool:
        """A recheck sees a rule broken in the way that was already seen."""
        return again.detected_at == "check" and _sight(known) == _sight(again)


def _sight(finding: Finding) -> tuple[object, ...]:
    return finding.severity, finding.confidence, finding.detail, finding.bytes
