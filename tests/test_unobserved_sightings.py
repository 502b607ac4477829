"""Findings of damage that was first seen while launches were not observed."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from support.finding_samples import FINDING, altered, known

from shadowgraph.model.findings import Culprit, Severity, Status, fingerprint
from shadowgraph.monitor import unobserved_sightings
from shadowgraph.monitor.finding_store import FindingStore

PRINT = fingerprint(FINDING)
UNSEEN = {"culprit": Culprit(Status.UNKNOWN)}


@pytest.fixture
def book() -> FindingStore:
    return FindingStore()


def test_the_next_observed_sighting_tells_more(book: FindingStore) -> None:
    first, new = book.add(altered(**UNSEEN, replay=3), "", observed=False)
    assert new
    assert not book.add(altered(**UNSEEN, replay=9), "", observed=False)[1], "once more of the same"
    candidate = replace(FINDING.culprit, status=Status.CANDIDATE)
    kept, new = book.add(altered(replay=12, culprit=candidate), "kernel")
    assert not new
    assert (kept.id, kept.revision, kept.occurrences, kept.replay) == (first.id, 2, 3, 3), "the first bad replay stays"
    assert kept.culprit == candidate
    assert book.add(altered(replay=13), "kernel")[0].occurrences == 4
    assert book.add(altered(**UNSEEN), "", observed=False)[0].occurrences == 5, "of the cause that was last seen there"
    assert book.findings == (book.get(1),)


def test_places_that_were_suppressed_are_forgotten_after_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unobserved_sightings, "_MOST", 3)
    book = FindingStore(known(PRINT))
    for serial in range(10):
        book.add(altered(buffer__serial=serial), "kernel")
        book.add(altered(**UNSEEN, buffer__serial=serial), "", observed=False)
    assert (len(book), book.suppressed) == (0, 20)
    assert {len(known) for known in vars(book._unobserved).values() if isinstance(known, dict)} == {0, 3}


def test_another_side_or_buffer_is_another_matter(book: FindingStore) -> None:
    book.add(altered(**UNSEEN), "", observed=False)
    assert book.add(altered(buffer__serial=13), "kernel")[0].id == 2
    assert len(book.findings) == 2


def test_an_error_stays_one_whatever_it_turns_out_to_be(book: FindingStore) -> None:
    book.add(altered(**UNSEEN), "", observed=False)
    kept, _ = book.add(altered(severity=Severity.NOTE), "kernel")
    assert (kept.id, kept.severity) == (1, Severity.ERROR)


def test_a_place_is_quiet_in_unobserved_until_something_else_is_seen_there() -> None:
    book = FindingStore(known(PRINT))
    book.add(FINDING, "kernel")
    assert not book.add(altered(**UNSEEN), "", observed=False)[1]
    assert (len(book), book.suppressed) == (0, 2)
    other = replace(FINDING.culprit, name="another_kernel")
    kept, _ = book.add(altered(culprit=other), "another")
    again, _ = book.add(altered(**UNSEEN), "", observed=False)
    assert (again.id, again.occurrences) == (kept.id, 2)


def test_what_turns_out_to_be_suppressed_is_hidden() -> None:
    book = FindingStore(known(PRINT))
    book.add(altered(**UNSEEN), "", observed=False)
    assert len(book.findings) == 1
    kept, new = book.add(FINDING, "kernel")
    assert (kept.id, kept.suppressed_by, kept.fingerprint, new) == (1, "known.txt:1", PRINT, False)
    assert (book.findings, book.notes, book.hidden) == ((), (), (kept,))
    assert book.suppressed == 2


def test_the_first_second_fourth_time_in_unobserved_are_reasons_to_watch(book: FindingStore) -> None:
    stirs = []
    for _ in range(9):
        before = book.stirs
        book.add(altered(**UNSEEN), "", observed=False)
        stirs.append(book.stirs > before)
    assert [at for at, stirred in enumerate(stirs, 1) if stirred] == [1, 2, 4, 8]
