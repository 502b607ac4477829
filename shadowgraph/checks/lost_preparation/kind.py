"""SG114, lost preparation, as a kind of finding.

Facts and words of the kind; pure, any thread. The check is in `check`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from shadowgraph.checks.kind import FindingKind, Row
from shadowgraph.checks.lost_preparation import CODE
from shadowgraph.checks.lost_preparation.facts import Known, LostDetail
from shadowgraph.checks.verdicts import because, named, when, who
from shadowgraph.common.source_paths import at
from shadowgraph.model.findings import Finding

if TYPE_CHECKING:
    from shadowgraph.checks.base import Check, Context

_HOW = {
    Known.DECLARED: "both were prepared as such: by prepare blocks, or by plans of objects that the graphs captured",
    Known.LINES: "until then {graph} alone read what the one line wrote, and {other} alone what the other line did",
    Known.CALLS: "{graph} alone reads all that the one call wrote, and {other} alone all that the other call did",
    Known.ORDER: "before, each of such replays had a write of its own; this time both writes came first",
    Known.COUNT: "two writes came before two replays, in two steps; the same values for both may be meant",
}


class LostPreparationKind(FindingKind):
    """Bytes prepared for a graph's coming replay were overwritten for another one before it read them."""

    code = CODE
    title = "lost preparation"
    detail = LostDetail
    bytes_are = "overwritten"
    expected_label = "was prepared"
    needs_observation = True
    remedy = (
        "Prepare a graph right before its replay, behind the replay of the other one, or give each of them memory of "
        "its own: an index buffer or an integer workspace holds the inputs of one coming replay. A float workspace, "
        "which graphs only write before they read it, may be shared."
    )

    def message(self, finding: Finding) -> str:
        return f"{self.code} {self.title}: {self.verdict(finding)} {when(finding)}{because(finding)}"

    def verdict(self, finding: Finding) -> str:
        detail, buffer = finding.detail, named(finding.buffer)
        if not isinstance(detail, LostDetail):
            return f"what was prepared in {buffer} was overwritten before it was read,"
        replay = f"replay {finding.replay} of {finding.graph}"
        perhaps = "" if finding.confidence != "low" else "perhaps "
        return (
            f"what {detail.lost.name} prepared in {buffer} for {replay} was {perhaps}overwritten by {who(finding)} for "
            f"{_other(finding, detail)} before {finding.graph} read it,"
        )

    def rows(self, finding: Finding) -> Iterable[Row]:
        detail = finding.detail
        if not isinstance(detail, LostDetail):
            return
        lost = detail.lost
        yield "lost", f"{lost.name}{at(lost.file, lost.line) if lost.file else ''}, for replay {finding.replay}"
        yield "for", f"{_other(finding, detail)}: what the culprit wrote"
        yield "known", _HOW[detail.known].format(graph=finding.graph, other=detail.other)

    def make_checks(self, context: Context) -> Iterable[Check]:
        from shadowgraph.checks.lost_preparation.check import LostPreparations

        yield LostPreparations(context)


def _other(finding: Finding, detail: LostDetail) -> str:
    """The replay that the culprit wrote for."""
    if detail.other == finding.graph:
        return f"its replay {detail.other_replay}"
    return f"replay {detail.other_replay} of {detail.other}" if detail.other_replay is not None else detail.other
