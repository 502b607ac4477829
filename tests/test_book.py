from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace
from support.finding_samples import AFTER, FINDING, altered, known

from shadowgraph.checks.out_of_bounds.facts import RowOverrun, overrun_of
from shadowgraph.model.findings import ByteFacts, Culprit, Finding, Reader, Severity, Status, Window, fingerprint
from shadowgraph.model.guards import Side
from shadowgraph.model.overrun_extents import CausedBy, Origin, Reached
from shadowgraph.monitor.finding_store import FindingStore

PRINT = fingerprint(FINDING)


@pytest.fixture
def book() -> FindingStore:
    return FindingStore()


# -- bounds ----------------------------------------------------------------------------------------------------------


def test_further_causes_are_counted_and_not_kept() -> None:
    """Such as one for each request of a server that makes the same broken buffer again and again."""
    book = FindingStore(most=3)
    for serial in range(10):
        kept, new = book.add(altered(id=0, buffer__serial=serial), "kernel")
        assert (new, kept.id) == ((True, serial + 1) if serial < 3 else (False, 0))
    assert (len(book), book.dropped) == (3, 7)
    assert book.sentence() == "findings of the first 3 causes are kept; 7 sightings of others are not"
    kept, _ = book.add(altered(id=0, buffer__serial=1), "kernel")
    assert (kept.id, kept.occurrences) == (2, 2), "known ones are counted on"
    assert {len(known) for known in vars(book).values() if isinstance(known, dict)} <= {0, 1, 2, 3}


def test_a_book_that_kept_all_says_nothing(book: FindingStore) -> None:
    book.add(FINDING, "kernel")
    assert book.sentence() is None


# -- merging ---------------------------------------------------------------------------------------------------------


def test_a_first_sighting_gets_an_id_and_its_fingerprint(book: FindingStore) -> None:
    kept, new = book.add(altered(id=0, fingerprint="stale"), "kernel")
    assert new
    assert (kept.id, kept.revision, kept.occurrences, kept.fingerprint) == (1, 1, 1, PRINT)
    assert book.findings == (kept,)
    assert book.notes == ()


def test_the_same_cause_again_is_one_more_occurrence_of_the_first_sighting(book: FindingStore) -> None:
    first, _ = book.add(FINDING, "kernel")
    kept, new = book.add(altered(replay=8), "kernel")
    assert not new
    assert (kept.occurrences, kept.replay, kept.bytes, kept.message) == (2, first.replay, first.bytes, first.message)
    assert (kept.id, kept.revision) == (1, 1)
    assert book.add(FINDING, "kernel")[0].occurrences == 3
    assert len(book.findings) == 1


@pytest.mark.parametrize(
    ("facts", "key"),
    [
        ({"code": "SG102"}, "kernel"),
        ({"buffer__serial": 13}, "kernel"),
        ({"bytes__side": Side.BEFORE}, "kernel"),
        ({"bytes__side": None}, "kernel"),
        ({"bytes": None}, "kernel"),
        ({}, "another kernel"),
    ],
    ids=["code", "buffer", "side", "no side", "no bytes", "key"],
)
def test_another_cause_is_another_finding(book: FindingStore, facts: dict[str, Any], key: str) -> None:
    book.add(FINDING, "kernel")
    kept, new = book.add(altered(**facts), key)
    assert new
    assert kept.id == 2
    assert [finding.id for finding in book.findings] == [1, 2]
    assert [finding.occurrences for finding in book.findings] == [1, 1]


def note(**facts: Any) -> Finding:
    return altered(**{"severity": Severity.NOTE} | facts)


def test_notes_are_kept_apart_and_count_like_findings(book: FindingStore) -> None:
    kept, new = book.add(note(), "kernel")
    assert new
    assert (book.findings, book.notes) == ((), (kept,))
    assert not book.add(note(), "kernel")[1]
    assert book.notes[0].occurrences == 2


def test_a_note_that_proves_a_fault_is_a_new_revision_with_the_surer_facts(book: FindingStore) -> None:
    book.add(note(replay=3, reader=None), "kernel")
    reader = Reader("host", "tolist")
    kept, new = book.add(altered(replay=5, reader=reader), "kernel")
    assert new, "it is told now"
    assert (kept.id, kept.revision, kept.occurrences, kept.severity) == (1, 2, 2, Severity.ERROR)
    assert (kept.replay, kept.reader) == (5, reader), "one sighting's facts, not a mixture"
    assert (book.findings, book.notes) == ((kept,), ())
    assert not book.add(FINDING, "kernel")[1]


def test_a_fault_stays_one_when_it_is_seen_as_a_note(book: FindingStore) -> None:
    book.add(FINDING, "kernel")
    kept, new = book.add(note(replay=99), "kernel")
    assert not new
    assert (kept.severity, kept.occurrences, kept.replay) == (Severity.ERROR, 2, FINDING.replay)


# -- a later sighting that is worse ----------------------------------------------------------------------------------

WORSE = ByteFacts(1536, 1663, 128, ((1536, 1663),), 1, Side.AFTER, 0, True)
WORSE_WINDOW = Window(1520, "a1" * 160, "a1" * 16 + "07" * 128 + "a1" * 16)
WORSE_ROWS = (RowOverrun(2, 128, 32, 0, (3,), 3),)


def worse(**facts: Any) -> Finding:
    return altered(**{"bytes": WORSE, "window": WORSE_WINDOW, "rows": WORSE_ROWS, "replay": 9} | facts)


def test_a_worse_sighting_widens_the_known_one(book: FindingStore) -> None:
    first, _ = book.add(FINDING, "kernel")
    kept, new = book.add(worse(), "kernel")
    assert not new
    assert (kept.id, kept.revision, kept.occurrences) == (1, 2, 2)
    assert (kept.bytes, kept.window, overrun_of(kept).rows) == (WORSE, WORSE_WINDOW, WORSE_ROWS)
    assert (kept.phase, kept.graph, kept.replay) == (first.phase, first.graph, first.replay)
    assert "wrote up to 128 bytes past the end" in kept.message
    assert kept.message.endswith("first while preparing replay 7 of graph#1")
    assert book.findings == (kept,)


def test_a_milder_sighting_changes_nothing_but_the_count(book: FindingStore) -> None:
    first, _ = book.add(worse(), "kernel")
    kept, _ = book.add(FINDING, "kernel")
    assert kept == replace(first, occurrences=2)


def test_the_extremes_of_two_sightings_are_kept(book: FindingStore) -> None:
    book.add(altered(bytes=ByteFacts(-40, -30, 11, ((-40, -30),), 1, Side.BEFORE, 29, False)), "kernel")
    second = ByteFacts(-20, -1, 9, ((-20, -17), (-5, -1)), 2, Side.BEFORE, 0, True)
    kept, _ = book.add(altered(bytes=second, window=WORSE_WINDOW), "kernel")
    ranges = second.ranges
    assert kept.bytes == ByteFacts(-40, -1, 11, ranges, 2, Side.BEFORE, 0, True), "ranges of the wider sighting"
    assert (kept.revision, kept.window) == (2, WORSE_WINDOW)


def test_more_bytes_within_the_same_extent_are_no_new_revision(book: FindingStore) -> None:
    book.add(FINDING, "kernel")
    full = replace(AFTER, count=48, ranges=((1536, 1583),), ranges_total=1)
    kept, _ = book.add(altered(bytes=full, window=WORSE_WINDOW), "kernel")
    assert (kept.bytes, kept.window, kept.revision) == (full, WORSE_WINDOW, 1)


def test_a_note_does_not_widen_a_fault(book: FindingStore) -> None:
    first, _ = book.add(FINDING, "kernel")
    kept, _ = book.add(worse(severity=Severity.NOTE), "kernel")
    assert (kept.bytes, kept.revision, kept.occurrences) == (first.bytes, 1, 2)


# -- rules that stay broken ------------------------------------------------------------------------------------------


def broken_rule(at: str, index: int = 2, value: int = 9) -> Finding:
    broken = ByteFacts(4 * index, 4 * index + 3, 4, ((4 * index, 4 * index + 3),), 1, None, 0, False)
    rule = f"index_range(0, 8): [{index}] = {value}"
    return altered(code="SG109", detected_at=at, rule=rule, bytes=broken)


def test_a_check_that_sees_the_same_breach_adds_nothing(book: FindingStore) -> None:
    first, _ = book.add(broken_rule("replay_begin"), "rule")
    for _ in range(5):
        assert book.add(broken_rule("check"), "rule") == (first, False)
    assert book.add(broken_rule("replay_begin"), "rule")[0].occurrences == 2, "a replay relied on it again"


def test_another_breach_is_one_occurrence_however_often_it_is_checked(book: FindingStore) -> None:
    first, _ = book.add(broken_rule("check"), "rule")
    for _ in range(3):
        kept, _ = book.add(broken_rule("check", index=0, value=8), "rule")
        assert kept.occurrences == 2
    assert (kept.detail, kept.bytes, kept.revision) == (first.detail, first.bytes, 1), "bytes and text of one breach"
    assert book.add(broken_rule("check", value=10), "rule")[0].occurrences == 3


def test_a_check_may_prove_what_was_a_note(book: FindingStore) -> None:
    book.add(replace(broken_rule("replay_begin"), severity=Severity.NOTE), "rule")
    kept, new = book.add(broken_rule("check"), "rule")
    assert new
    assert (kept.severity, kept.revision, kept.occurrences) == (Severity.ERROR, 2, 2)


def test_other_findings_at_a_check_are_counted(book: FindingStore) -> None:
    book.add(altered(detected_at="check"), "kernel")
    assert book.add(altered(detected_at="check"), "kernel")[0].occurrences == 2


def test_findings_stay_in_order_of_arrival(book: FindingStore) -> None:
    for key in "cab":
        book.add(FINDING, key)
    book.add(FINDING, "b")
    assert [(finding.id, finding.occurrences) for finding in book.findings] == [(1, 1), (2, 1), (3, 2)]


# -- suppressions ----------------------------------------------------------------------------------------------------


def test_what_is_suppressed_is_counted_and_not_kept() -> None:
    book = FindingStore(known(PRINT))
    kept, new = book.add(FINDING, "kernel")
    assert not new
    assert kept.fingerprint == PRINT
    book.add(FINDING, "kernel")
    assert (book.findings, book.notes, book.suppressed) == ((), (), 2)
    other, new = book.add(altered(culprit__name="another"), "another")
    assert new
    assert (other.id, book.findings, book.suppressed) == (1, (other,), 2)


# -- closer looks ----------------------------------------------------------------------------------------------------

MAYBE = altered(culprit__status=Status.CANDIDATE)
SEEN = Culprit(Status.CONFIRMED, "triton", "another", 4, seen_in=9)


def test_a_closer_look_is_a_new_revision_of_the_same_finding(book: FindingStore) -> None:
    first, _ = book.add(MAYBE, "kernel")
    others = (Culprit(Status.CONFIRMED, "aten", "third", 5),)
    kept = book.revise(first.id, SEEN, others)
    assert kept is not None
    assert (kept.id, kept.revision, kept.occurrences, kept.fingerprint) == (first.id, 2, 1, first.fingerprint)
    assert (kept.culprit, kept.candidates) == (SEEN, others)
    assert "another (node 4) wrote 48 bytes" in kept.message
    assert book.findings == (kept,)
    assert book.get(first.id) is kept
    again, new = book.add(MAYBE, "kernel")
    assert (again.culprit, again.revision, again.occurrences, new) == (SEEN, 2, 2, False)


def test_nothing_to_revise(book: FindingStore) -> None:
    assert book.revise(1, SEEN) is None
    assert book.get(1) is None


@pytest.mark.parametrize(
    ("facts", "joins"),
    [
        ({}, True),
        ({"culprit__name": "whoever"}, True),
        ({"culprit__status": Status.CONFIRMED}, False),
        ({"replay": 90}, True),
        ({"graph": "graph#2"}, False),
        ({"bytes__side": Side.BEFORE}, False),
        ({"buffer__serial": 99}, False),
    ],
    ids=["same", "name", "confirmed", "replay", "graph", "side", "buffer"],
)
def test_later_candidates_belong_to_what_a_closer_look_confirmed(
    book: FindingStore, facts: dict[str, Any], joins: bool
) -> None:
    book.add(MAYBE, "kernel")
    _, new = book.add(altered(**{"culprit__status": Status.CANDIDATE, **facts}), "one more")
    assert new, "nothing is known yet"
    book = FindingStore()
    first, _ = book.add(MAYBE, "kernel")
    book.revise(first.id, SEEN)
    kept, new = book.add(altered(**{"culprit__status": Status.CANDIDATE, **facts}), "one more")
    assert (kept.id == first.id, not new) == (joins, joins)


def test_a_look_that_saw_nobody_joins_nothing(book: FindingStore) -> None:
    first, _ = book.add(MAYBE, "kernel")
    book.revise(first.id, replace(MAYBE.culprit, status=Status.NOT_REPRODUCED, seen_in=9))
    _, new = book.add(MAYBE, "one more")
    assert new


@pytest.mark.parametrize(
    ("seen", "facts", "joins"),
    [
        (replace(SEEN, node=None), {}, True),
        (replace(SEEN, node=None), {"graph": "graph#2"}, True),
        (replace(SEEN, node=None), {"bytes__side": Side.BEFORE}, False),
        (replace(SEEN, node=None, name="third"), {}, False),
        (SEEN, {}, True),
        (SEEN, {"graph": "graph#2"}, False),
        (replace(SEEN, node=5), {}, False),
    ],
    ids=["same", "another graph's prepare", "side", "name", "node", "node of another graph", "another node"],
)
def test_a_launch_that_a_closer_look_confirmed_is_known_under_any_key(
    book: FindingStore, seen: Culprit, facts: dict[str, Any], joins: bool
) -> None:
    first, _ = book.add(MAYBE, "kernel")
    book.revise(first.id, replace(SEEN, node=None if seen.node is None else SEEN.node))
    kept, new = book.add(altered(**{"culprit": seen, **facts}), "another")
    assert (kept.id == first.id, not new) == (joins, joins)


LATE = altered(culprit=Culprit(Status.UNKNOWN), confidence="low")


@pytest.mark.parametrize(
    ("before", "exact", "joins"),
    [
        (LATE, False, True),
        (replace(LATE, culprit=Culprit(Status.NOT_REPRODUCED, seen_in=8)), False, True),
        (replace(LATE, culprit=Culprit(Status.UNKNOWN, "unseen")), False, False),
        (replace(LATE, confidence="high"), False, False),
        (replace(LATE, buffer=replace(LATE.buffer, serial=99)), False, False),
        (LATE, True, False),
    ],
    ids=["unknown", "not seen again", "nobody that we see", "seen at once", "buffer", "stores are known"],
)
def test_what_was_seen_too_late_to_know_who_did_it_is_of_the_launch_that_is_seen_later(
    book: FindingStore, before: Finding, exact: bool, joins: bool
) -> None:
    first, _ = book.add(before, "", exact=exact)
    kept, new = book.add(FINDING, "kernel", exact=exact)
    assert (kept.id == first.id, not new) == (joins, joins)
    if joins:
        book.revise(first.id, FINDING.culprit)
        assert book.add(altered(culprit__name="another"), "another", exact=exact)[1], "it is known now"


ORIGIN = Origin("draft.kv_indices", 12, "feedfeedfeed")


def test_part_of_an_overrun_is_neither_finding_nor_note(book: FindingStore) -> None:
    first, _ = book.add(FINDING, "kernel")
    tied = book.tie(first.id, ORIGIN)
    assert tied is not None
    assert (tied.continues, tied.severity, tied.revision) == (ORIGIN, Severity.NOTE, 2)
    kept, new = book.add(worse(), "kernel")
    assert (kept.severity, kept.bytes, kept.occurrences, new) == (Severity.NOTE, WORSE, 2, False)
    assert (book.findings, book.notes, book.parts, len(book)) == ((), (), (kept,), 0)
    again = book.tie(first.id, None)
    assert again is not None
    assert (again.continues, again.severity, book.notes) == (None, Severity.ERROR, ())
    assert (book.findings, book.parts, len(book)) == ((again,), (), 1)
    assert book.tie(99, ORIGIN) is None


CAUSE = CausedBy(1, "SG101", "feedfeedfeed", "draft.kv_indices", 12, True)


def test_a_cause_stays_with_further_sightings_and_can_be_withdrawn(book: FindingStore) -> None:
    first, _ = book.add(FINDING, "kernel")
    named = book.set_cause(first.id, CAUSE)
    assert named is not None
    assert (named.caused_by, named.revision, named.is_consequence) == (CAUSE, 2, True)
    kept, _ = book.add(worse(), "kernel")
    assert (kept.caused_by, kept.bytes) == (CAUSE, WORSE)
    withdrawn = book.set_cause(first.id, None)
    assert withdrawn is not None
    assert (withdrawn.caused_by, withdrawn.is_consequence) == (None, False)
    assert book.set_cause(99, CAUSE) is None


def test_what_says_most_of_a_buffer(book: FindingStore) -> None:
    reached = Reached("lens", 13, 16, "int64", (2,), True, 2000, FINDING.phase, "graph#1", 45)
    assert book.about(13) is None
    note, _ = book.add(altered(severity=Severity.NOTE, buffer__serial=13), "a note")
    assert book.about(13) == note
    overrun, _ = book.add(altered(reaches=(reached,), reaches_total=1), "an overrun")
    assert book.about(13) == overrun
    own, _ = book.add(altered(code="SG102", detail=None, buffer__serial=13), "its own")
    assert book.about(13) == own
    book.set_cause(own.id, CAUSE)
    assert book.about(13) == overrun


def test_a_sighting_under_the_mark_of_those_before(book: FindingStore) -> None:
    kept, _ = book.add(FINDING, "kernel", "feedfeedfeed")
    assert kept.fingerprint == "feedfeedfeed"
    quiet = FindingStore(known("feedfeedfeed"))
    _, new = quiet.add(FINDING, "kernel", "feedfeedfeed")
    assert (new, quiet.suppressed, quiet.findings) == (False, 1, ())
