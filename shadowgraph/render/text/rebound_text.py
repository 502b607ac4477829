"""Rebound input as rows of a report: the buffer that host code refreshes instead of the graph's own."""

from __future__ import annotations

from collections.abc import Iterator

from shadowgraph.model.findings import Finding
from shadowgraph.render.text.ending_text import successor_said


def rebound_rows(finding: Finding) -> Iterator[tuple[str, str]]:
    """Label and text of each row; no rows for a finding on another subject."""
    rebound = finding.rebound
    if rebound is None:
        return
    fate = "leads elsewhere now" if rebound.moved else "leads there still"
    yield "captured", f"{finding.graph} was given what {rebound.attribute} led to, which {fate}"
    if rebound.now is not None:
        yield "instead", f"{successor_said(rebound.now)} is what host code refreshes"
    if rebound.planned:
        yield "planned", "what the graph should read is what the latest plan was made from"
