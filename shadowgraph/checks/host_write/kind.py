"""SG111, host write in flight, as a kind of finding.

Facts and words of the kind; pure, any thread. The check is in `check`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from shadowgraph.checks.host_write import CODE
from shadowgraph.checks.host_write.facts import HostWriteDetail
from shadowgraph.checks.kind import FindingKind, Row
from shadowgraph.checks.verdicts import named, successor_said, who
from shadowgraph.common.source_paths import at
from shadowgraph.common.words import plural
from shadowgraph.model.findings import Finding, Successor
from shadowgraph.model.kinds import Detail

if TYPE_CHECKING:
    from shadowgraph.checks.base import Check, Context, Detection


class HostWriteKind(FindingKind):
    """Pinned memory was rewritten before an asynchronous copy from it had run."""

    code = CODE
    title = "host write in flight"
    reports = ("sgl-project/mini-sglang#103",)
    detail = HostWriteDetail
    bytes_are = "rewritten in flight"
    expected_label = "was queued"
    needs_bytes = True
    needs_observation = True
    remedy = (
        "An asynchronous copy from pinned memory reads it when the device gets there, not when it is queued. Record an "
        "event behind the copy and wait for it before the memory is written again, or take turns with two buffers that "
        "each have one; or copy without non_blocking."
    )

    def verdict(self, finding: Finding) -> str:
        detail = finding.detail
        seen = isinstance(detail, HostWriteDetail) and detail.written_by_torch
        writer = who(finding) if seen else "host code"
        rewrote = f"{writer} rewrote {named(finding.buffer)} before"
        if not isinstance(detail, HostWriteDetail):
            return f"{rewrote} a copy from it had run,"
        node = f" (node {detail.node})" if detail.node is not None else ""
        return f"{rewrote} the copy{node} to {detail.target.name} had run,"

    def rows(self, finding: Finding) -> Iterable[Row]:
        detail = finding.detail
        if not isinstance(detail, HostWriteDetail):
            return
        line = at(detail.copied_at[0].file, detail.copied_at[0].line) if detail.copied_at else ""
        node = f" (node {detail.node})" if detail.node is not None else ""
        rest = f", of which {detail.compared:,} were compared" if detail.compared < detail.nbytes else ""
        yield "copy", f"{detail.copy}{node}{line}: {plural(detail.nbytes, 'byte')}{rest}"
        yield "to", f"{successor_said(detail.target)}, where the later bytes arrived"
        if not detail.written_by_torch:
            yield "written", "at least in part by other code than the operators that were seen: numpy, Python or C++"

    def make_checks(self, context: Context) -> Iterable[Check]:
        from shadowgraph.checks.host_write.check import HostWrites

        yield HostWrites(context)

    def describe(self, draft: Detection, context: Context) -> Detail | None:
        from shadowgraph.checks.host_write.details import copy_in_flight

        return copy_in_flight(draft, context)

    def victims(self, finding: Finding) -> Iterable[Successor]:
        """The memory that the bytes arrived in."""
        return (finding.detail.target,) if isinstance(finding.detail, HostWriteDetail) else ()
