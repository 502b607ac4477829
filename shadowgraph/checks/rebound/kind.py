"""SG108, rebound input, as a kind of finding.

Facts and words of the kind; pure, any thread. The check is in `check`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import msgspec

from shadowgraph.checks.kind import FindingKind, Row
from shadowgraph.checks.rebound import CODE
from shadowgraph.checks.rebound.facts import Evidence, ReboundDetail
from shadowgraph.checks.verdicts import named, successor_said
from shadowgraph.common.words import plural
from shadowgraph.model.findings import Finding, Severity
from shadowgraph.model.kinds import Detail

if TYPE_CHECKING:
    from shadowgraph.checks.base import Check, Context, Detection
    from shadowgraph.model.buffers import Buffer


class ReboundInputKind(FindingKind):
    """A graph reads memory that host code no longer refreshes, because it refreshes memory at another address."""

    code = CODE
    title = "rebound input"
    reports = (
        "vllm-project/vllm#53915",
        "sgl-project/sglang#26019",
        "sgl-project/sglang#37975",
    )
    detail = ReboundDetail
    bytes_are = "stale"
    expected_label = "should be"
    needs_observation = True
    remedy = (
        "A graph keeps addresses, not names. Refresh in place (copy_) the memory that it was captured with, or capture "
        "again with the new one: keep the tensor that the wrapper was captured with, and write no clone of it."
    )

    def verdict(self, finding: Finding) -> str:
        detail, reads = finding.detail, f"{finding.graph} reads {named(finding.buffer)}"
        if not isinstance(detail, ReboundDetail):
            return f"{reads}, which host code does not refresh any more,"
        if detail.evidence is not Evidence.DECLARED:
            return _inferred(reads, detail)
        if detail.moved:
            now = detail.now.name if detail.now is not None else "other memory"
            return f"{reads}, but {detail.attribute} leads to {now} since, which host code refreshes instead,"
        instead = f", but {detail.now.name}" if detail.now is not None else ""
        return f"{reads}, which host code did not refresh{instead}, as the plan needs,"

    def rows(self, finding: Finding) -> Iterable[Row]:
        detail = finding.detail
        if not isinstance(detail, ReboundDetail):
            return
        if detail.attribute:
            fate = "leads elsewhere now" if detail.moved else "leads there still"
            yield "captured", f"{finding.graph} was given what {detail.attribute} led to, which {fate}"
        if detail.now is not None:
            yield "instead", f"{successor_said(detail.now)} is what host code refreshes"
        if detail.planned:
            yield "planned", "what the graph should read is what the latest plan was made from"
        if detail.evidence is not Evidence.DECLARED:
            known, inferred = _GROUNDS[detail.evidence]
            yield "known", f"{known}; {_counted(detail)}"
            if detail.lags:
                inferred = "the graph's memory follows late on purpose"
            elif finding.severity is Severity.NOTE:
                inferred = f"{inferred}, unless that lags behind on purpose"
            yield "inferred", f"{inferred}, as nothing was declared"

    def advice(self, finding: Finding) -> str:
        return _LAG_REMEDY if finding.severity is Severity.NOTE else self.remedy

    def merged(self, known: Finding, again: Finding) -> Finding | None:
        """A lag that turns out to be a habit is no error."""
        before, now = known.detail, again.detail
        if not (isinstance(before, ReboundDetail) and isinstance(now, ReboundDetail)) or not now.lags:
            return None
        detail = msgspec.structs.replace(before, refreshes=now.refreshes, lags=True)
        return msgspec.structs.replace(known, severity=Severity.NOTE, detail=detail, revision=known.revision + 1)

    def make_checks(self, context: Context) -> Iterable[Check]:
        from shadowgraph.checks.rebound.check import ReboundInputs
        from shadowgraph.checks.rebound.drafts import Claims
        from shadowgraph.checks.rebound.lost_refreshes import LostRefreshes
        from shadowgraph.checks.rebound.renamed import RenamedInputs
        from shadowgraph.graphs.dispatch import operand_notes

        declared, notes = ReboundInputs(context), operand_notes.begin(context.allocator.device)
        yield declared
        claims = Claims()
        yield RenamedInputs(context, declared, notes.interest(), claims)
        yield LostRefreshes(context, declared, notes, claims)

    def further_buffers(self, draft: Detection) -> Iterable[Buffer]:
        from shadowgraph.checks.rebound.details import Rebound

        facts = draft.facts
        return (facts.buffer,) if isinstance(facts, Rebound) and facts.buffer is not None else ()

    def describe(self, draft: Detection, context: Context) -> Detail | None:
        from shadowgraph.checks.rebound.details import rebinding_of

        return rebinding_of(draft, context)


_LAG_REMEDY = (
    "Nothing, if the graph is meant to read older values, as of a target network or averaged weights. Else refresh in "
    "place (copy_) the memory that the graph was captured with."
)
# What is known where nothing was declared, and what is inferred from it.
_GROUNDS = {
    Evidence.NAME: (
        "code that was captured takes a value by that name, and no captured graph reads what it leads to now",
        "the graph should read what the name leads to",
    ),
    Evidence.COPY: (
        "before the capture one of these was filled from the other, and no code was seen to read the one that is "
        "refreshed",
        "the refresh is meant for the graph",
    ),
    Evidence.WINDOW: (
        "both are parts of one buffer and have one form; graphs use the one alone, host code writes the other alone, "
        "and no code was seen to read that",
        "the refresh is meant for the graph",
    ),
}


def _inferred(reads: str, detail: ReboundDetail) -> str:
    """The verdict where nothing was declared."""
    if detail.evidence is Evidence.NAME and detail.lags:
        return f"{reads}, which lags behind {detail.attribute}: it is copied from there, but not in each step,"
    if detail.evidence is Evidence.NAME:
        return f"{reads}, which was not refreshed, but {detail.attribute} leads to other memory since, with new values,"
    instead = detail.now.name if detail.now is not None else "other memory"
    if detail.lags:
        return f"{reads}, which lags behind {instead}: it is copied from there, but not after each refresh,"
    verb = "were" if instead.startswith("bytes ") else "was"
    return f"{reads}, which was not refreshed, but {instead} {verb}, which no code reads,"


def _counted(detail: ReboundDetail) -> str:
    later = ", and was copied from there at other times" if detail.lags else ""
    return f"seen at {plural(detail.refreshes, 'replay')}, while the graph's memory kept its bytes{later}"
