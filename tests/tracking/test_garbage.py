"""Garbage that is there when a capture begins stays until no capture runs: its end could make the capture invalid."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from shadowgraph.tracking.garbage import GarbageKeeper


class Thing:
    """Something in a cycle."""

    def __init__(self) -> None:
        self.me = self


@pytest.fixture
def keeper() -> Iterator[GarbageKeeper]:
    gc.collect()
    assert not gc.get_freeze_count(), "invalid: somebody has frozen objects"
    yield GarbageKeeper()
    gc.unfreeze()


def garbage() -> weakref.ref[Thing]:
    return weakref.ref(Thing())


def test_what_was_garbage_before_a_capture_stays_until_its_end(keeper: GarbageKeeper) -> None:
    before = garbage()
    kept = keeper.keep()
    within = garbage()
    gc.collect()
    assert before() is not None
    assert within() is None, "what the capture leaves itself does not pile up"
    kept.end()
    gc.collect()
    assert before() is None
    assert not gc.get_freeze_count()


def test_captures_at_the_same_time_are_one_and_each_ends_once(keeper: GarbageKeeper) -> None:
    before = garbage()
    first, second = keeper.keep(), keeper.keep()
    first.end()
    first.end()
    gc.collect()
    assert before() is not None
    second.end()
    gc.collect()
    assert before() is None


def test_what_the_program_froze_before_stays_frozen(keeper: GarbageKeeper) -> None:
    mine = garbage()
    gc.freeze()
    kept = keeper.keep()
    later = garbage()
    gc.collect()
    assert later() is None, "nothing is done"
    kept.end()
    gc.collect()
    assert mine() is not None


def test_what_the_program_freezes_meanwhile_stays_frozen(keeper: GarbageKeeper) -> None:
    kept = keeper.keep()
    mine = [Thing() for _ in range(1000)]
    gc.freeze()
    kept.end()
    assert gc.get_freeze_count() >= len(mine)


def test_a_program_that_thaws_meanwhile_has_its_way(keeper: GarbageKeeper) -> None:
    kept = keeper.keep()
    gc.unfreeze()
    kept.end()
    assert not gc.get_freeze_count()
    kept = keeper.keep()
    assert gc.get_freeze_count()
    kept.end()
    assert not gc.get_freeze_count()
