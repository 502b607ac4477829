"""Rows of the launch log, for tests."""

from __future__ import annotations

from shadowgraph.model.launch_log import LaunchLog, SharedText
from shadowgraph.model.launch_log_format import RowKind


def note_batch(log: LaunchLog, text: str, values: str = "", graph: int = 0, replay: int = 0) -> None:
    """A batch with a text of its own."""
    log.note_shared(SharedText(RowKind.BATCH, text, values), graph, replay, ())


def note_plan(log: LaunchLog, text: str, values: str = "") -> None:
    """A plan with a text of its own."""
    log.note_shared(SharedText(RowKind.PLAN, text, values), 0, 0, ())
