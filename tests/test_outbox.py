"""Work that waits until its thread holds no lock of ours: order, what is never said under a lock, what is lost."""

from __future__ import annotations

import gc
import logging
import os
import threading
import weakref
from functools import partial

import pytest

from shadowgraph.common import finalizer_safe_lock
from shadowgraph.common.finalizer_safe_lock import FinalizerSafeLock, defer
from shadowgraph.common.internal_errors import InternalErrorLog, internal_errors, log
from shadowgraph.common.outbox import Outbox, delivers, outbox


class Held:
    """An outbox that is told whether a lock is held."""

    def __init__(self) -> None:
        self.box, self.held, self.done = Outbox(), False, list[str]()
        self.box.busy = lambda: self.held

    def write(self, word: str) -> None:
        self.box.write(partial(self.done.append, word))

    def say(self, word: str) -> None:
        self.box.say(partial(self.done.append, word))


def test_nothing_is_done_under_a_lock_and_records_are_written_before_anything_is_said() -> None:
    made = Held()
    made.held = True
    made.say("log 1")
    made.write("record 1")
    made.say("log 2")
    made.write("record 2")
    made.box.deliver()
    assert made.done == []
    made.held = False
    made.box.deliver()
    assert made.done == ["record 1", "record 2", "log 1", "log 2"]
    assert not made.box.full


def test_without_a_lock_it_is_done_at_once() -> None:
    made = Held()
    made.write("record")
    made.say("log")
    assert made.done == ["record", "log"]


def test_what_a_handler_brings_up_is_written_at_once_and_said_when_the_handler_has_returned() -> None:
    made = Held()

    def handler() -> None:
        made.write("record of the handler's finding")
        made.say("log of the handler's finding")
        made.done.append("the handler returns")

    made.box.say(handler)
    assert made.done == ["record of the handler's finding", "the handler returns", "log of the handler's finding"]


def test_each_thread_does_its_own() -> None:
    made, done = Outbox(), list[tuple[str, int]]()
    held = {threading.get_ident()}
    made.busy = lambda: threading.get_ident() in held
    made.write(lambda: done.append(("main", threading.get_ident())))
    thread = threading.Thread(target=lambda: made.write(lambda: done.append(("other", threading.get_ident()))))
    thread.start()
    thread.join(10)
    assert [word for word, _ in done] == ["other"], "and not what the thread posted that holds the lock"
    held.clear()
    made.deliver()
    assert done[1] == ("main", threading.get_ident())


def test_an_exception_of_work_costs_no_other_work_and_an_interrupt_goes_on() -> None:
    made, failed = Held(), list[BaseException]()
    made.box.failed = failed.append

    def broken(error: BaseException) -> None:
        raise error

    made.held = True
    made.box.write(partial(broken, OSError("disk full")))
    made.box.say(partial(broken, ValueError("handler")))
    made.box.say(partial(broken, KeyboardInterrupt()))
    made.write("record")
    made.say("log")
    made.held = False
    with pytest.raises(KeyboardInterrupt):
        made.box.deliver()
    assert [str(error) for error in failed] == ["disk full", "handler"]
    assert made.done == ["record"]
    made.box.deliver()
    assert made.done == ["record", "log"]


def test_a_child_does_nothing_of_its_parent_s() -> None:
    made = Held()
    made.held = True
    made.write("the parent's")
    made.box.forked()
    made.held = False
    made.write("the child's")
    assert made.done == ["the child's"]


def test_at_the_end_what_ended_threads_have_left_is_written() -> None:
    made = Held()
    made.held = True
    thread = threading.Thread(target=lambda: (made.write("record"), made.say("log")))
    thread.start()
    thread.join(10)
    made.box.write_all()
    assert made.done == ["record"]


def test_an_event_delivers_before_it_raises() -> None:
    done: list[str] = []
    lock = FinalizerSafeLock()

    @delivers
    def event() -> None:
        with lock.section:
            outbox.write(partial(done.append, "record"))
            assert done == []
            raise LookupError

    with pytest.raises(LookupError):
        event()
    assert done == ["record"]


def test_a_lock_of_ours_keeps_it_waiting_until_the_outermost_event_ends() -> None:
    done: list[str] = []
    lock = FinalizerSafeLock()

    @delivers
    def inner() -> None:
        with lock.section:
            outbox.write(partial(done.append, "record"))

    @delivers
    def outer() -> None:
        with lock.section:
            inner()
            assert done == []

    outer()
    assert done == ["record"]


def test_a_finalizer_s_fault_is_logged_by_the_next_event_not_where_the_object_died(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The program may hold a lock of its handler there."""
    internal_errors.clear()

    class Owner:
        pass

    def broken() -> None:
        raise OSError("of a finalizer")

    owner = Owner()
    weakref.finalize(owner, defer, broken)
    with caplog.at_level(logging.WARNING, logger="shadowgraph"):
        del owner
        gc.collect()
        assert internal_errors.total == 1
        assert not caplog.records
        outbox.deliver()
    (record,) = caplog.records
    assert "of a finalizer" in record.getMessage()


def test_a_fault_under_a_foreign_lock_is_logged_by_a_later_event(caplog: pytest.LogCaptureFixture) -> None:
    counted = InternalErrorLog()
    with caplog.at_level(logging.WARNING, logger="shadowgraph"):
        counted.note("callback of an allocator", OSError("x"), now=False)
        assert (counted.total, caplog.records) == (1, [])
        outbox.deliver()
    assert len(caplog.records) == 1


def test_a_handler_that_raises_is_a_fault_of_its_own_and_is_not_told_to_it_again() -> None:
    internal_errors.clear()
    seen: list[str] = []

    class Broken(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            seen.append(record.getMessage())
            raise RuntimeError("a handler's own")

        def handle(self, record: logging.LogRecord) -> bool:
            self.emit(record)
            return True

    handler = Broken()
    logging.getLogger("shadowgraph").addHandler(handler)
    try:
        log(logging.ERROR, "a line")
    finally:
        logging.getLogger("shadowgraph").removeHandler(handler)
    assert seen == ["a line"]
    assert internal_errors.counts == {"log or record: RuntimeError: a handler's own": 1}
    internal_errors.clear()


def test_work_without_the_lock_where_another_thread_keeps_it() -> None:
    lock = FinalizerSafeLock()
    kept, done = threading.Event(), threading.Event()

    def keep() -> None:
        with lock.section:
            kept.set()
            assert done.wait(30)

    thread = threading.Thread(target=keep)
    thread.start()
    assert kept.wait(30)
    assert lock.run(lambda: "copied", 0.05) == "copied"
    done.set()
    thread.join(10)
    assert lock.run(finalizer_safe_lock._in_section, 5.0), "and with it where it is free"
    assert not finalizer_safe_lock._in_section()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_fork_in_an_event_leaves_the_record_to_the_parent() -> None:
    done: list[int] = []
    lock = FinalizerSafeLock()
    with lock.section:
        outbox.write(lambda: done.append(os.getpid()))
        child = os.fork()
        if child == 0:
            finalizer_safe_lock.forked(abandon=False)
            os._exit(len(done) + len(outbox.full))
    outbox.deliver()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert done == [os.getpid()]
