"""Texts of batches and plans that rows of the launch log share: written once, with the numbers in the rows."""

from __future__ import annotations

from support.launch_logs import note_batch, note_plan

from shadowgraph.model import launch_log_format as form
from shadowgraph.model.launch_log import LaunchLog, SharedText
from shadowgraph.model.launch_log_format import OPEN, RowKind
from shadowgraph.model.launch_log_reader import LoggedEvent, contents_of


def batch() -> SharedText:
    return SharedText(RowKind.BATCH, "2 requests", f"; {OPEN} tokens; ids a, b")


def events(log: LaunchLog) -> list[LoggedEvent]:
    return [row for row in contents_of(log.memory).since(0) if isinstance(row, LoggedEvent)]


def texts(log: LaunchLog) -> list[str]:
    return [row.text for row in events(log)]


def test_rows_of_a_text_differ_in_their_numbers() -> None:
    log, said, plan = (
        LaunchLog.anonymous(),
        batch(),
        SharedText(RowKind.PLAN, "P", f": {OPEN} requests, {OPEN} entries"),
    )
    log.note_shared(said, 7, 18, [103, 9])
    log.note_shared(plan, 7, 18, (2, -112))
    log.note_shared(said, 7, 19, [104])
    first, second, third = events(log)
    assert (first.kind, first.graph, first.replay, first.text) == (
        RowKind.BATCH, 7, 18, "2 requests; 103, 9 tokens; ids a, b",
    )  # fmt: skip
    assert (second.kind, second.text) == (RowKind.PLAN, "P: 2 requests, -112 entries")
    assert (third.replay, third.text) == (19, "2 requests; 104 tokens; ids a, b")
    assert said.where[1] == 1
    assert log.lost == 0


def test_numbers_are_left_out_where_the_log_is_redacted() -> None:
    log = LaunchLog.anonymous(redact=True)
    log.note_shared(batch(), 7, 18, [0x1122334455667788])
    assert texts(log) == ["2 requests"]
    assert (0x1122334455667788).to_bytes(8, "little") not in bytes(log.memory)


def test_a_shared_text_is_written_again_before_others_take_its_slot() -> None:
    log, said = LaunchLog.anonymous(), batch()
    for at in range(3 * form.SLOTS):
        log.note_shared(said, 1, at, [at])
        note_plan(log, f"plan {at}")
    batches = [row for row in events(log) if row.kind is RowKind.BATCH]
    assert [row.text for row in batches[-60:]] == [
        f"2 requests; {row.replay} tokens; ids a, b" for row in batches[-60:]
    ]
    for at in range(form.SLOTS // 2 - 2):  # the last row outlives as many
        note_plan(log, f"plan {at}")
    assert batches[-1] in events(log)


def test_another_log_has_the_text_too() -> None:
    said = batch()
    for log in (LaunchLog.anonymous(), LaunchLog.anonymous()):
        note_batch(log, "another")
        log.note_shared(said, 1, 1, [5])
        assert texts(log) == ["another", "2 requests; 5 tokens; ids a, b"]


def test_numbers_that_do_not_fit_are_counted() -> None:
    log, said = LaunchLog.anonymous(), batch()
    log.note_shared(said, 1, 1, range(form.NUMBERS))
    log.note_shared(said, 1, 2, range(form.NUMBERS + 1))
    log.note_shared(said, 1, 3, [1 << 63])
    assert texts(log) == ["2 requests; 0, 1, 2, 3, 4, 5, 6, 7, 8, 9 tokens; ids a, b"]
    assert log.lost == 2


def test_a_log_of_any_origin_may_have_other_numbers_than_its_text() -> None:
    log, many = LaunchLog.anonymous(), SharedText(RowKind.PLAN, "a", OPEN + "b" + OPEN)
    log.note_shared(many, 1, 1, [])
    log.note_shared(many, 1, 1, [1])
    log.note_shared(SharedText(RowKind.PLAN, "no place", ""), 1, 1, [1, 2])
    note_batch(log, "many ", OPEN * 4000)
    for site in (1 << 31, 11):  # more numbers than a row has
        place = form.ROWS_AT + log.newest * form.ROW + form.TAIL_AT + 20
        log.memory[place : place + 4] = site.to_bytes(4, "little")
        assert texts(log)[:3] == ["ab", "a1b", "no place"]
        assert texts(log)[3].startswith("many 0000000000")
