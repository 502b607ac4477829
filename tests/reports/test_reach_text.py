"""What is said of an overrun that went on, and of where it went on."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace
from support.finding_samples import AFTER, BUFFER, FINDING, altered, run_of

from shadowgraph.checks.out_of_bounds.kind import OutOfBoundsKind
from shadowgraph.dumps.redaction import redacted
from shadowgraph.model.findings import Finding, Severity
from shadowgraph.model.guards import Side
from shadowgraph.model.overrun_extents import CausedBy, Origin, Reached
from shadowgraph.model.phases import Phase
from shadowgraph.model.run_facts import document
from shadowgraph.render.html.page import live_page
from shadowgraph.render.text.finding_rows import FactRow, advice, fact_rows
from shadowgraph.render.text.text import Report
from shadowgraph.views.memory_map import damage_of
from shadowgraph.wrap.folder.process_record import Counts, ProcessRecord

NAMED = "draft.kv_indices (int32[3, 128], 1,536 bytes)"
WHEN = "while preparing replay 7 of graph#1"
LENS = Reached("lens", 13, 16, "int64", (2,), True, 2000, Phase.PREPARE, "graph#1", 45, overwritten=16)
PART = replace(LENS, over=False, overwritten=12)
IDS = Reached("ids", 14, 64, "int64", (8,), False, 2600, Phase.REPLAY, "graph#2", 46, late=True)
PAST = replace(LENS, name="cache['a prompt'].x")

BROKEN = altered(
    buffer=replace(BUFFER, name="lens", serial=13, shape=(2,), dtype="int64", nbytes=16),
    bytes=replace(AFTER, first=-512, last=-1, ranges=((-512, -1),), ranges_total=1, side=Side.BEFORE, truncated=True),
    severity=Severity.NOTE,
    continues=Origin("draft.kv_indices", 12, FINDING.fingerprint),
    id=3,
    fingerprint="ffffffffffff",
)


@pytest.mark.parametrize(
    ("reaches", "side", "said"),
    [
        ((), Side.AFTER, f"48 bytes past the end of {NAMED} {WHEN}"),
        ((LENS,), Side.AFTER, f"2,000 bytes past the end of {NAMED}, over lens, {WHEN}"),
        ((IDS,), Side.AFTER, f"2,600 bytes past the end of {NAMED}, as far as ids, {WHEN}"),
        ((LENS, IDS), Side.AFTER, f"2,600 bytes past the end of {NAMED}, over lens, {WHEN}"),
        ((LENS, LENS), Side.AFTER, f"2,000 bytes past the end of {NAMED}, over lens and lens, {WHEN}"),
        ((LENS,) * 4, Side.AFTER, f"2,000 bytes past the end of {NAMED}, over lens, lens and 2 more, {WHEN}"),
        ((LENS,), Side.BEFORE, f"2,000 bytes before the start of {NAMED}, over lens, {WHEN}"),
    ],
)
def test_the_verdict_of_an_overrun_that_went_on(reaches: tuple[Reached, ...], side: Side, said: str) -> None:
    first = 1536 if side is Side.AFTER else -48
    found = altered(reaches=reaches, reaches_total=len(reaches), bytes=replace(AFTER, side=side, first=first))
    assert found.message == f"SG101 out-of-bounds write: fill_indices wrote {said}"


def test_the_extent_and_a_row_for_each_buffer_that_it_ran_over() -> None:
    assert list(OutOfBoundsKind().extent_rows(altered(reaches=(LENS, PART, IDS), extent_nbytes=2604))) == [
        ("extent", "2,604 bytes past the end, to the last one that is known"),
        ("ran over", "lens (int64[2]): all its 16 bytes; first while preparing replay 45 of graph#1"),
        ("", "lens (int64[2]): 12 of its 16 bytes; first while preparing replay 45 of graph#1"),
        ("", "the guard before ids (int64[8]); first at the latest in replay 46 of graph#2"),
    ]
    many = list(OutOfBoundsKind().extent_rows(altered(reaches=(LENS, IDS), reaches_total=9)))
    assert [label for label, _ in many] == ["extent", "ran over", "", ""]
    assert many[2][1] == "... and 7 more before the next"
    assert ", over lens and 7 more, while" in altered(reaches=(LENS, IDS), reaches_total=9).message
    before = replace(AFTER, side=Side.BEFORE, first=-48, last=-1)
    rows = list(OutOfBoundsKind().extent_rows(altered(reaches=(IDS,), bytes=before)))
    assert rows[0] == ("extent", "2,600 bytes before the start, to the last one that is known")
    assert "the guard after ids" in rows[1][1]
    assert list(OutOfBoundsKind().extent_rows(FINDING)) == []


def test_doubt_is_told() -> None:
    unsure = altered(reaches=(replace(LENS, sure=False),))
    assert list(OutOfBoundsKind().extent_rows(unsure))[1][1].endswith(
        "; its launch is not confirmed, the changed bytes lie next to each other"
    )
    older = altered(reaches=(replace(LENS, overwritten=None),))
    assert list(OutOfBoundsKind().extent_rows(older))[1][1].startswith("lens (int64[2]): unknown which of its bytes;")


def test_a_broken_guard_that_was_withdrawn_names_its_overrun() -> None:
    assert BROKEN.message == (
        "SG101 out-of-bounds write: fill_indices wrote 512 bytes before the start of lens (int64[2], 16 bytes), going "
        f"on from draft.kv_indices, {WHEN}"
    )
    said = f"the overrun of draft.kv_indices (finding {FINDING.fingerprint})"
    assert FactRow("continues", said) in list(fact_rows(BROKEN))
    assert advice(BROKEN) == f"The fault lies with draft.kv_indices: see finding {FINDING.fingerprint}."


CAUSE = CausedBy(7, "SG101", FINDING.fingerprint, "draft.kv_indices", 12, True)
RULE = altered(code="SG109", detail=None, buffer=BROKEN.buffer, id=3, fingerprint="ffffffffffff", caused_by=CAUSE)


def test_a_consequence_names_its_cause() -> None:
    assert RULE.message.endswith(f"{WHEN}, caused by SG101 of draft.kv_indices #7")
    said = f"SG101 of draft.kv_indices (#7, fingerprint {FINDING.fingerprint}): the same launch ran over this buffer"
    assert FactRow("caused by", said) in list(fact_rows(RULE))
    assert advice(RULE) == f"The fault lies with draft.kv_indices: see finding {FINDING.fingerprint}."
    perhaps = replace(RULE, caused_by=replace(CAUSE, sure=False))
    assert perhaps.message.endswith(", perhaps caused by SG101 of draft.kv_indices #7")
    assert next(row.text for row in fact_rows(perhaps) if row.label == "caused by").startswith("perhaps SG101 of draft")
    assert advice(perhaps) == OutOfBoundsKind.remedy or "see finding" not in advice(perhaps)


def test_that_there_may_be_more_is_not_said_where_it_is_known() -> None:
    more = "so there may be more"
    truncated = replace(AFTER, truncated=True)

    def geometry(finding: Finding) -> str:
        return next(row.text for row in fact_rows(finding) if row.label == "bytes")

    assert more in geometry(altered(bytes=truncated))
    assert more not in geometry(altered(bytes=truncated, reaches=(LENS,)))
    assert more not in geometry(BROKEN)


def test_a_part_is_damage_and_is_not_counted() -> None:
    other = altered(buffer__serial=77, id=2, fingerprint="eeeeeeeeeeee")
    note = altered(severity=Severity.NOTE, id=4)
    facts = run_of(FINDING, other, RULE, notes=(note,), parts=(BROKEN,))
    assert facts.told == (FINDING, other, RULE, note), "no finding of this run has the number that the cause names"
    assert facts.damage == (FINDING, other, RULE, BROKEN)
    said = str(Report(facts))
    assert said.count("SUMMARY: shadowgraph: ") == 3
    assert "shadowgraph: 2 findings, 1 consequence, 1 note\n" in said
    page = live_page(facts)
    assert [card.id for card in page.findings] == [1, 2, 3]
    assert [card.id for card in page.notes] == [4]
    assert [each["id"] for each in document(facts)["parts"]] == [3]


def test_a_map_shows_a_part_under_the_number_of_its_overrun() -> None:
    origin = replace(BROKEN.continues, finding=1)
    assert damage_of(replace(BROKEN, continues=origin), 0).finding == 1
    assert damage_of(FINDING, 0).finding == FINDING.id


def test_a_process_counts_it_with_its_overrun() -> None:
    assert ProcessRecord(Path("findings-1-2.jsonl"), findings=[FINDING, BROKEN]).found == Counts(findings=1)


def test_it_is_redacted() -> None:
    origin = Origin("cache['a prompt'].x", 1, "feedfeedfeed")
    kept = redacted(altered(reaches=(PAST,), continues=origin, caused_by=replace(CAUSE, buffer="cache['a prompt'].x")))
    assert "a prompt" not in msgspec.json.encode(kept).decode()
    assert kept.detail.reaches == (replace(PAST, name="cache[...].x"),)
    assert kept.caused_by == replace(CAUSE, buffer="cache[...].x")
