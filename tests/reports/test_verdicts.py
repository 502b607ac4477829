from __future__ import annotations

from typing import Any

import pytest
from support.finding_samples import CULPRIT, altered

from shadowgraph.checks.dangling.facts import DanglingDetail
from shadowgraph.checks.kinds import kind_of
from shadowgraph.checks.lost_preparation.facts import Known, LostDetail, LostWrite
from shadowgraph.checks.out_of_bounds.facts import RowOverrun
from shadowgraph.checks.rebound.facts import Evidence, ReboundDetail
from shadowgraph.checks.stale_rows.facts import StaleRowsDetail, StaleStretch
from shadowgraph.checks.unordered_access.facts import Missing, UnorderedDetail
from shadowgraph.checks.verdicts import revised, when, who
from shadowgraph.common.words import counted, form, plural
from shadowgraph.model.findings import ByteFacts, Culprit, Finding, Reader, Severity, Status, Successor
from shadowgraph.model.guards import Side
from shadowgraph.model.phases import Phase
from shadowgraph.model.steps import StepFacts
from shadowgraph.render.text.finding_rows import advice

WHEN = "while preparing replay 7 of graph#1"
NAMED = "draft.kv_indices (int32[3, 128], 1,536 bytes)"
NODE = Culprit(Status.CONFIRMED, "aten", "aten.add_", 4)
BY = tuple(Successor(name, 4096, 16, "int32", (4,)) for name in "bcd")


def rows(*lost: int) -> tuple[RowOverrun, ...]:
    return tuple(RowOverrun(index, 128, 16, count, (index + 1,), 99) for index, count in enumerate(lost))


def bytes_at(first: int, last: int, side: Side | None, count: int | None = None) -> ByteFacts:
    changed = last - first + 1 if count is None else count
    return ByteFacts(first, last, changed, ((first, last),), 1, side, 0, False)


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ({}, f"fill_indices wrote 48 bytes past the end of {NAMED} {WHEN}"),
        ({"bytes": bytes_at(1536, 1536, Side.AFTER)}, f"fill_indices wrote 1 byte past the end of {NAMED} {WHEN}"),
        (
            {"bytes": bytes_at(1536, 1536 + 4447, Side.AFTER, 9), "culprit": NODE, "phase": Phase.REPLAY},
            f"aten.add_ (node 4) wrote 4,448 bytes past the end of {NAMED} in replay 7 of graph#1",
        ),
        (
            {"bytes": bytes_at(-12, -5, Side.BEFORE), "culprit": Culprit(Status.UNKNOWN)},
            f"an unseen writer wrote 12 bytes before the start of {NAMED} {WHEN}",
        ),
        (
            {"bytes": bytes_at(512, 520, Side.SLACK)},
            f"fill_indices wrote bytes [512, 520] of {NAMED}, which this graph did not capture, {WHEN}",
        ),
        (
            {"bytes": bytes_at(512, 520, None)},
            f"fill_indices wrote bytes [512, 520] of {NAMED}, outside the view that it was given, {WHEN}",
        ),
        (
            {"bytes": bytes_at(512, 520, None), "severity": Severity.NOTE},
            f"fill_indices wrote bytes [512, 520] of {NAMED}, beyond its view, {WHEN}",
        ),
        (
            {"bytes": bytes_at(512, 520, Side.ROW), "rows": rows(1)},
            f"fill_indices wrote past the width of row 0 of {NAMED} into the next; 1 entry lost {WHEN}",
        ),
        (
            {"bytes": bytes_at(512, 520, Side.ROW), "rows": rows(200, 1008, 0)},
            f"fill_indices wrote past the width of rows 0, 1, 2 of {NAMED} into the next; 1,208 entries lost {WHEN}",
        ),
        (
            {"bytes": bytes_at(512, 520, Side.ROW), "rows": rows(1, 1, 1, 1)},
            f"fill_indices wrote past the width of rows 0, 1, 2, 3 of {NAMED} into the next; 4 entries lost {WHEN}",
        ),
        (
            {"bytes": bytes_at(512, 520, Side.ROW), "rows": rows(*[1] * 5)},
            f"fill_indices wrote past the width of rows 0, 1, 2, 3 and 1 more of {NAMED} into the next; "
            f"5 entries lost {WHEN}",
        ),
        (
            {"bytes": bytes_at(512, 520, Side.ROW), "rows": rows(*[1] * 64)},
            f"fill_indices wrote past the width of rows 0, 1, 2, 3 and 60 more of {NAMED} into the next; "
            f"64 entries lost {WHEN}",
        ),
    ],
    ids=[
        "after",
        "one byte",
        "in a replay",
        "before",
        "slack",
        "view",
        "note",
        "one row",
        "rows",
        "four",
        "five",
        "many rows",
    ],
)
def test_out_of_bounds(facts: dict[str, Any], said: str) -> None:
    assert altered(**facts).message == f"SG101 out-of-bounds write: {said}"


@pytest.mark.parametrize(
    ("reader", "owned"),
    [
        (None, "which host code owns,"),
        (Reader("host", "tolist"), "which the host had read before and read again (tolist) without writing it,"),
    ],
)
def test_mutation(reader: Reader | None, owned: str) -> None:
    finding = altered(code="SG102", reader=reader, bytes=bytes_at(0, 7, None, 5), culprit=NODE, phase=Phase.REPLAY)
    said = f"aten.add_ (node 4) changed 5 bytes of draft.kv_indices, {owned} in replay 7 of graph#1"
    assert finding.message == f"SG102 in-graph mutation: {said}"


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        (DanglingDetail("live-in", False, "freed", 0, 7), "reads {}, freed since the capture,"),
        (
            DanglingDetail("live-in", True, "moved", 0, 7),
            "reads and writes {}, moved to other memory since the capture,",
        ),
        (DanglingDetail("external-out", True, "freed", 0, 7, BY[:1]), "writes {}, freed since the capture, now b,"),
        (DanglingDetail("live-in", False, "freed", 0, 7, BY[:2]), "reads {}, freed since the capture, now b and c,"),
        (
            DanglingDetail("live-in", False, "freed", 0, 7, BY),
            "reads {}, freed since the capture, now b and c and 1 more,",
        ),
        (DanglingDetail("live-in", True, "freed", 0, 7, known=False), "was given {}, freed since the capture,"),
        (None, "uses {}, which is gone,"),
    ],
)
def test_dangling(facts: DanglingDetail | None, said: str) -> None:
    finding = altered(code="SG104", bytes=None, culprit=NODE, phase=Phase.REPLAY, detail=facts)
    expected = f"aten.add_ (node 4) {said.format(NAMED)} in replay 7 of graph#1"
    assert finding.message == f"SG104 dangling pointer: {expected}"


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        (
            StaleRowsDetail(4, (StaleStretch(1, 3, "g", 6),), ((0, 0),)),
            "rows 1 to 3 of {} still hold what was written for replay 6 of g, though row 0 was refreshed,",
        ),
        (
            StaleRowsDetail(4, (StaleStretch(2, 2, "g", 6),), ((0, 1),)),
            "row 2 of {} still holds what was written for replay 6 of g, though rows 0 to 1 were refreshed,",
        ),
        (
            StaleRowsDetail(4, (StaleStretch(2, 2, "g", 5), StaleStretch(3, 3, "h", 6)), ((0, 1),)),
            "rows 2, 3 of {} still hold what was written for replay 6 of h, though rows 0 to 1 were refreshed,",
        ),
        (
            StaleRowsDetail(64, tuple(StaleStretch(row, row, None, None) for row in range(1, 12, 2)), ((0, 0), (2, 2))),
            "rows 1, 3, 5, 7 and 2 more stretches of {} still hold what was written for an older replay, "
            "though rows 0, 2 were refreshed,",
        ),
        (
            StaleRowsDetail(4, (), ()),
            "rows unknown of {} still hold what was written for an older replay, though rows unknown were refreshed,",
        ),
        (None, "rows of {} hold what they held in an older replay"),
    ],
    ids=["one stretch", "one row", "several", "many", "made up", "dumped without"],
)
def test_stale_rows(facts: StaleRowsDetail | None, said: str) -> None:
    finding = altered(code="SG103", bytes=bytes_at(8, 31, None), detail=facts)
    named = "draft.kv_indices (int32[3, 128])"
    assert finding.message == f"SG103 stale rows: {said.format(named)} {WHEN}"


def test_invariant() -> None:
    rule = "nondecreasing: [3] = 1 after [2] = 5"
    said = f"draft.kv_indices breaks {rule}, last written by fill_indices, {WHEN}"
    assert altered(code="SG109", rule=rule).message == f"SG109 invariant broken: {said}"


WORDED = {"SG101", "SG102", "SG103", "SG104", "SG106", "SG108", "SG109", "SG112", "SG114", "SG115"}


@pytest.mark.parametrize(
    ("phase", "graph", "said"),
    [
        (Phase.PREPARE, "graph#1", "while preparing replay 7 of graph#1"),
        (Phase.REPLAY, "graph#1", "in replay 7 of graph#1"),
        (Phase.PREPARE, None, "in prepare"),
        (Phase.REPLAY, None, "in a replay"),
        (Phase.SETUP, None, "during set-up, before any replay"),
        (Phase.CAPTURE, "graph#1", "during a capture"),
        (Phase.EAGER, None, "in eager code"),
        (Phase.BETWEEN, "graph#1", "between two pieces of a step"),
        (Phase.STEP, "graph#1", "in a step of pieces"),
    ],
)
def test_when(phase: Phase, graph: str | None, said: str) -> None:
    finding = altered(phase=phase, graph=graph)
    assert when(finding) == said
    assert finding.message.endswith(f" {said}")


@pytest.mark.parametrize(
    ("phase", "places", "said"),
    [
        (Phase.PREPARE, (1, 1), "while preparing step 45 of graph#3 to graph#14"),
        (Phase.REPLAY, (7, 7), "in replay 7 of graph#1, piece 7 of 12 in step 45 of graph#3 to graph#14"),
        (Phase.BETWEEN, (3, 4), "between pieces 3 and 4 of 12 in step 45 of graph#3 to graph#14"),
        (Phase.STEP, (2, 11), "in step 45 of graph#3 to graph#14, in one of pieces 2 to 11 of 12 or next to it"),
        (Phase.STEP, (2, 2), "in step 45 of graph#3 to graph#14, in piece 2 of 12 or next to it"),
        (Phase.EAGER, (1, 1), "in eager code"),
    ],
)
def test_when_in_a_step(phase: Phase, places: tuple[int, int], said: str) -> None:
    finding = altered(phase=phase, graph="graph#1", step=StepFacts(45, "graph#3", "graph#14", 12, *places))
    assert when(finding) == said


@pytest.mark.parametrize(
    ("culprit", "said"),
    [(CULPRIT, "fill_indices"), (NODE, "aten.add_ (node 4)"), (Culprit(Status.UNKNOWN), "an unseen writer")],
)
def test_who(culprit: Culprit, said: str) -> None:
    assert who(altered(culprit=culprit)) == said
    first = Culprit(Status.CONFIRMED, "aten", "aten.add_", 0)
    assert who(altered(culprit=first)) == "aten.add_ (node 0)"


def test_numbers_and_forms() -> None:
    assert [plural(n, "byte") for n in (0, 1, 2, 4448)] == ["0 bytes", "1 byte", "2 bytes", "4,448 bytes"]
    assert (form("int32", (3, 128)), form("bool", (7,)), form("float32", ())) == (
        "int32[3, 128]",
        "bool[7]",
        "float32[]",
    )


def finding_on(side: Side | None, code: str = "SG101") -> Finding:
    return altered(code=code, bytes=bytes_at(0, 3, side))


def test_advice_by_kind_and_side() -> None:
    said = [advice(finding_on(side)) for side in (Side.AFTER, Side.SLACK, Side.ROW, None)]
    said += [advice(finding_on(None, code)) for code in ("SG102", "SG109")]
    assert all(said)
    assert len(set(said)) == 6
    assert advice(finding_on(Side.BEFORE)) == said[0]
    assert advice(altered(code="SG109", bytes=None)) == said[-1]
    assert "what they index" in advice(altered(code="SG109", bytes=None, rule="index in range: 2 along"))
    assert "padding(tensor, 'dont_care')" in advice(finding_on(None, "SG103"))
    assert "capture again" in advice(altered(code="SG104", bytes=None))


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ({}, f"fill_indices wrote up to 48 bytes past the end of {NAMED} first {WHEN}"),
        (
            {"bytes": bytes_at(-12, -5, Side.BEFORE)},
            f"fill_indices wrote up to 12 bytes before the start of {NAMED} first {WHEN}",
        ),
    ],
)
def test_the_worst_of_several_sightings(facts: dict[str, Any], said: str) -> None:
    assert altered(grown=True, **facts).message == f"SG101 out-of-bounds write: {said}"


# -- closer looks ----------------------------------------------------------------------------------------------------


def test_a_write_that_none_of_the_arguments_leads_to() -> None:
    facts = bytes_at(12, 16, None)
    said = altered(code="SG106", bytes=facts, phase=Phase.REPLAY, culprit__node=3).message
    changed = "changed 5 bytes of draft.kv_indices (int32[3, 128]), where none of its arguments leads, in replay 7"
    assert said == f"SG106 foreign write: fill_indices (node 3) {changed} of graph#1"


def test_a_race() -> None:
    others = tuple(Culprit(Status.CONFIRMED, "aten", f"k{index}", index) for index in range(5))
    facts = {"code": "SG112", "bytes": bytes_at(12, 16, None), "phase": Phase.REPLAY}
    said = altered(**facts, candidates=others, culprit__node=9).message
    assert "fill_indices (node 9) and k0 (node 0) and k1 (node 1) and k2 (node 2) write the same bytes [12, 16]" in said
    assert "k3" not in said


def test_a_culprit_that_did_not_do_it_again() -> None:
    assert "perhaps fill_indices wrote" in altered(culprit__status=Status.NOT_REPRODUCED).message
    assert "perhaps" not in altered(culprit__status=Status.CANDIDATE).message


def test_an_unseen_writer_is_placed() -> None:
    nobody = Culprit(Status.UNKNOWN, "unseen", file="/srv/app/draft.py", line=7)
    assert "an unseen writer before draft.py:7 wrote" in altered(culprit=nobody).message
    assert "an unseen writer wrote" in altered(culprit=Culprit(Status.UNKNOWN)).message


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ({"culprit__seen_in": 9}, "seen in a closer look of replay 9 at draft.py:120"),
        ({}, "seen in a closer look at draft.py:120"),
        (
            {"culprit__seen_in": 9, "culprit__status": Status.NOT_REPRODUCED},
            "not seen again in a closer look of replay 9",
        ),
        ({"culprit": Culprit(Status.UNKNOWN, "unseen")}, "no launch that we saw did it, says a closer look"),
    ],
    ids=["replay", "launch", "not reproduced", "unseen"],
)
def test_the_line_of_the_log(facts: dict[str, Any], said: str) -> None:
    found = altered(**facts, revision=2)
    line = revised(found)
    assert line.startswith(f"finding #1, revision 2: {found.message}: ")
    assert said in line
    assert "\n" not in line


@pytest.mark.parametrize(
    ("rebound", "said"),
    [
        (None, ", which host code does not refresh any more,"),
        (
            ReboundDetail("attn.wrapper._buf", True, BY[0], True),
            ", but attn.wrapper._buf leads to b since, which host code refreshes instead,",
        ),
        (
            ReboundDetail("attn.wrapper._buf", True),
            ", but attn.wrapper._buf leads to other memory since, which host code refreshes instead,",
        ),
        (
            ReboundDetail("attn.wrapper._buf", False, BY[0], True),
            ", which host code did not refresh, but b, as the plan needs,",
        ),
        (
            ReboundDetail("attn.wrapper._buf", False, None, True),
            ", which host code did not refresh, as the plan needs,",
        ),
        (
            ReboundDetail("attn.meta.table", True, BY[0], evidence=Evidence.NAME, refreshes=2),
            ", which was not refreshed, but attn.meta.table leads to other memory since, with new values,",
        ),
        (
            ReboundDetail("", False, BY[0], evidence=Evidence.COPY, refreshes=2),
            ", which was not refreshed, but b was, which no code reads,",
        ),
        (
            ReboundDetail("", False, None, evidence=Evidence.WINDOW, refreshes=2),
            ", which was not refreshed, but other memory was, which no code reads,",
        ),
    ],
)
def test_a_rebound_input(rebound: ReboundDetail | None, said: str) -> None:
    finding = altered(code="SG108", detail=rebound, bytes=None)
    assert finding.message == f"SG108 rebound input: graph#1 reads draft.kv_indices (int32[3, 128]){said} {WHEN}"
    assert advice(finding).startswith("A graph keeps addresses, not names.")


def test_a_lost_preparation() -> None:
    lost = LostWrite("aten.copy_.default", "aten", "/srv/app/draft.py", 11)
    named = (
        "SG114 lost preparation: what aten.copy_.default prepared in draft.kv_indices (int32[3, 128]) for replay 7 of"
    )
    for other, by in (("graph#2", "for replay 8 of graph#2"), ("graph#1", "for its replay 8")):
        finding = altered(code="SG114", detail=LostDetail(lost, other, 8, Known.ORDER))
        assert finding.message == f"{named} graph#1 was overwritten by fill_indices {by} before graph#1 read it, {WHEN}"
    unsure = altered(code="SG114", detail=LostDetail(lost, "graph#2", 8, Known.COUNT), confidence="low")
    assert "was perhaps overwritten by" in unsure.message
    assert advice(unsure).startswith("Prepare a graph right before its replay")
    told = dict(kind_of("SG114").rows(unsure))
    assert told["lost"] == "aten.copy_.default at /srv/app/draft.py:11, for replay 7"
    assert told["for"] == "replay 8 of graph#2: what the culprit wrote"


@pytest.mark.parametrize(
    ("unordered", "said"),
    [
        (None, " in no order with a replay of graph#1 that reads it,"),
        (
            UnorderedDetail(Missing.REPLAY_AFTER_WRITE, 0x70, 0),
            " on stream 0x70, and nothing orders that before the replay of graph#1, on the default stream, that reads "
            "it,",
        ),
        (
            UnorderedDetail(Missing.BOTH, 0, 0x70, 3),
            " on the default stream, and nothing orders that before the replay of graph#1, on stream 0x70, that reads "
            "it,",
        ),
        (
            UnorderedDetail(Missing.WRITE_AFTER_REPLAY, 0x70, 0x80, 6),
            " on stream 0x70 while replay 6 of graph#1, on stream 0x80, may still read it,",
        ),
    ],
)
def test_an_unordered_access(unordered: UnorderedDetail | None, said: str) -> None:
    finding = altered(code="SG115", detail=unordered)
    writes = "fill_indices writes draft.kv_indices (int32[3, 128])"
    assert finding.message == f"SG115 unordered access: {writes}{said} {WHEN}"
    assert advice(finding).startswith("Let the stream of the replay wait")


@pytest.mark.parametrize("evidence", [each for each in Evidence if each is not Evidence.DECLARED])
def test_a_report_of_what_was_not_declared_says_what_is_known_and_what_is_inferred(evidence: Evidence) -> None:
    finding = altered(code="SG108", detail=ReboundDetail("", False, BY[0], evidence=evidence, refreshes=1), bytes=None)
    rows = dict(kind_of("SG108").rows(finding))
    assert list(rows) == ["instead", "known", "inferred"]
    assert rows["known"].endswith("seen at 1 replay, while the graph's memory kept its bytes")
    assert rows["inferred"].endswith(", as nothing was declared")


@pytest.mark.parametrize(
    ("count", "said"),
    [
        (64, "a 64"),
        (80, "an 80"),
        (8_192, "an 8,192"),
        (11, "an 11"),
        (18_432, "an 18,432"),
        (110, "a 110"),
        (0, "a 0"),
    ],
)
def test_a_number_behind_its_article(count: int, said: str) -> None:
    assert counted(count) == said
