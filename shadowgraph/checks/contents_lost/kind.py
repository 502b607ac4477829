"""SG116, contents lost, as a kind of finding.

Facts and words of the kind; pure, any thread. The check is in `check`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from shadowgraph.checks.contents_lost import CODE
from shadowgraph.checks.contents_lost.facts import ContentsLostDetail
from shadowgraph.checks.kind import CulpritIs, FindingKind, Row
from shadowgraph.checks.verdicts import named, who
from shadowgraph.common.source_paths import short
from shadowgraph.model.findings import Finding

if TYPE_CHECKING:
    from shadowgraph.checks.base import Check, Context

_FRAMES = 3


class ContentsLostKind(FindingKind):
    """A graph reads bytes whose contents a pause, sleep or reload dropped, and that were not written since."""

    code = CODE
    title = "contents lost"
    detail = ContentsLostDetail
    bytes_are = "lost"
    needs_observation = True
    remedy = (
        "A pause or a sleep keeps addresses, so that a graph can be replayed, but not contents. Write the buffer again "
        "after the resume, before the first replay, or have the saver keep a copy of it (a CPU backup of its region; "
        "for weights a sleep of level 1)."
    )

    def culprit_is(self, finding: Finding) -> CulpritIs:
        return CulpritIs.READER

    def verdict(self, finding: Finding) -> str:
        detail = finding.detail
        how = f" in {detail.how}" if isinstance(detail, ContentsLostDetail) else ""
        return f"{who(finding)} reads {named(finding.buffer)}, which lost its contents{how} and was not written since,"

    def rows(self, finding: Finding) -> Iterable[Row]:
        detail = finding.detail
        if not isinstance(detail, ContentsLostDetail):
            return
        yield "lost", f"in {detail.how}"
        for frame in detail.stack[:_FRAMES]:
            yield "", f"{short(frame.file)}:{frame.line} in {frame.function}"
        if not detail.compared:
            yield "", "the contents before that are not known: they were not compared"

    def make_checks(self, context: Context) -> Iterable[Check]:
        from shadowgraph.checks.contents_lost.check import ContentsLost

        yield ContentsLost(context)
