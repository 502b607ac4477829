"""When a finding follows from an overrun, and when it does not: the rules, on findings made by hand."""

from __future__ import annotations

from typing import Any

import pytest
from support.finding_samples import altered

from shadowgraph.checks.base import Checkpoint, Detection
from shadowgraph.checks.invariants.facts import INDEX_RULE, RuleDetail
from shadowgraph.checks.out_of_bounds.facts import overrun_of
from shadowgraph.model.buffers import Buffer, Ledger, Role
from shadowgraph.model.findings import ByteFacts, Culprit, Finding, Status
from shadowgraph.model.guards import Side
from shadowgraph.model.phases import Phase
from shadowgraph.model.ranges import ByteRange
from shadowgraph.monitor.broken_guards import BrokenGuards
from shadowgraph.monitor.consequences import Consequences
from shadowgraph.monitor.finding_store import FindingStore
from shadowgraph.monitor.overrun_chain import OverrunChain

UNKNOWN = Culprit(Status.UNKNOWN)
SEEN = Culprit(Status.CONFIRMED, "triton", "another")
RUNS_OVER = Culprit(Status.CONFIRMED, "triton", "fill")
HEAD, TAIL, SIZE = 64, 64, 256


class Row:
    """Buffers side by side, ``t0`` and so on, each with 64 bytes of guard on both sides, and findings about them."""

    def __init__(self, count: int) -> None:
        self.ledger, self.book, self._order = Ledger(), FindingStore(), 0
        step = HEAD + SIZE + TAIL
        self.buffers = [
            self.ledger.add(Buffer(n + 1, 4096 + step * n, SIZE, Role.STATIC, head_guard=HEAD, tail_guard=TAIL))
            for n in range(count)
        ]
        self.guards = BrokenGuards(self.book, self.ledger)
        self.chain = OverrunChain(self.guards, lambda buffer: f"t{buffer.serial - 1}")
        self.consequences = Consequences(self.guards, self.chain)

    def breaks(self, at: int, side: Side, nbytes: int = TAIL, replay: int = 7, **facts: Any) -> Finding:
        """A sighting of a broken guard, from the buffer's edge on, in the preparation of a replay."""
        buffer = self.buffers[at]
        first = SIZE if side is Side.AFTER else -nbytes
        self._order += 1
        checkpoint = Checkpoint("replay_begin", order=replay)
        start = buffer.start + first
        ranges = ((start, start + nbytes - 1),)
        draft = Detection("SG101", checkpoint, buffer, *ranges[0], nbytes, ranges, side=side)
        found = self._about(at, first, nbytes, side, replay=replay, **{"culprit": UNKNOWN, **facts})
        kept, _ = self.book.add(found, "")
        self.told(kept, *self.chain.noticed(draft, kept))
        return self.now(kept)

    def finds(self, at: int, first: int, nbytes: int, code: str = "SG102", **facts: Any) -> Finding:
        """A sighting of something else about a buffer's bytes."""
        detail = facts.pop("detail", None)
        found = self._about(at, first, nbytes, None, **{"culprit": UNKNOWN, "code": code, "detail": detail, **facts})
        kept, _ = self.book.add(found, code)
        self.told(kept)
        return self.now(kept)

    def told(self, *changed: Finding) -> None:
        self.consequences.of(*(self.now(one) for one in changed))

    def now(self, finding: Finding) -> Finding:
        kept = self.book.get(finding.id)
        assert kept is not None
        return kept

    def _about(self, at: int, first: int, nbytes: int, side: Side | None, **facts: Any) -> Finding:
        buffer, last = self.buffers[at], first + nbytes - 1
        bytes = ByteFacts(first, last, nbytes, ((first, last),), 1, side, 0, False)
        known = {"serial": buffer.serial, "address": buffer.start, "nbytes": SIZE, "name": f"t{at}", "names": ()}
        return altered(
            **{"bytes": bytes, "replay": 7, "candidates": (), **{f"buffer__{k}": v for k, v in known.items()}, **facts}
        )


@pytest.fixture
def row() -> Row:
    """``t0`` was run over as far as the first bytes of ``t1``, by an unknown launch."""
    made = Row(3)
    made.breaks(0, Side.AFTER)
    made.breaks(1, Side.BEFORE)
    assert [(one.name, one.over) for one in overrun_of(made.book.findings[0]).reaches] == [("t1", False)]
    return made


def cause(finding: Finding) -> bool | None:
    """Whether the cause is sure; None where there is none."""
    return finding.caused_by.sure if finding.caused_by is not None else None


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({}, False),
        ({"first": 100}, None),  # away from the edge: the overrun would have changed what lies before, too
        ({"culprit": SEEN}, None),
        ({"replay": 8}, None),
        ({"graph": "graph#9"}, None),
        ({"phase": Phase.REPLAY}, False),  # what prepare left, seen in the replay
        ({"at": 2}, None),  # not reached
    ],
)
def test_changed_bytes_of_an_unknown_launch(row: Row, facts: dict[str, Any], expected: bool | None) -> None:
    made = {"at": 1, "first": 0, "nbytes": 8, **facts}
    assert cause(row.finds(**made)) is expected


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({}, False),
        ({"first": 100}, False),  # it names one of the values only
        ({"culprit": SEEN}, False),  # the last launch that was seen
        ({"replay": 8}, None),
    ],
)
def test_a_rule_that_values_break(row: Row, facts: dict[str, Any], expected: bool | None) -> None:
    made = {"at": 1, "first": 0, "nbytes": 8, "code": "SG109", "detail": RuleDetail("nondecreasing"), **facts}
    assert cause(row.finds(**made)) is expected


def test_an_overrun_that_ends_in_the_guard_changes_nothing_of_the_buffer() -> None:
    row = Row(2)
    row.breaks(0, Side.AFTER)
    short = row._about(1, -HEAD, HEAD - 32, Side.BEFORE, culprit=UNKNOWN)
    assert short.bytes is not None
    buffer = row.buffers[1]
    ranges = ((buffer.start - HEAD, buffer.start - 33),)
    draft = Detection(
        "SG101", Checkpoint("replay_begin", order=7), buffer, *ranges[0], HEAD - 32, ranges, side=Side.BEFORE
    )
    kept, _ = row.book.add(short, "")
    row.told(kept, *row.chain.noticed(draft, kept))
    assert [one.name for one in overrun_of(row.book.findings[0]).reaches] == ["t1"]
    assert cause(row.finds(1, 0, 8)) is None


def index(of: int | None) -> dict[str, Any]:
    return {"code": "SG109", "detail": RuleDetail(f"{INDEX_RULE}: 9", of), "bytes": None, "culprit": SEEN}


@pytest.mark.parametrize(("of", "at", "expected"), [(2, 2, False), (3, 2, None), (3, 1, None), (None, 1, None)])
def test_an_index_is_a_value_of_the_buffer_that_holds_it(
    row: Row, of: int | None, at: int, expected: bool | None
) -> None:
    assert cause(row.finds(at, 0, 0, **index(of))) is expected


def test_the_cause_may_come_later() -> None:
    row = Row(2)
    first = row.finds(1, 0, 8)
    assert cause(first) is None
    overrun = row.breaks(0, Side.AFTER)
    assert cause(row.now(first)) is None, "it did not reach the buffer yet"
    row.breaks(1, Side.BEFORE)
    named = row.now(first)
    assert (cause(named), named.caused_by and named.caused_by.finding) == (False, overrun.id)
    assert named.revision == first.revision + 1


def located(row: Row, finding: Finding, culprit: Culprit, given: int | None) -> None:
    """A closer look has shown the launch."""
    kept = row.book.revise(finding.id, culprit)
    known = row.guards.get(finding.id)
    assert kept is not None
    if known is not None and given is not None:
        known.given[culprit.kind, culprit.name, culprit.node, None] = {given}
    row.told(kept, *row.chain.revised(kept))


def test_one_confirmed_launch_is_a_sure_cause_and_shows_what_was_overwritten(row: Row) -> None:
    changed = row.finds(1, 0, 24, culprit=RUNS_OVER)
    assert cause(changed) is None, "its launch is another one as far as is known"
    for finding in (row.book.findings[0], *row.book.parts):
        located(row, finding, RUNS_OVER, given=1)
    assert cause(row.now(changed)) is True
    (reached,) = overrun_of(row.book.findings[0]).reaches
    assert (reached.name, reached.overwritten, reached.sure) == ("t1", 24, True)
    assert overrun_of(row.book.findings[0]).extent_nbytes == TAIL + HEAD + 24


def test_a_launch_that_was_given_the_buffer_may_have_meant_it(row: Row) -> None:
    for finding in (row.book.findings[0], *row.book.parts):
        located(row, finding, RUNS_OVER, given=1)
    known = next(iter(row.guards))
    known.given[RUNS_OVER.kind, RUNS_OVER.name, None, None] = {1, 2}
    assert cause(row.finds(1, 0, 24, culprit=RUNS_OVER)) is None


def test_further_candidates_of_another_name_make_it_no_sure_one(row: Row) -> None:
    for finding in (row.book.findings[0], *row.book.parts):
        located(row, finding, RUNS_OVER, given=1)
    assert cause(row.finds(1, 0, 24, culprit=RUNS_OVER, candidates=(SEEN,))) is None


def test_another_launch_that_is_shown_later_withdraws_the_cause(row: Row) -> None:
    changed = row.finds(1, 0, 8)
    assert cause(changed) is False
    located(row, changed, SEEN, given=None)
    assert cause(row.now(changed)) is None


def test_what_stores_show_is_exact() -> None:
    row = Row(2)
    row.breaks(0, Side.AFTER, culprit=RUNS_OVER)
    known = next(iter(row.guards))
    known.stores.add(ByteRange(row.buffers[0].stop, row.buffers[1].start + 16))
    row.breaks(0, Side.AFTER, replay=8, culprit=RUNS_OVER)
    (reached,) = overrun_of(row.book.findings[0]).reaches
    assert (reached.name, reached.overwritten) == ("t1", 16)
    assert cause(row.finds(1, 0, 16)) is False
    assert cause(row.finds(1, 8, 16, code="SG106")) is None, "it ends behind what was written"
    rule = {"code": "SG109", "detail": RuleDetail("nondecreasing")}
    assert cause(row.finds(1, 40, 8, **rule)) is None, "behind what was written"


def test_a_guard_is_a_finding_again_once_all_evidence_of_a_check_has_come(row: Row) -> None:
    """Within one check the overrun's own evidence may come later."""
    part = row.breaks(1, Side.BEFORE, replay=9)
    assert part.continues is not None
    row.told(*row.chain.judged())
    again = row.now(part)
    assert (again.continues, cause(again)) == (None, False)


def test_it_stays_a_part_where_the_overrun_is_seen_in_the_same_check(row: Row) -> None:
    part = row.breaks(1, Side.BEFORE, replay=9)
    row.breaks(0, Side.AFTER, replay=9)
    row.told(*row.chain.judged())
    assert row.now(part).continues is not None


def test_memory_without_guards_is_run_over() -> None:
    row = Row(3)
    row.buffers[1].head_guard = row.buffers[1].tail_guard = 0
    row.breaks(0, Side.AFTER)
    row.breaks(2, Side.BEFORE)
    (found,) = row.book.findings
    assert [(one.name, one.over, one.overwritten) for one in overrun_of(found).reaches] == [
        ("t1", True, SIZE),
        ("t2", False, None),
    ]
