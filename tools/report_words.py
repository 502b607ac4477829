"""What a report says of one finding when it is less sure, or has seen more: for ``docs/report.md``.

The finding is the first of a dump of `tools/verbs_program.py`; of it one fact is changed at a time, as it is in other
runs, and the report's own code says the words.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

if TYPE_CHECKING:
    from shadowgraph.model.findings import Finding


def culprits(path: Path) -> list[str]:
    """The row of the culprit, for each status."""
    from shadowgraph.model.findings import Culprit, Status
    from shadowgraph.render.text.culprit_text import culprit_line

    culprit = replace(_first(path).culprit, source=None)
    made = [replace(culprit, status=status) for status in (Status.CONFIRMED, Status.CANDIDATE)]
    made += [replace(culprit, status=Status.NOT_REPRODUCED, seen_in=2), Culprit(Status.UNKNOWN)]
    return [f"  culprit    {culprit_line(one)}" for one in made]


def verdicts(path: Path) -> list[str]:
    """The first line: as it is, of low confidence, seen further later, not seen again, of an unseen writer."""
    from shadowgraph.checks.out_of_bounds.facts import overrun_of
    from shadowgraph.model.findings import Culprit, Status

    finding = replace(_first(path), revision=1)
    doubted = replace(finding.culprit, status=Status.NOT_REPRODUCED, seen_in=2)
    return [
        finding.message,
        replace(finding, confidence="low").message,
        replace(finding, detail=replace(overrun_of(finding), grown=True)).message,
        replace(finding, culprit=doubted).message,
        replace(finding, culprit=Culprit(Status.UNKNOWN)).message,
    ]


def _first(path: Path) -> Finding:
    from shadowgraph.dumps.reader import read_dump

    with read_dump(path) as dump:
        return dump.facts().findings[0]
