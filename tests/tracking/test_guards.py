from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from shadowgraph.model.alignment import ALIGNMENT
from shadowgraph.model.buffers import Buffer, Role
from shadowgraph.model.guards import NO_GUARDS, GuardPolicy, GuardSizes, Side, guards_of
from shadowgraph.model.ranges import ByteRange

KIB, MIB = 1 << 10, 1 << 20


def buffer(head: int, tail: int, nbytes: int = 100) -> Buffer:
    return Buffer(1, 10_000, nbytes, Role.STATIC, head_guard=head, tail_guard=tail)


# -- where guards stand ----------------------------------------------------------------------------------------------


def test_guards_touch_the_buffer_on_both_sides() -> None:
    owner = buffer(head=512, tail=5000)
    before, after = guards_of(owner, near=256)
    assert (before.buffer, before.side, after.buffer, after.side) == (owner, Side.BEFORE, owner, Side.AFTER)
    assert (before.near, before.whole) == (ByteRange(9744, 10_000), ByteRange(9488, 10_000))
    assert (after.near, after.whole) == (ByteRange(10_100, 10_356), ByteRange(10_100, 15_100))


def test_the_near_part_is_no_larger_than_the_guard() -> None:
    before, after = guards_of(buffer(head=128, tail=64), near=256)
    assert before.near == before.whole == ByteRange(9872, 10_000)
    assert after.near == after.whole == ByteRange(10_100, 10_164)


@pytest.mark.parametrize(("head", "tail", "sides"), [(0, 0, []), (64, 0, [Side.BEFORE]), (0, 64, [Side.AFTER])])
def test_only_guards_that_stand_are_given(head: int, tail: int, sides: list[Side]) -> None:
    assert [guard.side for guard in guards_of(buffer(head, tail), 256)] == sides


# -- how large they are ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("near", "far", "nbytes", "head", "tail"),
    [
        (256, None, 1, 512, 4608),  # 256 + 4 KiB, rounded up
        (256, None, 4 * KIB, 512, 4608),
        (256, None, 100_000, 512, 100_352),
        (512, None, 10 * MIB, 512, MIB + 512),
        (512, 0, 10 * MIB, 512, 512),
        (16, 16, 1, 512, 512),
        (513, 1000, 1, 1024, 1536),
    ],
)
def test_what_is_wanted(near: int, far: int | None, nbytes: int, head: int, tail: int) -> None:
    wanted = GuardPolicy(near, far, budget=MIB).wanted(nbytes)
    assert wanted == GuardSizes(head, tail)
    assert wanted.head % ALIGNMENT == wanted.tail % ALIGNMENT == 0
    assert wanted.added == head + tail


def test_past_the_budget_guards_shrink_and_then_stop() -> None:
    policy = GuardPolicy(near=256, far=4096, budget=7000)
    assert policy.grant(64) == GuardSizes(512, 4608)
    assert policy.grant(64) == GuardSizes(512, 512)
    assert (policy.used, policy.shrunk, policy.dropped) == (6144, 1, 0)
    assert policy.grant(64) == NO_GUARDS
    assert (policy.used, policy.shrunk, policy.dropped) == (6144, 1, 1)


def test_the_budget_can_be_used_to_its_last_byte() -> None:
    policy = GuardPolicy(near=256, far=4096, budget=5120)
    assert policy.grant(64) == GuardSizes(512, 4608)
    assert policy.used == policy.budget
    assert policy.grant(64) == NO_GUARDS


def test_released_bytes_can_be_granted_again() -> None:
    policy = GuardPolicy(near=256, far=4096, budget=5120)
    sizes = policy.grant(64)
    policy.release(sizes)
    assert policy.used == 0
    assert policy.grant(64) == sizes
    assert policy.dropped == policy.shrunk == 0


def test_a_budget_of_nothing_gives_no_guards() -> None:
    policy = GuardPolicy(near=256, far=None, budget=0)
    assert policy.grant(64) == NO_GUARDS
    assert (policy.used, policy.dropped) == (0, 1)


def test_shrinking_goes_by_the_near_guards_to_none_and_counts_each_block_once() -> None:
    policy = GuardPolicy(near=256, far=4096, budget=MIB)
    asked = policy.grant(64)
    near = policy.shrink(asked)
    assert near == GuardSizes(512, 512)
    assert (policy.used, policy.shrunk, policy.dropped) == (1024, 1, 0)
    assert policy.shrink(near) == NO_GUARDS
    assert (policy.used, policy.shrunk, policy.dropped) == (0, 0, 1)


def test_shrinking_what_was_granted_small_counts_the_block_once() -> None:
    policy = GuardPolicy(near=256, far=4096, budget=1024)
    assert policy.shrink(policy.grant(64)) == NO_GUARDS
    assert (policy.used, policy.shrunk, policy.dropped) == (0, 0, 1)


def test_shrinking_guards_that_are_near_ones_already_counts_no_shrunk_block() -> None:
    policy = GuardPolicy(near=256, far=0, budget=MIB)
    assert policy.shrink(policy.grant(64)) == NO_GUARDS
    assert (policy.used, policy.shrunk, policy.dropped) == (0, 0, 1)


def test_threads_never_pass_the_budget() -> None:
    policy = GuardPolicy(near=256, far=0, budget=50 * 1024)
    with ThreadPoolExecutor(4) as pool:
        granted = list(pool.map(policy.grant, [64] * 200))
    assert sum(sizes.added for sizes in granted) == policy.used == policy.budget
    assert policy.dropped == 150
