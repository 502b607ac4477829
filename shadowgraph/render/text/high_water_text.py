"""High-water marks in the text report: the fullest few, or all of them."""

from __future__ import annotations

from collections.abc import Iterator

from rich.text import Text

from shadowgraph.model.run_facts import RunFacts
from shadowgraph.views.high_water import MarkRow, mark_table

_FEW = 4
_MOST = 4096


def high_water_lines(facts: RunFacts, all_marks: bool = False) -> Iterator[Text]:
    """A line for each mark, the fullest first. Without marks, or where none of them has changed, nothing; with
    `all_marks`, a line that says so."""
    made = mark_table(facts.high_water, _MOST if all_marks else _FEW, all_marks)
    if not made.rows:
        if all_marks:
            yield Text("no high-water marks: in observed replays, host code wrote no static buffer that a graph reads")
        return
    of_all = f", {len(made.rows)} of {made.total:,} (report --marks lists all)" if made.left_out else ""
    yield Text(f"high-water marks of static buffers, in observed replays{of_all}", style="bold")
    for row in made.rows:
        yield _line(row)


def _line(row: MarkRow) -> Text:
    line = Text("  ")
    line.append(f"{row.share:>5}  ", style="bold yellow" if row.leads else "bold")
    line.append(f"{row.buffer} ({row.form}): {row.entries}, {row.replay}; {row.least}, {row.source}")
    if row.leads:
        line.append(f"; {row.leads}", style="yellow")
    return line
