"""Stale-row map as text and JSON: one line for an input, a column for a replay with few rows, stretches with many."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
from rich.text import Text

from shadowgraph.checks.verdicts import rows_said
from shadowgraph.common.words import plural
from shadowgraph.model.row_history import RowsAtReplay, RowState
from shadowgraph.render.text.shown import Reporter, said
from shadowgraph.views.row_map import RowMap, RowMark, RowPanel

SCHEMA = "shadowgraph.rows/1"
_LETTERS = {RowState.REFRESHED: "w", RowState.PADDED: "p", RowState.KEPT: "k", RowState.UNKNOWN: "."}
_KEY = "w written for this replay, p filled with one value, k kept from an older one, . not known"
_LETTERED = 64  # most rows with a letter each
_LAST = 12  # last replays of an input


class DumpedRows(msgspec.Struct, frozen=True):
    """The stale-row map of one process."""

    pid: int
    dump: str
    map: RowMap


class RowsReport(Reporter):
    """Stale-row maps, ready to be shown. Holds data only.

    Parameters
    ----------
    limit
        Inputs with lines of their own; inputs with findings come first.
    """

    schema = SCHEMA

    def __init__(self, maps: Sequence[DumpedRows], limit: int) -> None:
        self.maps, self.limit = tuple(maps), limit

    def document(self) -> dict[str, Any]:
        return {"maps": self.maps}

    def lines(self, width: int | None = None) -> Iterator[Text]:
        """Every line."""
        for place, each in enumerate(self.maps):
            if place:
                yield Text()
            yield said(
                f"rows of process {each.pid}: {plural(len(each.map.panels), 'input')}; {each.map.counted}", "bold"
            )
            panels = sorted(each.map.panels, key=lambda panel: (not panel.marks, not panel.mixed))
            for panel in panels[: self.limit]:
                yield from _panel(panel)
            if len(panels) > self.limit:
                yield said(f"  ... {plural(len(panels) - self.limit, 'input')}", "dim")
        if any(each.map.panels for each in self.maps):
            yield said(_KEY, "dim")


def _panel(panel: RowPanel) -> Iterator[Text]:
    where = f" from byte {panel.first_byte:,} on" if panel.first_byte else ""
    yield said(f"  {panel.buffer}{where}  {plural(panel.count, 'row')}, read by {panel.graph}", "bold")
    marks = {mark.replay: mark for mark in panel.marks}
    shown = [at for at in panel.replays if at.replay in marks]
    recent = [at for at in panel.replays[-_LAST:] if at.replay not in marks]
    for at in sorted([*shown, *recent], key=lambda at: at.replay):
        mark = marks.get(at.replay)
        yield said(f"      replay {at.replay:>6,}  {_rows(panel, at)}{_marked(mark)}", "red" if mark else "")


def _marked(mark: RowMark | None) -> str:
    if mark is None:
        return ""
    padded = f", padded in {', '.join(mark.padded)}" if mark.padded else ""
    return f"   #{mark.finding} SG103: {rows_said(mark.rows)} written for {mark.since}{padded}"


def _rows(panel: RowPanel, at: RowsAtReplay) -> str:
    if panel.count <= _LETTERED:
        letters = ["?"] * panel.count
        for stretch in at.rows:
            for row in range(stretch.first, min(stretch.last + 1, panel.count)):
                letters[row] = _LETTERS[stretch.state]
        return "".join(letters)
    parts = [f"{_LETTERS[s.state]} {s.first:,}-{s.last:,}" for s in at.rows[:8]]
    return ", ".join(parts) + (" ..." if at.cut or len(at.rows) > 8 else "")
