"""SG103, stale rows, as a kind of finding.

Facts and words of the kind; pure, any thread. The check is in `check`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from shadowgraph.checks.kind import FindingKind, Row
from shadowgraph.checks.stale_rows import CODE
from shadowgraph.checks.stale_rows.facts import StaleRowsDetail
from shadowgraph.checks.verdicts import named, rows_said
from shadowgraph.common.words import form
from shadowgraph.model.findings import Finding
from shadowgraph.model.kinds import Detail

if TYPE_CHECKING:
    from shadowgraph.checks.base import Check, Context, Detection
    from shadowgraph.model.buffers import Buffer

_STRETCHES = 8  # shown in a report


class StaleRowsKind(FindingKind):
    """Rows that a graph reads were written for an older replay, while other rows of the same input were refreshed."""

    code = CODE
    title = "stale rows"
    reports = (
        "sgl-project/sglang#26292",
        "vllm-project/vllm#21196",
    )
    detail = StaleRowsDetail
    bytes_are = "stale"
    keeps_first_example = True
    needs_observation = True
    remedy = (
        "Give the padded rows a value before each padded replay, as other inputs get one (zero_ or fill_ all, then "
        "copy the real rows). Where it does not matter what they lead to, say so: padding(tensor, 'dont_care')."
    )

    def verdict(self, finding: Finding) -> str:
        detail = finding.detail
        if not isinstance(detail, StaleRowsDetail):
            return f"rows of {named(finding.buffer)} hold what they held in an older replay"
        left = rows_said((rows.first, rows.last) for rows in detail.stale)
        fresh = rows_said(detail.refreshed)
        was = "was" if fresh.startswith("row ") else "were"
        holds = "holds" if left.startswith("row ") else "hold"
        held = f"still {holds} what was written for {_since(detail)}"
        return f"{left} of {_named(finding, detail)} {held}, though {fresh} {was} refreshed,"

    def rows(self, finding: Finding) -> Iterable[Row]:
        detail = finding.detail
        if not isinstance(detail, StaleRowsDetail):
            return
        for rows in detail.stale[:_STRETCHES]:
            since = f"replay {rows.replay} of {rows.graph}" if rows.replay is not None else "a replay long ago"
            said = rows_said([(rows.first, rows.last)])
            yield "stale", f"{said} of {detail.rows:,} that the graph reads, from {since}"
        if len(detail.stale) > _STRETCHES:
            yield "", f"... and {len(detail.stale) - _STRETCHES} more stretches"
        yield "refreshed", rows_said(detail.refreshed)
        for name in detail.padded:
            yield "unlike", f"{name}, which was written there for this replay"

    def make_checks(self, context: Context) -> Iterable[Check]:
        from shadowgraph.checks.stale_rows.check import StaleRows

        yield StaleRows(context)

    def further_buffers(self, draft: Detection) -> Iterable[Buffer]:
        from shadowgraph.checks.stale_rows.details import Stale

        facts = draft.facts
        return tuple(buffer for buffer, _ in facts.witnesses) if isinstance(facts, Stale) else ()

    def describe(self, draft: Detection, context: Context) -> Detail | None:
        from shadowgraph.checks.stale_rows.details import staleness_of

        return staleness_of(draft, context)


def _named(finding: Finding, detail: StaleRowsDetail) -> str:
    buffer = finding.buffer
    unnamed = detail.viewed and not buffer.view
    return f"{buffer.name} seen as {form(buffer.dtype, buffer.shape)}" if unnamed else named(buffer)


def _since(detail: StaleRowsDetail) -> str:
    """The latest replay that stale rows are left from."""
    known = [rows for rows in detail.stale if rows.replay is not None]
    latest = max(known, key=lambda rows: rows.replay or 0, default=None)
    return f"replay {latest.replay} of {latest.graph}" if latest is not None else "an older replay"
