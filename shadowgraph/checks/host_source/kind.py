"""SG110, host source recycled, as a kind of finding.

Facts and words of the kind; pure, any thread. The check is in `check`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import msgspec

from shadowgraph.checks.host_source import CODE
from shadowgraph.checks.host_source.facts import Fate, HostSourceDetail
from shadowgraph.checks.kind import CulpritIs, FindingKind, Row
from shadowgraph.checks.verdicts import named, successor_said, who
from shadowgraph.common.words import plural
from shadowgraph.model.findings import Finding, Successor
from shadowgraph.model.kinds import Detail

if TYPE_CHECKING:
    from shadowgraph.checks.base import Check, Context, Detection
    from shadowgraph.model.buffers import Buffer

_FATES = {
    Fate.FREED: "freed since the capture",
    Fate.MOVED: "moved to other memory since the capture",
    Fate.RECYCLED: "freed since the capture and allocated again",
    Fate.UNPINNED: "freed or unregistered since the capture",
    Fate.ENDED: "whose tensor is gone since the capture",
    Fate.PAGEABLE: "which is pageable and which nothing is known to keep",
}


class HostSourceKind(FindingKind):
    """A copy node of a graph uses host memory that was freed since its capture."""

    code = CODE
    title = "host source recycled"
    reports = ("microsoft/onnxruntime#32121",)
    detail = HostSourceDetail
    buffer_is_gone = True
    needs_observation = True
    remedy = (
        "A captured copy keeps the address of its host memory, and nothing keeps the memory. Hold a reference to the "
        "pinned tensor for as long as the graph is replayed, and refresh it in place; or copy before the replay, "
        "outside the graph."
    )

    def verdict(self, finding: Finding) -> str:
        buffer, detail = named(finding.buffer, nbytes=True), finding.detail
        if not isinstance(detail, HostSourceDetail):
            return f"{who(finding)} copies {buffer}, which is gone,"
        uses = "writes" if detail.to_host else "reads"
        kind = "pinned" if detail.pinned else "host memory"
        names = [victim.name for victim in detail.victims]
        more = f" and {len(names) - 2:,} more" if len(names) > 2 else ""
        now = f", now {' and '.join(names[:2])}{more}" if names else ""
        return f"{who(finding)} {uses} {kind} {buffer}, {_FATES[detail.fate]}{now},"

    def rows(self, finding: Finding) -> Iterable[Row]:
        detail = finding.detail
        if not isinstance(detail, HostSourceDetail):
            return
        nbytes = plural(detail.last + 1 - detail.first, "byte")
        way = "to host memory, from" if detail.to_host else "from host memory, to"
        yield "copies", f"{nbytes} {way} {successor_said(detail.device)}"
        for victim in detail.victims:
            yield "now", f"{successor_said(victim)} has these bytes{', which the graph overwrites' * detail.to_host}"
        if not detail.victims:
            yield "now", "no known host memory has these bytes"

    def culprit_is(self, finding: Finding) -> CulpritIs:
        detail = finding.detail
        writes = isinstance(detail, HostSourceDetail) and detail.to_host
        return CulpritIs.WRITER if writes else CulpritIs.READER

    def make_checks(self, context: Context) -> Iterable[Check]:
        from shadowgraph.checks.host_source.check import HostSources

        yield HostSources(context)

    def further_buffers(self, draft: Detection) -> Iterable[Buffer]:
        from shadowgraph.checks.host_source.details import Ended

        return draft.facts.victims if isinstance(draft.facts, Ended) else ()

    def describe(self, draft: Detection, context: Context) -> Detail | None:
        from shadowgraph.checks.host_source.details import ending_of

        return ending_of(draft, context)

    def victims(self, finding: Finding) -> Iterable[Successor]:
        """The host memory that has the bytes now."""
        return finding.detail.victims if isinstance(finding.detail, HostSourceDetail) else ()

    def merged(self, known: Finding, again: Finding) -> Finding | None:
        """The known finding, with what occupies its bytes once that is known."""
        before, now = known.detail, again.detail
        if not (isinstance(before, HostSourceDetail) and isinstance(now, HostSourceDetail)):
            return None
        if before.victims or not now.victims:
            return known
        taken = msgspec.structs.replace(before, victims=now.victims)
        return msgspec.structs.replace(known, detail=taken, revision=known.revision + 1)
