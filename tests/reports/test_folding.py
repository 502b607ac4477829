"""The ranks of a server find the same: it is told once, with each process that found it."""

from __future__ import annotations

import json
from itertools import takewhile
from typing import Any

import pytest
from msgspec.structs import replace
from support.finding_samples import altered, run_of

from shadowgraph.model.findings import Finding, Severity, Status
from shadowgraph.model.overrun_extents import CausedBy, Reached
from shadowgraph.model.phases import Phase
from shadowgraph.render.html.page import live_page
from shadowgraph.render.text.folding import folded, found
from shadowgraph.render.text.text import Report


def of_rank(rank: int, **changes: Any) -> Finding:
    """What one of several processes found."""
    return altered(**{"id": rank + 1, **changes}, pid=100 + rank, rank=rank, device=f"cuda:{rank}")


def said(*findings: Finding) -> list[str]:
    kept = [finding for finding in findings if finding.severity is Severity.ERROR]
    notes = [finding for finding in findings if finding.severity is Severity.NOTE]
    return str(Report(run_of(*kept, notes=tuple(notes)))).splitlines()


def rows(lines: list[str]) -> list[str]:
    """What is told of processes."""
    at = next(index for index, line in enumerate(lines) if line.startswith("  in process"))
    more = takewhile(lambda line: line.startswith(" " * 13), lines[at + 1 :])
    return [lines[at].strip(), *map(str.strip, more)]


def heads(lines: list[str]) -> int:
    return sum(line.startswith("SG101") for line in lines)


def test_what_all_ranks_found_is_told_once() -> None:
    lines = said(*(of_rank(rank, replay=3 + rank, graph="graph#2", occurrences=1 + rank) for rank in range(3)))
    assert heads(lines) == 1
    assert rows(lines) == [
        "in process 100, rank 0, cuda:0",
        "101, rank 1, cuda:1: the same in replay 4 of graph#2, seen 2 times: #2",
        "102, rank 2, cuda:2: the same in replay 5 of graph#2, seen 3 times: #3",
    ]
    assert sum(line.startswith("SUMMARY") for line in lines) == 1
    assert lines[-2] == "shadowgraph: 1 finding (3 with each process's own)"


@pytest.mark.parametrize(
    "change",
    [
        {"fingerprint": "f" * 12},
        {"buffer__name": "draft.other"},
        {"buffer__shape": (6, 64)},
        {"severity": Severity.NOTE},
        {"code": "SG106"},
        {"culprit__status": Status.CANDIDATE},
        {"confidence": "low"},
        {"reaches": (Reached("next", 13, 64, "int32", (16,), False, 128, Phase.PREPARE, "graph#1", 7, False),)},
    ],
    ids=lambda change: next(iter(change)),
)
def test_what_differs_is_told_by_itself(change: dict[str, Any]) -> None:
    lines = said(of_rank(0), of_rank(1, **change))
    assert "  in process 100, rank 0, cuda:0" in lines
    assert "  in process 101, rank 1, cuda:1" in lines
    assert not any("the same" in line for line in lines)


def test_one_process_is_not_named() -> None:
    lines = said(of_rank(0), of_rank(0, graph="graph#9"))
    assert heads(lines) == 2, "what one process found twice are two things"
    assert not any("in process" in line for line in lines)


def test_what_each_process_found_twice_is_told_twice() -> None:
    findings = [replace(of_rank(rank), id=1 + rank + 2 * turn) for turn in range(2) for rank in range(2)]
    told = folded(run_of(*findings))
    assert [[each.finding.id, *(other.id for other in each.elsewhere)] for each in told] == [[1, 2], [3, 4]]


def test_other_bytes_of_the_same_are_told() -> None:
    lines = said(of_rank(0), of_rank(1, bytes__last=4000))
    assert rows(lines)[1].startswith("101, rank 1, cuda:1: the same in replay ")
    assert rows(lines)[1].endswith(", bytes 1,536 to 4,000: #2")


def follows(rank: int, cause: Finding, sure: bool = True, **changes: Any) -> Finding:
    """A finding on another buffer that follows from one."""
    of = CausedBy(cause.id, cause.code, cause.fingerprint, cause.buffer.name, cause.buffer.serial, sure)
    return of_rank(rank, **{"code": "SG109", "id": 40, "fingerprint": "c" * 12, "caused_by": of, **changes})


def test_a_consequence_is_told_behind_its_cause_and_counted_apart() -> None:
    first, other, second = of_rank(0), of_rank(0, fingerprint="b" * 12, buffer__name="other", id=9), of_rank(1)
    told = folded(run_of(first, other, second, follows(0, first), follows(1, second)))
    assert [(each.finding.buffer.name, each.finding.code, len(each.elsewhere)) for each in told] == [
        ("draft.kv_indices", "SG101", 1),
        ("draft.kv_indices", "SG109", 1),
        ("other", "SG101", 0),
    ]
    assert found(run_of(first, other, follows(0, first))) == "2 findings, 1 consequence"
    assert found(run_of(first, follows(0, first), second, follows(1, second))) == (
        "1 finding (2 with each process's own), 1 consequence (2 with each process's own)"
    )


def test_a_possible_consequence_counts_as_a_finding() -> None:
    first = of_rank(0)
    assert found(run_of(first, follows(0, first, sure=False))) == "2 findings"


def test_findings_that_name_each_other_as_cause_are_told() -> None:
    """As a damaged file may say."""
    one = follows(0, of_rank(0, id=2), id=1)
    two = follows(0, of_rank(0, id=1), id=2)
    assert run_of(one, two).told == (one, two)


def test_of_many_ranks_a_few_are_told_one_by_one() -> None:
    lines = said(*(of_rank(rank) for rank in range(64)))
    assert heads(lines) == 1
    assert "             ... and 55 more processes" in lines
    assert len(lines) < 60


def test_nothing_is_lost_in_json_and_the_page_folds_too() -> None:
    made = run_of(of_rank(0), of_rank(1))
    assert [each["pid"] for each in json.loads(Report(made).to_json())["findings"]] == [100, 101]
    page = live_page(made)
    (card,) = page.findings
    (group,) = (group for group in card.ending if group.label == "in process")
    assert group.lines[0] == "100, rank 0, cuda:0"
    assert group.lines[1].startswith("101, rank 1, cuda:1: the same")


@pytest.mark.parametrize(("number", "words"), [(0, "no findings"), (1, "1 finding"), (2, "1 finding (2 with each")])
def test_the_count(number: int, words: str) -> None:
    assert found(run_of(*(of_rank(rank) for rank in range(number)))).startswith(words)
