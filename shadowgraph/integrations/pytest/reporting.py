"""Findings in a test's report."""

from __future__ import annotations

from typing import Any

import pytest

from shadowgraph.integrations.pytest.failing import TITLE, Findings, told
from shadowgraph.integrations.pytest.windows import Sighting, Window


def complete(window: Window, call: pytest.CallInfo[Any], report: pytest.TestReport) -> None:
    """Put what was seen and not yet shown into the report of a phase that has just ended.

    A test's own failure keeps its place. A test that was expected to fail stays that. One that skips itself after it
    has broken memory fails.
    """
    ours = call.excinfo is not None and isinstance(call.excinfo.value, Findings)
    if ours and report.failed:
        _shorten(report)
    fresh = [sighting for sighting in window.errors() if not sighting.told]
    if not fresh or (report.when == "setup" and report.passed):  # told with the call
        return
    failing = [sighting for sighting in fresh if window.declared.fails(sighting.finding.code)]
    if report.failed:
        if not ours:
            _add_section(report, told(window, fresh))
    elif failing and not hasattr(report, "wasxfail"):
        report.outcome, report.longrepr = "failed", told(window, failing)
    else:
        report.sections.append((TITLE, told(window, fresh)))
    _mark(fresh)


def _add_section(report: pytest.TestReport, text: str) -> None:
    """Where the failure itself is shown, if it can hold more; among what was captured otherwise."""
    add = getattr(report.longrepr, "addsection", None)
    if add is not None:
        add(TITLE, text)
    else:
        report.sections.append((TITLE, text))


def _shorten(report: pytest.TestReport) -> None:
    """The short summary and JUnit's message get the finding's first line, without the name of an exception."""
    crash = getattr(report.longrepr, "reprcrash", None)
    if crash is not None:
        crash.message = str(report.longrepr).split("\n", 1)[0]


def _mark(sightings: list[Sighting]) -> None:
    for sighting in sightings:
        sighting.told = True
