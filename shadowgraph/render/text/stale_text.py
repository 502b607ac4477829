"""Stale rows of older replays, as rows of a report."""

from __future__ import annotations

from collections.abc import Iterator

from shadowgraph.checks.verdicts import rows_said
from shadowgraph.model.findings import Finding

_STRETCHES = 8


def stale_rows(finding: Finding) -> Iterator[tuple[str, str]]:
    """Label and text of each row; no rows for a finding without stale rows."""
    stale = finding.stale
    if stale is None:
        return
    for rows in stale.stale[:_STRETCHES]:
        since = f"replay {rows.replay} of {rows.graph}" if rows.replay is not None else "a replay long ago"
        yield "stale", f"{rows_said([(rows.first, rows.last)])} of {stale.rows:,} that the graph reads, from {since}"
    if len(stale.stale) > _STRETCHES:
        yield "", f"... and {len(stale.stale) - _STRETCHES} more stretches"
    yield "refreshed", rows_said(stale.refreshed)
    for name in stale.padded:
        yield "unlike", f"{name}, which was written there for this replay"
