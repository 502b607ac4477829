"""Checks in flight on a device, with the device's part played: slots, order of results, and records that arrive."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from shadowgraph.engines.base import NodeCheck, Result
from shadowgraph.engines.evidence_queue import EvidenceQueue
from shadowgraph.engines.ring import RECORD, SLOTS
from shadowgraph.model.buffers import Buffer, Role
from shadowgraph.model.guards import guards_of
from shadowgraph.model.ranges import ByteRange

GUARDS = guards_of(Buffer(1, 4096, 100, Role.STATIC, head_guard=64, tail_guard=64), 64)
PARTS = (("key", ByteRange(4096, 4196)),)


class Played:
    """A queue over memory that the test writes as a device would."""

    def __init__(self) -> None:
        self.records = np.zeros(SLOTS, dtype=RECORD)
        self.done = np.zeros(SLOTS, dtype=np.uint32)
        memory: Any = SimpleNamespace(records=self.records, done=self.done.data)
        self.queue = EvidenceQueue(cast(Any, None), memory)
        self._written = 0

    def enter(self, tag: object) -> int:
        serial = self.queue.enter(tag, GUARDS, PARTS, None)
        assert serial is not None
        return serial

    def finish(self, *serials: int) -> None:
        for serial in serials:
            self.done[serial % SLOTS] = serial

    def record(self, serial: int, index: int, is_part: bool = False) -> None:
        """A check has found a change."""
        row = self.records[self._written % SLOTS]
        row["check"], row["index"], row["is_part"] = serial, index, is_part
        row["first"], row["last"], row["count"] = 4196, 4197, 2
        self._written += 1
        row["sequence"] = self._written

    def taken(self, everything: bool = False, lost: bool = False) -> list[tuple[object, list[object]]]:
        results: list[Result] = self.queue.take(everything, lost)
        return [(result.tag, [one.subject for one in result.evidence]) for result in results]


@pytest.fixture
def played() -> Played:
    return Played()


def test_evidence_belongs_to_its_check_in_a_fixed_order(played: Played) -> None:
    first, second = played.enter("first"), played.enter("second")
    played.record(second, 0, is_part=True)
    played.record(second, 1)
    played.record(first, 1)
    played.record(second, 0)
    played.finish(first, second)
    assert played.taken() == [("first", [GUARDS[1]]), ("second", [GUARDS[0], GUARDS[1], "key"])]
    assert played.queue.idle
    assert not played.queue.unfinished


def test_results_wait_for_the_checks_before_them_unless_all_are_wanted(played: Played) -> None:
    first, second = played.enter("first"), played.enter("second")
    played.record(second, 0)
    played.finish(second)
    assert played.taken() == []
    assert played.queue.unfinished
    assert played.taken(everything=True) == [("second", [GUARDS[0]])]
    played.finish(first)
    assert played.taken() == [], "it found nothing"
    assert played.queue.idle


def test_evidence_that_reached_the_host_counts_when_the_device_is_lost(played: Played) -> None:
    first = played.enter("first")
    played.enter("second")
    played.record(first, 0)
    assert played.taken(lost=True) == [("first", [GUARDS[0]])]
    assert played.queue.idle, "nothing more is waited for"


def test_a_refused_check_leaves_nothing_behind(played: Played) -> None:
    played.queue.withdraw(played.enter("refused"))
    assert played.queue.idle
    for tag in range(SLOTS):
        played.enter(tag)


def test_a_check_without_a_free_slot_is_left_out_and_counted(played: Played) -> None:
    serials = [played.enter(tag) for tag in range(SLOTS)]
    assert len({serial % SLOTS for serial in serials}) == SLOTS
    assert played.queue.enter("late", GUARDS, PARTS, None) is None
    assert played.queue.dropped == 1
    played.finish(serials[5])
    assert played.taken(everything=True) == []
    again = played.enter("again")
    assert again % SLOTS == serials[5] % SLOTS, "the one slot that is free"
    assert again not in serials


@pytest.mark.parametrize(("number", "subject"), [(7, "declared"), (8, None)])
def test_a_check_node_names_a_range_by_its_number(number: int, subject: object) -> None:
    records = np.zeros(SLOTS, dtype=RECORD)
    memory: Any = SimpleNamespace(records=records, done=np.zeros(SLOTS, dtype=np.uint32).data)
    queue = EvidenceQueue(cast(Any, None), memory, lambda *_: GUARDS[0], {7: "declared"}.get)
    row = records[0]
    row["graph"], row["replay"], row["is_part"], row["index"] = 3, 1001 << 1 | 1, 2, number
    row["sequence"] = 1
    results = queue.take(False, False)
    if subject is None:
        assert results == []
        assert queue.dropped == 1
    else:
        assert [(each.tag, each.evidence[0].subject) for each in results] == [(NodeCheck(3, 1001, True), subject)]
