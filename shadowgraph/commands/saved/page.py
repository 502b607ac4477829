"""HTML page of a saved report: printed as JSON, or fetched from a status server."""

from __future__ import annotations

import shlex
from dataclasses import replace

from shadowgraph.commands.saved.report import SavedReport
from shadowgraph.render.html.cards import said_of
from shadowgraph.render.html.page import Page, live_page, with_run


def saved_page(report: SavedReport) -> Page:
    """The page of a report. It has no nodes, launches and maps: these are only in dumps."""
    page, run, source = live_page(report.facts), report.run(), report.saved.source
    return replace(
        with_run(page, run) if run is not None else replace(page, head=said_of(report.head_lines())),
        title=f"shadowgraph report: {source}",
        file=shlex.quote(source),
        tail=said_of(report.tail_lines()),
    )
