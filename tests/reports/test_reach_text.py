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
from shadowgraph.model.overrun_extents import Origin, Reached
from shadowgraph.model.phases import Phase
from shadowgraph.render.html.page import live_page
from shadowgraph.render.text.finding_rows import FactRow, advice, fact_rows
from shadowgraph.render.text.text import Report
from shadowgraph.wrap.folder.process_record import ProcessRecord

NAMED = "draft.kv_indices (int32[3, 128], 1,536 bytes)"
WHEN = "while preparing replay 7 of graph#1"
LENS = Reached("lens", 13, 16, "int64", (2,), True, 2000, Phase.PREPARE, "graph#1", 45)
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


def test_a_row_for_each_buffer_that_it_went_on_to() -> None:
    assert list(OutOfBoundsKind().extent_rows(altered(reaches=(LENS, IDS)))) == [
        (
            "reaches",
            "lens (int64[2], 16 bytes) and goes over it, so that its contents are lost; first while preparing replay "
            "45 of graph#1",
        ),
        ("", "the guard before ids (int64[8], 64 bytes); first at the latest in replay 46 of graph#2"),
    ]
    many = list(OutOfBoundsKind().extent_rows(altered(reaches=(LENS, IDS), reaches_total=9)))
    assert [label for label, _ in many] == ["reaches", "", ""]
    assert many[1][1] == "... and 7 more before the next"
    assert ", over lens and 7 more, while" in altered(reaches=(LENS, IDS), reaches_total=9).message
    before = replace(AFTER, side=Side.BEFORE, first=-48, last=-1)
    assert "the guard after ids" in next(OutOfBoundsKind().extent_rows(altered(reaches=(IDS,), bytes=before)))[1]
    assert list(OutOfBoundsKind().extent_rows(FINDING)) == []


def test_where_it_went_on_is_tied_to_it() -> None:
    assert BROKEN.message == (
        "SG101 out-of-bounds write: fill_indices wrote 512 bytes before the start of lens (int64[2], 16 bytes), going "
        f"on from draft.kv_indices, {WHEN}"
    )
    said = f"the overrun of draft.kv_indices (finding {FINDING.fingerprint}): the launch was given no pointer into this"
    assert FactRow("continues", f"{said} buffer") in list(fact_rows(BROKEN))
    assert advice(BROKEN) == f"The fault lies with draft.kv_indices: see finding {FINDING.fingerprint}."


def test_that_there_may_be_more_is_not_said_where_it_is_known() -> None:
    more = "so there may be more"
    truncated = replace(AFTER, truncated=True)

    def geometry(finding: Finding) -> str:
        return next(row.text for row in fact_rows(finding) if row.label == "bytes")

    assert more in geometry(altered(bytes=truncated))
    assert more not in geometry(altered(bytes=truncated, reaches=(LENS,)))
    assert more not in geometry(BROKEN)


def test_it_stands_behind_its_finding_and_is_not_counted_as_one() -> None:
    other = altered(buffer__serial=77, id=2, fingerprint="eeeeeeeeeeee")
    note = altered(severity=Severity.NOTE, id=4)
    facts = run_of(FINDING, other, notes=(note, BROKEN))
    assert facts.told == (FINDING, BROKEN, other, note)
    assert facts.damage == (FINDING, other, BROKEN)
    said = str(Report(facts))
    assert said.count("SUMMARY: shadowgraph: ") == 2
    assert "shadowgraph: 2 findings, 2 notes;" in said
    assert said.index("#1, ") < said.index("#3, ") < said.index("#2, ")
    page = live_page(facts)
    assert [card.id for card in page.findings] == [1, 3, 2]
    assert [card.id for card in page.notes] == [4]


def test_a_process_counts_it_with_its_overrun() -> None:
    assert ProcessRecord(Path("findings-1-2.jsonl"), findings=[FINDING, BROKEN]).found == 1


def test_it_is_a_note_like_others_where_its_finding_is_not_told() -> None:
    alone = replace(BROKEN, pid=1)
    assert run_of(FINDING, notes=(alone,)).told == (FINDING, alone)


def test_it_is_redacted() -> None:
    origin = Origin("cache['a prompt'].x", 1, "feedfeedfeed")
    kept = redacted(altered(reaches=(PAST,), continues=origin))
    assert "a prompt" not in msgspec.json.encode(kept).decode()
    assert kept.detail.reaches == (replace(PAST, name="cache[...].x"),)
