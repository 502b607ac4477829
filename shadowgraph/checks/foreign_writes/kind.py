"""SG106, foreign write, as a kind of finding.

Facts and words of the kind; pure, any thread. The check is in `check`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from shadowgraph.checks.foreign_writes import CODE
from shadowgraph.checks.kind import FindingKind
from shadowgraph.checks.verdicts import changed_bytes, most, named, who
from shadowgraph.common.words import plural
from shadowgraph.model.findings import Finding

if TYPE_CHECKING:
    from shadowgraph.checks.base import Check, Context


class ForeignWriteKind(FindingKind):
    """A node changed memory that none of its arguments leads into. It has no facts beside the changed bytes."""

    code = CODE
    title = "foreign write"
    remedy = (
        "The node's index or stride leads far out of its own buffer, past every guard. Compare the sizes that it was "
        "given with its argument nearest to the damage, or with what its largest index can reach."
    )

    def verdict(self, finding: Finding) -> str:
        changed = f"{most(finding)}{plural(changed_bytes(finding).count, 'byte')} of {named(finding.buffer)}"
        return f"{who(finding)} changed {changed}, where none of its arguments leads,"

    def make_checks(self, context: Context) -> Iterable[Check]:
        from shadowgraph.checks.foreign_writes.check import ForeignWrites

        yield ForeignWrites(context)
