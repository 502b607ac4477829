"""Turns the findings of a test into its failure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from shadowgraph.common.words import plural
from shadowgraph.integrations.pytest.windows import Sighting, Window
from shadowgraph.render.text.text import finding_lines

TITLE = "shadowgraph"
_Failed: Any = pytest.fail.Exception  # type checkers do not accept it as a class


class Findings(_Failed):  # type: ignore[misc]
    """The failure of a test with findings."""

    __module__ = "shadowgraph"  # in the short summary

    def __init__(self, text: str) -> None:
        super().__init__(text, pytrace=False)  # the cause is a kernel, not a Python frame of the plugin


def verdict_of(window: Window) -> Findings | None:
    """The failure for findings, or for missing expected ones, up to the end of the call; None when the test passes."""
    missing, failing = window.missing(), window.failing()
    if missing:
        found = f"; found {', '.join(window.codes())}" if window.sightings and window.codes() else ""
        return Findings("\n".join([f"DID NOT FIND {', '.join(missing)}{found}", *_body(window, window.errors())]))
    if not failing:
        return None
    return Findings(told(window, failing))


def told(window: Window, sightings: Iterable[Sighting]) -> str:
    """Sightings as text, with the most important line first."""
    shown = list(sightings)
    first = shown[0].finding.message
    head = [] if len(shown) == 1 else [f"{plural(len(shown), 'finding')}: {first}"]
    return "\n".join([*head, *_body(window, shown)])


def shown(sighting: Sighting) -> list[str]:
    """One sighting, formatted as in a report."""
    where = [row("seen", sighting.where)] if sighting.where else []
    first, *rest = [line.plain.rstrip() for line in finding_lines(sighting.finding)]
    return [first, *where, *rest]


def row(label: str, text: str) -> str:
    """A line below a finding's first, formatted as in a report."""
    return f"  {label:<11}{text}"


def _body(window: Window, sightings: Iterable[Sighting]) -> list[str]:
    lines = [line for sighting in sightings for line in shown(sighting)]
    return [*lines, row("dump", str(window.dump))] if window.dump is not None else lines
