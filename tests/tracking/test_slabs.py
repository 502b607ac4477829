"""Spans of device memory are handed out again only after a wait that began later than they were given back."""

from __future__ import annotations

import itertools

import pytest

from shadowgraph.tracking.slabs import SLAB, SlabArena


@pytest.fixture
def arena() -> SlabArena:
    addresses = itertools.count(1 << 40, 1 << 30)
    return SlabArena(lambda nbytes: next(addresses))


def test_what_was_given_back_is_fresh_until_a_wait(arena: SlabArena) -> None:
    first = arena.take(512)
    arena.give(first, 512)
    assert arena.needs_settling(512)
    second = arena.take(512)
    assert second != first
    arena.settle(lambda: True)
    assert not arena.needs_settling(512)
    assert arena.take(512) == first


def test_a_wait_that_did_not_happen_settles_nothing(arena: SlabArena) -> None:
    first = arena.take(512)
    arena.give(first, 512)
    arena.settle(lambda: False)
    assert arena.needs_settling(512)
    assert arena.take(512) != first


def test_what_is_given_back_during_a_wait_is_not_settled_by_it(arena: SlabArena) -> None:
    first, second = arena.take(512), arena.take(512)
    arena.give(first, 512)

    def wait() -> bool:
        arena.give(second, 512)
        return True

    arena.settle(wait)
    assert arena.take(512) == first
    assert arena.take(512) not in (first, second)


def test_a_wait_that_fails_loses_no_span(arena: SlabArena) -> None:
    first = arena.take(512)
    arena.give(first, 512)

    def wait() -> bool:
        raise RuntimeError("the context died")

    with pytest.raises(RuntimeError, match="died"):
        arena.settle(wait)
    arena.settle(lambda: True)
    assert arena.take(512) == first


def test_bytes_in_use(arena: SlabArena) -> None:
    span, large = arena.take(1024), arena.take(SLAB)
    assert arena.holds(large + SLAB - 1)
    before = arena.used
    arena.give(span, 1024)
    assert arena.used == before - 1024
    arena.settle(lambda: True)
    assert arena.used == before - 1024
