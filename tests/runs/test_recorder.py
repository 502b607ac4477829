"""Records of findings that several threads tell of, each when it has released the debugger's lock."""

from __future__ import annotations

from pathlib import Path

import msgspec
from support.finding_samples import altered

import shadowgraph as sg
from shadowgraph.wrap.folder.findings_log import FindingsLog
from shadowgraph.wrap.inject.findings_logger import FindingsLogger


def records(path: Path) -> list[tuple[str, int, int]]:
    """Kind, revision and occurrences of each record of a finding."""
    lines = [msgspec.json.decode(line) for line in path.read_bytes().splitlines()]
    told = [line for line in lines if "finding" in line]
    return [(line["kind"], line["finding"]["revision"], line["finding"]["occurrences"]) for line in told]


def test_an_older_state_that_comes_late_is_not_written_over_a_newer_one(tmp_path: Path) -> None:
    journal, errors = FindingsLog(tmp_path), list[int]()
    with sg.debug() as debugger:
        recorder = FindingsLogger(journal, debugger, 1, lambda: errors.append(1))
        for revision, occurrences in ((1, 1), (3, 4), (2, 2), (3, 3), (3, 8), (4, 8)):
            recorder.hear(altered(id=1, revision=revision, occurrences=occurrences))
        assert records(journal.path) == [("finding", 1, 1), ("revision", 3, 4), ("revision", 3, 8), ("revision", 4, 8)]
        recorder.hear(altered(id=2, revision=1, occurrences=1))
    assert errors == [1], "the first error alone is dumped for"


def test_a_dump_is_asked_for_without_the_recorder_s_lock(tmp_path: Path) -> None:
    with sg.debug() as debugger:
        free: list[bool] = []
        recorder = FindingsLogger(
            FindingsLog(tmp_path), debugger, 1, lambda: free.append(not recorder._lock._is_owned())
        )  # type: ignore[attr-defined]
        recorder.hear(altered(id=1))
    assert free == [True]


def test_a_logger_that_left_hears_nothing_and_one_whose_debugger_ended_hears_findings(tmp_path: Path) -> None:
    """In a forked child, and of a debugger that starts again, another logger takes its place."""
    with sg.debug() as debugger:
        first, second = (FindingsLogger(FindingsLog(tmp_path), debugger, book, lambda: None) for book in (1, 2))
        ticks: list[str] = []
        told = debugger.monitor.subscriptions
        debugger.runner.subscribe_checked_replays(lambda: ticks.append("checked"))
        first.leave_replays()
        told.findings.post(altered(id=1))
        told.replay_checked.call()
        first.leave()
        told.findings.post(altered(id=2))
    assert records(first._log.path) == [("finding", 1, 1)]
    assert len(records(second._log.path)) == 2
    assert b'"interim"' not in first._log.path.read_bytes()
    assert b'"interim"' in second._log.path.read_bytes()
    assert ticks == ["checked"]
