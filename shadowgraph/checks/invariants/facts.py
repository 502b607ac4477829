"""Facts of SG109, beside those of every finding. Pure data, no torch."""

from __future__ import annotations

import msgspec

from shadowgraph.checks.invariants import CODE
from shadowgraph.model.findings import Finding
from shadowgraph.model.kinds import TAG, Detail
from shadowgraph.model.redaction import Kept, RuleText

INDEX_RULE = "index in range"  # the rule that a launch's index breaks


class RuleDetail(Detail, msgspec.Struct, frozen=True, tag=CODE, tag_field=TAG):
    """The rule, and the values that break it: ``nondecreasing: [2] = 5 after 7``.

    Attributes
    ----------
    index
        Of an index out of range: the serial of the buffer that holds the index, where it is known.
    """

    rule: RuleText
    index: Kept[int | None] = None


def rule_of(finding: Finding) -> str:
    """The broken rule with the values that break it; empty where the finding lacks it."""
    return finding.detail.rule if isinstance(finding.detail, RuleDetail) else ""
