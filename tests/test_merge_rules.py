"""What is kept of two sightings of one cause, rule by rule; the store as a whole is in `test_book.py`."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from support.finding_samples import AFTER, BUFFER, FINDING, altered

from shadowgraph.checks.dangling.facts import DanglingDetail
from shadowgraph.checks.out_of_bounds.facts import RowOverrun, overrun_of
from shadowgraph.model.findings import Culprit, Finding, Severity, Sighting, Status, Successor, Window
from shadowgraph.model.overrun_extents import Origin
from shadowgraph.model.phases import Phase
from shadowgraph.model.steps import StepFacts
from shadowgraph.monitor.merge_rules import (
    RULES,
    error_replaces_note,
    first_example_stays,
    kind_decides,
    merged,
    shows_nothing_new,
    widest_bytes,
    writer_unknown,
)

NOTE = replace(FINDING, severity=Severity.NOTE)
RULE = altered(rule="nondecreasing: [2] = 1 after [1] = 2", detected_at="check")
FREED = altered(code="SG104", bytes=None, detail=DanglingDetail("live-in", False, "freed", 0, 7))
TAKEN = altered(
    code="SG104",
    bytes=None,
    detail=DanglingDetail("live-in", False, "freed", 0, 7, (Successor("victim", 16, 8, "int8", (8,)),)),
)


def test_the_order_of_the_rules() -> None:
    assert (error_replaces_note, kind_decides, first_example_stays, widest_bytes) == RULES


def test_an_error_replaces_a_note_under_its_id() -> None:
    kept = error_replaces_note(replace(NOTE, id=4, revision=2), replace(FINDING, replay=9))
    assert kept is not None
    assert (kept.id, kept.revision, kept.severity, kept.replay) == (4, 3, Severity.ERROR, 9)
    assert error_replaces_note(FINDING, NOTE) is None
    assert error_replaces_note(NOTE, NOTE) is None


def test_a_note_of_a_tied_overrun_stays_a_note() -> None:
    tied = replace(NOTE, continues=Origin("a", 1, "0" * 12))
    assert merged(tied, FINDING).severity is Severity.NOTE


def test_a_kind_may_decide() -> None:
    kept = kind_decides(FREED, TAKEN)
    assert kept is not None
    assert (kept.detail, kept.revision) == (TAKEN.detail, FREED.revision + 1), "who has the bytes is known now"
    assert kind_decides(TAKEN, FREED) is TAKEN
    assert kind_decides(FINDING, FINDING) is None


def test_the_first_example_stays() -> None:
    another = altered(rule="nondecreasing: [7] = 0 after [6] = 9")
    assert first_example_stays(RULE, another) is RULE
    assert first_example_stays(FINDING, NOTE) is FINDING
    assert first_example_stays(FINDING, FINDING) is None


def test_the_widest_bytes_and_what_is_shown_with_them() -> None:
    rows = (RowOverrun(2, 128, 32, 0, (3,), 3),)
    wide = altered(bytes=replace(AFTER, last=1663, count=128), window=Window(0, "00", "01"), rows=rows)
    kept = widest_bytes(FINDING, wide)
    assert kept is not None
    assert kept.bytes is not None
    assert (kept.bytes.first, kept.bytes.last, kept.bytes.count) == (1536, 1663, 128)
    assert (kept.window, overrun_of(kept).rows, kept.revision) == (wide.window, rows, 2)
    assert kept.widest == Sighting(wide.phase, wide.graph, wide.replay)
    assert widest_bytes(wide, FINDING) is wide
    assert widest_bytes(FREED, FREED) is FREED


def test_the_reach_of_an_overrun_outlives_wider_bytes() -> None:
    known = altered(reaches_total=3)
    kept = widest_bytes(known, altered(bytes=replace(AFTER, last=1663, count=128)))
    assert kept is not None
    assert overrun_of(kept).reaches_total == 3


def test_each_merge_is_one_more_occurrence() -> None:
    for known, again in ((NOTE, FINDING), (FREED, TAKEN), (FINDING, NOTE), (FINDING, FINDING)):
        assert merged(replace(known, occurrences=5), again).occurrences == 6


def test_a_recheck_of_the_same_breach_shows_nothing_new() -> None:
    assert shows_nothing_new(RULE, FINDING, RULE)
    assert not shows_nothing_new(replace(RULE, detected_at="replay_begin"), RULE), "a replay relied on it again"
    assert not shows_nothing_new(FINDING, FINDING)


def test_whether_the_writer_is_unknown() -> None:
    late = replace(FINDING, confidence="low", culprit=Culprit(Status.UNKNOWN))
    assert writer_unknown(late)
    assert not writer_unknown(replace(late, confidence="high"))
    assert not writer_unknown(replace(late, culprit=FINDING.culprit))
    assert not writer_unknown(altered(code="SG102", confidence="low", culprit=Culprit(Status.UNKNOWN), buffer=BUFFER))


STEP = StepFacts(45, "graph#3", "graph#14", 12, 2, 11)
OF_STEP = replace(FINDING, phase=Phase.STEP, graph="graph#14", replay=45, step=STEP, culprit=Culprit(Status.CANDIDATE))


def in_piece(number: int, *places: int, phase: Phase = Phase.REPLAY, first: str = "graph#3") -> Finding:
    step = StepFacts(number, first, "graph#14", 12, *places)
    return replace(OF_STEP, phase=phase, graph="graph#9", replay=number + 100, step=step, culprit=FINDING.culprit)


@pytest.mark.parametrize(
    ("phase", "places"), [(Phase.REPLAY, (7, 7)), (Phase.BETWEEN, (1, 2)), (Phase.BETWEEN, (11, 12))]
)
def test_a_later_sighting_shows_the_piece(phase: Phase, places: tuple[int, int]) -> None:
    kept = merged(OF_STEP, in_piece(50, *places, phase=phase))
    assert (kept.phase, kept.graph, kept.replay) == (phase, "graph#9", 145), "the replay of the first sighting's step"
    assert kept.step == replace(STEP, since=places[0], until=places[1])
    assert (kept.revision, kept.culprit) == (2, FINDING.culprit)


@pytest.mark.parametrize(
    "again",
    [
        in_piece(50, 7, 7, first="graph#2"),
        in_piece(50, 1, 1),
        in_piece(50, 2, 8, phase=Phase.STEP),
        in_piece(50, 1, 1, phase=Phase.PREPARE),
        replace(FINDING, phase=Phase.REPLAY),
    ],
    ids=["another order", "a piece that did nothing then", "the step again", "its preparation", "no step"],
)
def test_a_sighting_that_shows_no_piece(again: Finding) -> None:
    kept = merged(OF_STEP, again)
    assert (kept.phase, kept.graph, kept.step) == (Phase.STEP, "graph#14", STEP)


def test_a_confirmed_culprit_stays() -> None:
    known = replace(OF_STEP, culprit=replace(FINDING.culprit, status=Status.CONFIRMED, name="known"))
    assert merged(known, in_piece(50, 7, 7)).culprit.name == "known"
