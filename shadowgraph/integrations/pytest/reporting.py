"""Adds findings to a test's report."""

from __future__ import annotations

from typing import Any

import pytest

from shadowgraph.integrations.pytest.failing import TITLE, Findings, told
from shadowgraph.integrations.pytest.windows import Sighting, Window


def complete(window: Window, call: pytest.CallInfo[Any], report: pytest.TestReport) -> None:
    """Add sightings that no report has shown to the report of the phase that has just ended.

    A test's own failure keeps its place. An expected failure stays one. A test that breaks memory and then skips itself
    fails.
    """
    ours = _is_ours(call)
    if ours and report.failed:
        _shorten(report)
    fresh = [sighting for sighting in window.errors() if not sighting.told]
    if not fresh or (report.when == "setup" and report.passed):  # shown with the call
        return
    if not report.failed:
        _fail_or_note(window, fresh, report)
    elif not ours:
        _add_section(report, told(window, fresh))
    _mark(fresh)


def _is_ours(call: pytest.CallInfo[Any]) -> bool:
    """Whether a phase failed by its findings, and not by the test itself."""
    return call.excinfo is not None and isinstance(call.excinfo.value, Findings)


def _fail_or_note(window: Window, fresh: list[Sighting], report: pytest.TestReport) -> None:
    """Turn a report without a failure into one where its sightings fail the test, else attach them."""
    failing = [sighting for sighting in fresh if window.declared.fails(sighting.finding.code)]
    if failing and not hasattr(report, "wasxfail"):
        report.outcome, report.longrepr = "failed", told(window, failing)
    else:
        report.sections.append((TITLE, told(window, fresh)))


def _add_section(report: pytest.TestReport, text: str) -> None:
    """Add to the failure's own sections when it supports them, else to the captured output."""
    add = getattr(report.longrepr, "addsection", None)
    if add is not None:
        add(TITLE, text)
    else:
        report.sections.append((TITLE, text))


def _shorten(report: pytest.TestReport) -> None:
    """Use the finding's first line, without an exception name, in the short summary and in JUnit's message."""
    crash = getattr(report.longrepr, "reprcrash", None)
    if crash is not None:
        crash.message = str(report.longrepr).split("\n", 1)[0]


def _mark(sightings: list[Sighting]) -> None:
    for sighting in sightings:
        sighting.told = True
