"""Findings as workflow commands, from which GitHub makes annotations. Pure; `shadowgraph report --github` calls it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from shadowgraph.checks.kinds import kind_of
from shadowgraph.common.console import tame
from shadowgraph.model.findings import Finding, Severity
from shadowgraph.model.run_facts import RunFacts
from shadowgraph.render.source_root import primary_place
from shadowgraph.render.text.folding import folded


def workflow_commands(facts: RunFacts, root: Path) -> Iterator[str]:
    """A command for each finding and note, at the line of the repository that stands for it; none for those suppressed.

    Parameters
    ----------
    root
        The root of the checked-out repository.
    """
    return (_command(told.finding, root) for told in folded(facts))


def _command(finding: Finding, root: Path) -> str:
    place = primary_place(finding, root)
    where = {"file": place.file, "line": str(place.line or 1)} if place is not None else {}
    title = f"{finding.code} {kind_of(finding.code).title}"
    said = ",".join(f"{key}={_property(value)}" for key, value in {**where, "title": title}.items())
    level = "error" if finding.severity is Severity.ERROR else "notice"
    return f"::{level} {said}::{_escaped(tame(finding.message.removeprefix(f'{title}: ')))}"


def _escaped(text: str) -> str:
    """A message, which ends with the line; the runner undoes this."""
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    """A value of a property, which ends at a comma or a colon."""
    return _escaped(tame(text)).replace(":", "%3A").replace(",", "%2C")
