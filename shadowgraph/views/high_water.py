"""High-water marks as a table: rows of words, for a report in text and for its page. Pure functions; any thread."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from shadowgraph.common.words import form, plural
from shadowgraph.model.high_water import Forecast, HighWaterMark, MarkedBatch, MarkedBy

_KNOWN_FROM = {
    MarkedBy.PREPARE: "written before the replay",
    MarkedBy.PLAN: "told by the plan",
    MarkedBy.GRAPH: "stored by the graph",
}


@dataclass(frozen=True, slots=True)
class MarkRow:
    """One mark, in words.

    Attributes
    ----------
    share, entries
        ``94 %`` and ``120 of 128 entries``; of a row where they count within one.
    least
        The fewest entries, and the number of replays: ``at least 8, in 12 observed replays``.
    replay
        The replay with the mark, and its batch where it is known.
    leads
        When it overflows; empty where nothing says so.
    """

    buffer: str
    form: str
    share: str
    entries: str
    least: str
    replay: str
    source: str
    leads: str


@dataclass(frozen=True, slots=True)
class MarkTable:
    """The rows that are shown, the number of marks left out, and of all."""

    rows: tuple[MarkRow, ...]
    left_out: int
    total: int


def mark_table(marks: Sequence[HighWaterMark], most: int, all_of_them: bool = False) -> MarkTable:
    """The first rows of some marks, which are in order.

    Parameters
    ----------
    all_of_them
        Also those of buffers whose use never changed: it says little about the next batch.
    """
    told = [mark for mark in marks if all_of_them or mark.varied]
    shown = told[:most]
    return MarkTable(tuple(map(_row, shown)), len(marks) - len(shown), len(marks))


def _row(mark: HighWaterMark) -> MarkRow:
    batch = f": {batch_words(mark.batch)}" if mark.batch is not None else ""
    least = f"at least {mark.least:,}, " if mark.varied else ""
    return MarkRow(
        buffer=mark.buffer,
        form=form(mark.dtype, mark.shape),
        share=f"{_percent(mark)} %",
        entries=f"{mark.used:,} of {mark.capacity:,} entries{' of a row' if mark.by_row else ''}",
        least=f"{least}in {plural(mark.steps, 'observed replay')}",
        replay=f"replay {mark.replay:,} of {mark.graph}{batch}",
        source=_KNOWN_FROM[mark.source],
        leads=_leads(mark.forecast) if mark.forecast is not None else "",
    )


def _percent(mark: HighWaterMark) -> int:
    """The part in use: 100 only of a buffer that is full."""
    return min(round(100 * mark.share), 99) if mark.used < mark.capacity else 100


def batch_words(batch: MarkedBatch) -> str:
    """``2 requests, padded to 4; longest 16, 29 tokens``."""
    padded = f", padded to {batch.padded_to:,}" if batch.padded_to != batch.size else ""
    lengths = f"; longest {batch.longest:,}, {plural(batch.tokens, 'token')}" if batch.longest else ""
    return f"{plural(batch.size, 'request')}{padded}{lengths}"


def _leads(forecast: Forecast) -> str:
    return f"overflows at a {forecast.driver} of {forecast.overflows_at:,}"
