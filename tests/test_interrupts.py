"""What a program's signal handler raises reaches the program, also where it comes up in a finalizer of ours."""

from __future__ import annotations

import signal
import sys
import time
import weakref
from collections.abc import Callable, Iterator

import pytest
import torch

import shadowgraph as sg
from shadowgraph import interrupts

ROUNDS = 200


class Expired(Exception):
    """What a handler of the program raises."""


@pytest.fixture
def alarm() -> Iterator[Callable[[float], None]]:
    before = signal.getsignal(signal.SIGALRM)
    yield lambda seconds: signal.setitimer(signal.ITIMER_REAL, seconds) and None
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


class Handler:
    def __init__(self) -> None:
        self.calls = 0

    def ring(self, number: int, frame: object) -> None:
        self.calls += 1
        raise Expired("time is up", 7)


def allocate(until: float) -> None:
    while time.monotonic() < until:
        torch.zeros(16)  # guarded, so that its end is a finalizer's work


def test_no_alarm_is_lost_among_finalizers(alarm: Callable[[float], None]) -> None:
    handler, caught = Handler(), 0
    signal.signal(signal.SIGALRM, handler.ring)
    with sg.debug() as debugger, debugger.guard():
        for at in range(ROUNDS):
            try:
                alarm(0.002 + at * 1e-5)
                allocate(time.monotonic() + 0.05)
                time.sleep(0.05)
            except Expired as error:
                caught += error.args == ("time is up", 7)
        assert debugger.facts().faults == {}
    assert handler.calls == ROUNDS
    assert caught >= ROUNDS - 2, "torch and Python drop some too; one in 25 was lost"


def dropped(error: BaseException, where: object) -> sys.UnraisableHookArgs:
    return type("Dropped", (), {"exc_value": error, "object": where, "exc_type": type(error), "err_msg": None})()  # type: ignore[return-value]


class _Thing:
    pass


@pytest.fixture
def passed(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[object]]:
    """What goes on to the hook that was there before."""
    seen: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", seen.append)
    interrupts.install()
    yield seen
    interrupts.uninstall()
    assert sys.unraisablehook == seen.append


def test_an_interrupt_in_our_finalizer_is_raised_a_moment_later(passed: list[object]) -> None:
    finalizer = weakref.finalize(_Thing(), print)
    with pytest.raises(KeyboardInterrupt) as raised:
        sys.unraisablehook(dropped(KeyboardInterrupt("by hand"), finalizer))
        end = time.monotonic() + 5
        while time.monotonic() < end:
            pass
    assert raised.value.args == ("by hand",)
    assert passed == []


@pytest.mark.parametrize("error", [ValueError("a fault of a finalizer's own"), SystemExit(3)])
def test_what_no_handler_raised_is_dropped_as_before(passed: list[object], error: BaseException) -> None:
    try:
        raise error
    except BaseException:
        args = dropped(error, weakref.finalize(_Thing(), print))
    sys.unraisablehook(args)
    assert passed == [args]


def test_nor_is_that_our_business_in_somebody_elses_callback(passed: list[object]) -> None:
    args = dropped(KeyboardInterrupt(), print)
    sys.unraisablehook(args)
    time.sleep(0.01)
    assert passed == [args]


def test_a_hook_above_ours_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "unraisablehook", print)
    interrupts.install()
    theirs = sys.unraisablehook
    above: Callable[[object], None] = lambda args: theirs(args)  # type: ignore[arg-type]  # noqa: E731
    sys.unraisablehook = above
    interrupts.uninstall()
    assert sys.unraisablehook is above
    sys.unraisablehook = theirs
    interrupts.uninstall()
    assert sys.unraisablehook is print
