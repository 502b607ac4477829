"""Guards that a check reads: recomputed where they moved, and left alone between two captures."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from shadowgraph.common.finalizer_safe_lock import FinalizerSafeLock
from shadowgraph.engines.guard_table import FAR, GUARD, row_of, table_of
from shadowgraph.model.buffers import Buffer, Role
from shadowgraph.model.guards import Guard, Side
from shadowgraph.model.ranges import ByteRange
from shadowgraph.tracking.active_guards import ActiveGuards
from shadowgraph.tracking.free_gaps import Placement
from shadowgraph.tracking.guard_keeper import GuardKeeper

NEAR = 64


class Canaries:
    origin = 0

    def write_canaries(self, ranges: Any, here: bool = False) -> None: ...
    def order_canaries(self) -> None: ...
    def withdraw_guards(self, starts: Any) -> None: ...
    def withdraw_shadows(self, buffer: int) -> None: ...


def buffer(serial: int, lent: bool = False) -> Buffer:
    made = Buffer(serial, 0x10000 * serial, 512, Role.STATIC, head_guard=128, tail_guard=1024)
    made.lent = lent
    return made


@pytest.fixture
def keeper() -> GuardKeeper:
    return GuardKeeper(FinalizerSafeLock(), Canaries())


def test_guards_that_have_not_moved_are_the_same_objects(keeper: GuardKeeper) -> None:
    standing, first, second = ActiveGuards(keeper, NEAR), buffer(1), buffer(2)
    keeper.arm(first)
    before = standing.now()
    keeper.arm(second)
    after = standing.now()
    assert [each.buffer.serial for each in after] == [1, 1, 2, 2]
    assert all(one is other for one, other in zip(before, after, strict=False))
    keeper.move(first, Placement(128, 512))
    moved = standing.now()
    assert sorted(each.whole.nbytes for each in moved if each.buffer is first) == [128, 512]
    assert {id(each) for each in moved if each.buffer is second} == {id(each) for each in after[2:]}


def test_a_table_has_each_guard_and_the_far_part_of_each_that_has_one() -> None:
    owner, rng = buffer(1), np.random.default_rng(3)
    guards = []
    for at in range(200):
        start, whole = 0x1000 * (at + 1), int(rng.integers(1, 40)) * 16
        near, side = min(whole, int(rng.integers(1, 12)) * 16), Side.AFTER if rng.integers(2) else Side.BEFORE
        first = start if side is Side.AFTER else start + whole - near
        guards.append(
            Guard(owner, side, ByteRange(first, first + near), ByteRange(start, start + whole), bool(rng.integers(2)))
        )
    device: Any = SimpleNamespace(upload=lambda data: SimpleNamespace(data=SimpleNamespace(ptr=0x5000), held=data))
    table = table_of(device, guards)
    held = table.memory.held.tobytes()
    rows = np.frombuffer(held[: len(guards) * GUARD.itemsize], GUARD)
    assert [tuple(row) for row in rows.tolist()] == [tuple(map(int, row_of(guard))) for guard in guards]
    far = [
        (
            guard.near.stop if guard.side is Side.AFTER else guard.whole.start,
            guard.whole.nbytes - guard.near.nbytes,
            at,
            0,
        )
        for at, guard in enumerate(guards)
        if guard.whole.nbytes > guard.near.nbytes
    ]
    begin = len(guards) * GUARD.itemsize
    assert np.frombuffer(held[begin : begin + len(far) * FAR.itemsize], FAR).tolist() == far
    assert (table.rows, table.far, table.far_count) == (0x5000, 0x5000 + begin, len(far))
    assert len(held) == begin + len(far) * FAR.itemsize + 4 * len(guards)
    assert table.hits == 0x5000 + begin + len(far) * FAR.itemsize
