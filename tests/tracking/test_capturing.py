"""Garbage that is there when a capture begins stays until no capture runs: its end could make the capture invalid."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from shadowgraph.tracking.capturing import Captures


class Thing:
    """Something in a cycle."""

    def __init__(self) -> None:
        self.me = self


@pytest.fixture
def captures() -> Iterator[Captures]:
    gc.collect()
    assert not gc.get_freeze_count(), "invalid: somebody has frozen objects"
    made = Captures()
    yield made
    assert not made.running
    gc.unfreeze()


def garbage() -> weakref.ref[Thing]:
    return weakref.ref(Thing())


def test_what_was_garbage_before_a_capture_stays_until_its_end(captures: Captures) -> None:
    before = garbage()
    captures.began()
    within = garbage()
    gc.collect()
    assert before() is not None
    assert within() is None, "what the capture leaves itself does not pile up"
    captures.ended()
    gc.collect()
    assert before() is None
    assert not gc.get_freeze_count()


def test_captures_within_each_other_are_one(captures: Captures) -> None:
    before = garbage()
    captures.began()
    captures.began()
    captures.ended()
    gc.collect()
    assert before() is not None
    captures.ended()
    gc.collect()
    assert before() is None


def test_what_the_program_froze_stays_frozen(captures: Captures) -> None:
    mine = garbage()
    gc.freeze()
    captures.began()
    later = garbage()
    gc.collect()
    assert later() is None
    captures.ended()
    gc.collect()
    assert mine() is not None


def test_a_program_that_thaws_within_a_capture_has_its_way(captures: Captures) -> None:
    captures.began()
    gc.unfreeze()
    captures.ended()
    assert not gc.get_freeze_count()
    captures.began()
    assert gc.get_freeze_count()
    captures.ended()
    assert not gc.get_freeze_count()
