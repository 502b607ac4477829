"""Cards: findings as data for HTML templates, with their rows by label, their bytes and the advice."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich.text import Text

from shadowgraph.model.findings import Finding, Severity
from shadowgraph.render.html.hexdump import HexTable, window_table
from shadowgraph.render.text.finding_rows import ADVICE, FactRow, end_rows, fact_rows


@dataclass(frozen=True, slots=True)
class Group:
    """Texts under one label; `spare` texts are folded. `css` selects the style: facts, stack or advice."""

    label: str
    lines: tuple[str, ...]
    spare: tuple[str, ...] = ()
    css: str = ""


@dataclass(frozen=True, slots=True)
class Card:
    """A finding, ready for a template."""

    id: int
    code: str
    kind: str
    error: bool
    headline: str
    occurrences: int
    facts: tuple[Group, ...]
    bytes: HexTable | None
    ending: tuple[Group, ...]


@dataclass(frozen=True, slots=True)
class Said:
    """A line of a report; `tone` is bad, warn, head or empty."""

    text: str
    tone: str = ""


_STACKS = {"allocated", "stored by", "launched"}


def card_of(finding: Finding, bytes: HexTable | None = None, more: Iterable[FactRow] = ()) -> Card:
    """The card of a finding with the known bytes around it, by default those that the finding kept, and `more` rows."""
    return Card(
        id=finding.id,
        code=finding.code,
        kind=str(finding.kind),
        error=finding.severity is Severity.ERROR,
        headline=finding.message,
        occurrences=finding.occurrences,
        facts=grouped(fact_rows(finding)),
        bytes=bytes or window_table(finding),
        ending=grouped((*more, *end_rows(finding))),
    )


def grouped(rows: Iterable[FactRow]) -> tuple[Group, ...]:
    """Rows by label, in order; a row without a label, or with the same label as the row before, joins its group."""
    groups: list[tuple[str, list[FactRow]]] = []
    for row in rows:
        if not groups or (row.label and row.label != groups[-1][0]):
            groups.append((row.label, []))
        groups[-1][1].append(row)
    return tuple(_group(label, members) for label, members in groups)


def _group(label: str, rows: Sequence[FactRow]) -> Group:
    lines = tuple(row.text for row in rows if not row.spare)
    css = "stack" if label in _STACKS else "advice" if label == ADVICE else ""
    return Group(label, lines, tuple(row.text for row in rows if row.spare), css)


def said_of(lines: Iterable[Text]) -> tuple[Said, ...]:
    """Lines of a text report with their tones; empty lines are left out."""
    return tuple(Said(line.plain, _tone(str(line.style))) for line in lines if line.plain.strip())


def _tone(style: str) -> str:
    return "bad" if "red" in style else "warn" if "yellow" in style else "head" if "bold" in style else ""
