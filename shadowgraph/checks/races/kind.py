"""SG112, graph race, as a kind of finding.

Facts and words of the kind; pure, any thread. The check is in `check`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from shadowgraph.checks.kind import FindingKind
from shadowgraph.checks.races import CODE
from shadowgraph.checks.verdicts import LONGEST_NAME, changed_bytes, who
from shadowgraph.common.kernel_names import brief
from shadowgraph.model.findings import Finding

if TYPE_CHECKING:
    from shadowgraph.checks.base import Check, Context


class GraphRaceKind(FindingKind):
    """Two nodes without an order changed the same bytes. It has no further facts; the other node is a candidate."""

    code = CODE
    title = "graph race"
    remedy = (
        "Let one branch of the capture wait for the other before it writes (an event recorded in one stream and waited "
        "for in the other), or give each branch a buffer of its own. A kernel that is launched programmatically has to "
        "wait in its code (gdc_wait)."
    )

    def verdict(self, finding: Finding) -> str:
        facts = changed_bytes(finding)
        others = [f"{brief(one.name or '', LONGEST_NAME)} (node {one.node})" for one in finding.candidates[:3]]
        both = " and ".join([who(finding), *others])
        return f"{both} write the same bytes [{facts.first:,}, {facts.last:,}] of {finding.buffer.name} in no order,"

    def make_checks(self, context: Context) -> Iterable[Check]:
        from shadowgraph.checks.races.check import Races

        yield Races(context)
