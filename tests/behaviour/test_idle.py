"""A process that captures nothing is not watched operator by operator for ever; from a capture on it is again."""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Callable, Iterator
from types import ModuleType

import pytest
import torch
from programs import guarded, only, overflow, poke
from steady_state import is_watched, reader
from torch.utils._python_dispatch import TorchDispatchMode

import shadowgraph as sg
from shadowgraph.graphs.dispatch import leaving
from shadowgraph.graphs.dispatch.thread_modes import enter, leave
from shadowgraph.monitor import idleness

OPERATORS, BUSY = 200, 20


@pytest.fixture
def debugger(monkeypatch: pytest.MonkeyPatch) -> Iterator[sg.Debugger]:
    monkeypatch.setattr(idleness, "OPERATORS", OPERATORS)
    monkeypatch.setattr(idleness, "BUSY", BUSY)
    with sg.debug(watch_eager="sampled", guard_eager="auto", layout="faithful") as made:
        yield made


def work(count: int) -> None:
    x = torch.zeros(4)
    for _ in range(count):
        x + 1


def idle(debugger: sg.Debugger) -> None:
    work(OPERATORS + BUSY)
    assert debugger.monitor.observation.idle
    assert not is_watched()
    assert sys.getprofile() is None


def in_thread(run: Callable[[], object]) -> None:
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()


def test_the_mode_leaves_after_many_operators_without_a_capture(debugger: sg.Debugger) -> None:
    work(OPERATORS - 2)
    assert not debugger.monitor.observation.idle
    assert debugger.report(quiet=True).facts.limits == ()
    idle(debugger)
    (limit,) = debugger.report(quiet=True).facts.limits
    assert re.match(rf"after {OPERATORS // 10}\d operators without a capture eager operators pass unseen: ", limit)


def test_a_capture_brings_it_back_for_good(debugger: sg.Debugger) -> None:
    idle(debugger)
    unguarded = torch.zeros(5)
    assert debugger.monitor.context.ledger.at(unguarded.data_ptr()) is None
    graph = reader(unguarded)
    assert is_watched()
    assert not debugger.monitor.observation.incomplete
    table = torch.zeros(8, dtype=torch.int32)
    assert [buffer.nbytes for buffer in debugger.buffers if buffer.guarded] == [32]
    graph.replay()
    poke(table, 32, 4)
    graph.replay()
    assert only(debugger.findings).past_end == 4
    (limit,) = debugger.report(quiet=True).facts.limits
    assert "passed unseen for 0 s" in limit
    assert "(without are 1 inputs of graphs, of 20 bytes in all)" in limit
    work(2 * OPERATORS)
    assert is_watched()


def test_damage_that_nobody_saw_being_done_is_found_and_accuses_no_operator(debugger: sg.Debugger) -> None:
    table = guarded(debugger, 8)
    idle(debugger)
    table.add_(1)
    poke(table, 32, 4)
    found = only(debugger.check())
    assert (found.past_end, found.culprit.status) == (4, "unknown")
    assert "an unseen writer" in found.message


def test_damage_done_before_is_found_as_operators_begin_to_pass_and_names_its_launch(debugger: sg.Debugger) -> None:
    table = guarded(debugger, 8)
    overflow(table)
    idle(debugger)
    found = only(debugger.monitor.book.findings)
    assert (found.past_end, found.culprit.name) == (4, "fill")


def test_the_main_thread_has_its_mode_back_before_it_goes_on_after_another_threads_capture(
    debugger: sg.Debugger,
) -> None:
    idle(debugger)
    table, graphs = torch.zeros(4), []
    in_thread(lambda: graphs.append(reader(table)))
    assert is_watched()
    graphs[0].replay()
    assert not debugger.monitor.observation.incomplete, "all that is done is seen, and every rule judges again"


def test_a_busy_thread_leaves_too_and_comes_back_when_it_reads(debugger: sg.Debugger) -> None:
    assert debugger.eager_mode is not None
    left, captured, watched = threading.Event(), threading.Event(), []

    def run() -> None:
        mode = enter(lambda *_: debugger.eager_mode)
        try:
            work(OPERATORS + BUSY)
            watched.append(is_watched())
            left.set()
            assert captured.wait(60)
            watched.append(is_watched())
            torch.zeros(2).tolist()
            watched.append(is_watched())
        finally:
            leave(mode)

    thread = threading.Thread(target=run)
    thread.start()
    assert left.wait(60)
    assert is_watched(), "a thread that is not busy keeps its mode"
    table = torch.zeros(4)
    reader(table).replay()
    assert debugger.monitor.observation.incomplete, "what that thread does is not seen yet"
    assert "threads that have not been seen since" in debugger.report(quiet=True).facts.limits[0]
    captured.set()
    thread.join()
    assert watched == [False, False, True]
    assert not debugger.monitor.observation.incomplete


def test_the_programs_own_mode_is_not_taken_off_and_ours_leaves_below_it_later(debugger: sg.Debugger) -> None:
    class Theirs(TorchDispatchMode):
        seen = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            self.seen += 1
            return func(*args, **(kwargs or {}))

    with Theirs() as theirs:
        work(OPERATORS + BUSY)
        assert debugger.monitor.observation.idle
        before = theirs.seen
        work(10)
        assert theirs.seen > before
    work(BUSY)
    assert not is_watched()


def test_a_programs_own_profile_function_stays(debugger: sg.Debugger) -> None:
    def theirs(frame: object, event: str, given: object) -> None:
        pass

    sys.setprofile(theirs)
    try:
        work(OPERATORS + 2 * BUSY)
        assert sys.getprofile() is theirs
    finally:
        sys.setprofile(None)
    assert is_watched()
    work(BUSY)
    assert not is_watched()


def test_a_guard_block_brings_it_back_and_the_count_begins_anew(debugger: sg.Debugger) -> None:
    idle(debugger)
    table = guarded(debugger, 8)
    assert is_watched()
    assert debugger.buffers[-1].nbytes == table.nbytes
    assert not debugger.monitor.observation.incomplete
    work(OPERATORS - BUSY)
    assert is_watched()
    idle(debugger)


def test_loading_counts_a_tenth(debugger: sg.Debugger) -> None:
    source, target = torch.ones(4), torch.empty(4)
    for _ in range(2 * OPERATORS):  # four operators each
        target.view(2, 2).narrow(0, 0, 2).copy_(source.view(2, 2))
    assert not debugger.monitor.observation.idle
    for _ in range(OPERATORS):
        target.view(2, 2).narrow(0, 0, 2).copy_(source.view(2, 2))
    assert debugger.monitor.observation.idle


def test_a_process_that_serves_from_graphs_is_waited_for(
    debugger: sg.Debugger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "vllm", ModuleType("vllm"))
    monkeypatch.setattr(idleness, "PATIENCE", 10)
    work(9 * OPERATORS)
    assert is_watched()
    assert not debugger.monitor.observation.idle
    work(2 * OPERATORS)
    assert not is_watched()


@pytest.mark.parametrize("captured", [False, True])
def test_always_watched_where_that_was_asked_for_or_graphs_are_there(
    monkeypatch: pytest.MonkeyPatch, captured: bool
) -> None:
    monkeypatch.setattr(idleness, "OPERATORS", OPERATORS)
    monkeypatch.setattr(idleness, "BUSY", BUSY)
    with sg.debug(watch_eager="sampled" if captured else "always") as debugger:
        graph = reader(torch.zeros(4)) if captured else None
        work(2 * OPERATORS + BUSY)
        assert is_watched()
        assert not debugger.monitor.observation.idle
        del graph


def test_no_thread_ends_with_a_profile_function_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python 3.12 goes on profiling all threads then, at half their speed."""
    removed: list[tuple[object, int]] = []

    def remove(function: object) -> None:
        removed.append((function, threading.get_ident()))
        sys.setprofile(None)

    monkeypatch.setattr(leaving._UntilThreadEnds.__del__, "__defaults__", (sys.getprofile, remove))
    thread = threading.Thread(target=lambda: leaving.leave_soon(lambda: False))
    thread.start()
    ident = thread.ident
    thread.join()
    assert removed == [(None, ident)]
