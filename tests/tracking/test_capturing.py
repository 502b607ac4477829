"""Captures are counted, and no garbage is collected while one runs: that could make the capture invalid."""

from __future__ import annotations

import gc
import os
import threading
import weakref
from collections.abc import Iterator

import pytest

from shadowgraph.tracking.captures import Captures, captures


class Cycle:
    """An object that only the cyclic collector frees."""

    def __init__(self) -> None:
        self.me = self


@pytest.fixture(autouse=True)
def collector() -> Iterator[None]:
    assert gc.isenabled(), "invalid: the collector is off already"
    before = gc.get_threshold()
    gc.set_threshold(20, 2, 2)
    yield
    gc.set_threshold(*before)
    gc.enable()


def make_garbage() -> list[weakref.ref[Cycle]]:
    """More than the collector's thresholds allow to be left."""
    return [weakref.ref(Cycle()) for _ in range(500)]


def alive(cycles: list[weakref.ref[Cycle]]) -> int:
    return sum(cycle() is not None for cycle in cycles)


def test_garbage_is_collected_by_itself_outside_of_captures() -> None:
    assert alive(make_garbage()) < 500, "invalid: nothing is collected here"


def test_garbage_of_before_and_of_the_capture_itself_is_not_collected_while_it_runs() -> None:
    counted = Captures()
    gc.collect()
    before = weakref.ref(Cycle())
    running = counted.begin()
    assert counted.running == 1
    within = make_garbage()
    assert before() is not None
    assert alive(within) == 500
    running.end()
    assert counted.running == 0
    make_garbage()
    assert alive(within) == 0


def test_it_does_not_matter_whether_the_program_has_frozen_objects() -> None:
    gc.freeze()
    try:
        running = Captures().begin()
        assert alive(make_garbage()) == 500
        running.end()
    finally:
        gc.unfreeze()


def test_captures_at_the_same_time_are_counted_and_each_ends_once() -> None:
    counted = Captures()
    first, second = counted.begin(), counted.begin()
    first.end()
    first.end()
    assert counted.running == 1
    assert not gc.isenabled()
    second.end()
    assert gc.isenabled()


def test_a_program_that_has_the_collector_off_keeps_it_off() -> None:
    gc.disable()
    Captures().begin().end()
    assert not gc.isenabled()


def test_what_must_not_meet_a_begin_holds_it_off_and_learns_of_those_that_run() -> None:
    counted, begun = Captures(), threading.Event()
    thread = threading.Thread(target=lambda: (counted.begin(), begun.set()))

    def work() -> str:
        thread.start()
        assert not begun.wait(0.1)
        return "done"

    assert counted.between(work) == "done"
    thread.join(10)
    assert begun.is_set()
    assert counted.between(work) is None


class Mortal:
    """Tells of its end."""

    def __init__(self, ended: list[bool], counted: Captures) -> None:
        self.ended, self.counted = ended, counted

    def __del__(self) -> None:
        self.ended.append(self.counted.running == 0)


def test_what_must_outlive_captures_dies_after_the_last_of_them() -> None:
    counted, ended = Captures(), list[bool]()
    counted.outlive(Mortal(ended, counted))
    assert ended == [True], "none runs: there is nothing to wait for"
    first, second = counted.begin(), counted.begin()
    for _ in range(3):
        counted.outlive(Mortal(ended, counted))
    first.end()
    assert ended == [True]
    second.end()
    assert ended == [True] * 4


def test_a_capture_that_begins_while_such_objects_die_spares_the_rest() -> None:
    counted, ended = Captures(), list[bool]()
    running = [counted.begin()]

    class Begins:
        def __del__(self) -> None:
            running.append(counted.begin())

    counted.outlive(Mortal(ended, counted))
    counted.outlive(Begins())
    running[0].end()
    assert ended == []
    running[1].end()
    assert ended == [True]


def test_a_forked_child_has_no_capture_and_its_collector_is_on() -> None:
    running = captures.begin()
    try:
        child = os.fork()
        if not child:
            os._exit(0 if gc.isenabled() and not captures.running else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert captures.running == 1
    finally:
        running.end()
