from __future__ import annotations

import logging
import threading

import pytest

from shadowgraph.common.errors import FindingsError, UsageError
from shadowgraph.common.exception_text import first_line, summary
from shadowgraph.common.internal_errors import InternalErrorLog, error_barrier, internal_errors


@pytest.fixture(autouse=True)
def _clean() -> None:
    internal_errors.clear()


class Unprintable(Exception):
    def __str__(self) -> str:
        raise ValueError("not even this works")


def test_faults_are_counted_by_place_and_kind() -> None:
    log = InternalErrorLog()
    for error in (ValueError("a"), ValueError("a"), ValueError("b"), KeyError("a")):
        log.note("here", error)
    log.note("there", ValueError("a"))
    assert log.counts == {
        "here: ValueError: a": 2,
        "here: ValueError: b": 1,
        "here: KeyError: 'a'": 1,
        "there: ValueError: a": 1,
    }
    assert log.total == 5
    log.clear()
    assert (log.counts, log.total) == ({}, 0)


@pytest.mark.parametrize(
    ("error", "line", "whole"),
    [
        (ValueError("one\ntwo"), "one", "ValueError: one"),
        (ValueError(), "", "ValueError: "),
        (KeyError("k" * 300), f"'{'k' * 199}", f"KeyError: '{'k' * 300}'"),
        (Unprintable(), "(cannot be printed)", "Unprintable: (cannot be printed)"),
    ],
)
def test_an_exception_is_told_in_one_line(error: Exception, line: str, whole: str) -> None:
    assert (first_line(error), summary(error)) == (line, whole)


def test_counts_are_a_copy() -> None:
    log = InternalErrorLog()
    log.counts["made up"] = 3
    assert log.total == 0


def test_each_kind_is_logged_once_with_its_traceback(caplog: pytest.LogCaptureFixture) -> None:
    log = InternalErrorLog()
    with caplog.at_level(logging.WARNING, logger="shadowgraph"):
        for _ in range(3):
            try:
                raise ValueError("first line\nsecond line")
            except ValueError as error:
                log.note("check", error)
    (record,) = caplog.records
    assert record.getMessage() == "shadowgraph fault in check: ValueError: first line (the program goes on)"
    assert record.exc_info is not None
    assert record.exc_info[2] is not None
    assert log.counts == {"check: ValueError: first line": 3}


def test_an_error_that_cannot_be_printed_is_counted_all_the_same() -> None:
    with error_barrier("check"):
        raise Unprintable
    assert list(internal_errors.counts.values()) == [1]
    assert "Unprintable" in next(iter(internal_errors.counts))


@pytest.mark.parametrize("error", [ValueError("x"), AssertionError(), RuntimeError("y"), StopIteration()])
def test_an_exception_of_ours_stays_with_us(error: Exception) -> None:
    with error_barrier("a place"):
        raise error
    assert internal_errors.counts == {f"a place: {type(error).__name__}: {error}": 1}


@pytest.mark.parametrize("error", [UsageError("x"), FindingsError("x"), KeyboardInterrupt(), SystemExit(3)])
def test_deliberate_errors_and_the_users_interrupt_pass(error: BaseException) -> None:
    with pytest.raises(type(error)) as caught, error_barrier("a place"):
        raise error
    assert caught.value is error
    assert internal_errors.total == 0


def test_nothing_is_counted_where_nothing_goes_wrong() -> None:
    with error_barrier("a place"):
        done = True
    assert done
    assert internal_errors.total == 0


def test_counting_from_many_threads() -> None:
    log = InternalErrorLog()
    logging.getLogger("shadowgraph").disabled = True
    try:
        work = [threading.Thread(target=lambda: [log.note("t", ValueError("x")) for _ in range(500)]) for _ in range(4)]
        for thread in work:
            thread.start()
        for thread in work:
            thread.join()
    finally:
        logging.getLogger("shadowgraph").disabled = False
    assert log.counts == {"t: ValueError: x": 2000}
