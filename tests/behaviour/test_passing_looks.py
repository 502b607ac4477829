"""What else looks while replays pass: checks on request, frees, closer looks, watches, the next debugger."""

from __future__ import annotations

import ctypes
import gc
import sys
from collections.abc import Iterator
from pathlib import Path
from threading import Thread

import pytest
import torch
from programs import guarded, only
from steady_state import QUIET, WINDOW, breaks, end, reader, sampled, touch, until_steady

import shadowgraph as sg
from shadowgraph.model.ranges import ByteRange
from shadowgraph.monitor import exception_context
from shadowgraph.monitor.exception_context import join
from shadowgraph.tracking import passing

LOOKS_APART, PERIOD = (3, 6), 40


@pytest.fixture
def debugger(monkeypatch: pytest.MonkeyPatch) -> Iterator[sg.Debugger]:
    with sampled(monkeypatch, LOOKS_APART, PERIOD) as made:
        yield made


def test_checks_on_request_keep_no_steady_period_from_its_looks_and_its_end(debugger: sg.Debugger) -> None:
    table = guarded(debugger, 8)
    graph = until_steady(debugger, table)
    budget = debugger.monitor.budget
    for _ in range(3 * (PERIOD + WINDOW)):
        graph.replay()
        debugger.check()
    assert debugger.monitor.observation.periods >= 3
    assert budget.replays == graph.model.replays
    assert budget.observed > QUIET + 3 * PERIOD // LOOKS_APART[1]


def test_nor_do_marked_prepares_and_who_did_it_gets_known(debugger: sg.Debugger) -> None:
    table, switch = guarded(debugger, 8), [False]
    graph = breaks(end(table), table, switch)
    for at in range(QUIET + 10 * LOOKS_APART[1]):
        switch[0] = at > QUIET
        with debugger.prepare(graph):
            touch(table)
        graph.replay()
    found = only(debugger.check())
    assert (found.detected_at, found.culprit.node, found.culprit.status) == ("replay_end", 1, "confirmed")


def test_the_next_replay_is_located(debugger: sg.Debugger) -> None:
    table = guarded(debugger, 8)
    graph = until_steady(debugger, table)
    assert passing.on, "precondition"
    where = debugger.locate(graph)
    graph.replay()
    assert where.outcome is not None


def test_what_is_watched_does_not_pass(debugger: sg.Debugger) -> None:
    table = guarded(debugger, 8)
    graph = until_steady(debugger, table)
    assert passing.on, "precondition"
    watch = debugger.watch(table)
    touch(table)
    graph.replay()
    debugger.check()
    assert [change.writer for change in watch.changes if change.writer] == ["fill"]


def test_what_a_replay_that_passed_broke_is_not_laid_on_eager_code_when_the_buffer_is_freed(
    debugger: sg.Debugger,
) -> None:
    keep, table, switch = guarded(debugger, 8), guarded(debugger, 8), [False]
    graph = breaks(end(table), keep, switch)
    for _ in range(QUIET + 1):
        graph.replay()
    assert passing.on, "precondition"
    switch[0] = True
    graph.replay()
    switch[0] = False
    del table
    gc.collect()
    _ = guarded(debugger, 8)
    found = only(debugger.check())
    assert (found.detected_at, found.phase, found.replay) == ("replay_end", "replay", graph.model.replays)


@pytest.mark.parametrize("writes", [False, True])
def test_what_was_broken_while_launches_were_not_observed_stays(debugger: sg.Debugger, writes: bool) -> None:
    """A graph that is given the buffer finds past its end what is there without a debugger: its own nodes have shown
    that none of its replays broke it."""
    table, other = guarded(debugger, 8), guarded(debugger, 8)
    graph, read = sg.HostGraph(), []
    with sg.host_graph(graph):
        other.copy_(table)
        if writes:
            table.add_(0)
        graph.call(lambda: read.append(ctypes.string_at(end(table), 4)), reads=(table,))
    for _ in range(QUIET + 1):
        graph.replay()
    assert passing.on, "precondition"
    ctypes.memset(end(table), 1, 4)
    read.clear()
    for _ in range(6 * LOOKS_APART[1]):
        graph.replay()
    assert only(debugger.findings).detected_at == "replay_begin", "precondition"
    assert set(read) == {b"\1\1\1\1"}


def test_the_last_replay_before_a_failure_may_have_passed(debugger: sg.Debugger) -> None:
    table = guarded(debugger, 8)
    graph = until_steady(debugger, table)
    graph.replay()
    assert passing.on, "precondition"
    failure = join(debugger.monitor, RuntimeError("CUDA error: an illegal memory access was encountered"))
    assert failure is not None
    assert failure.replay == graph.model.replays


def test_what_passed_last_is_not_the_next_debuggers(monkeypatch: pytest.MonkeyPatch) -> None:
    with sampled(monkeypatch, LOOKS_APART, PERIOD) as first:
        table = guarded(first, 8)
        graph = until_steady(first, table)
        assert passing.on, "precondition"
        first.pause()
        graph.replay()
    assert passing.pending() == (), "they keep the graph alive"
    with sampled(monkeypatch, LOOKS_APART, PERIOD) as second:
        assert second.monitor.budget.replays == 0
        assert not second.monitor.flight_recorder.replays


def test_replays_that_pass_in_several_threads_are_all_counted(debugger: sg.Debugger) -> None:
    tables = [guarded(debugger, 8) for _ in range(4)]
    graphs = [until_steady(debugger, table) for table in tables]
    threads = [Thread(target=lambda graph=graph: [graph.replay() for _ in range(1500)]) for graph in graphs]
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)
    assert debugger.monitor.observation.periods > len(graphs), "precondition"
    assert not debugger.check()
    assert debugger.monitor.budget.replays == sum(graph.model.replays for graph in graphs)


def overruns_from(debugger: sg.Debugger, first: int) -> tuple[sg.Finding, ...]:
    """A program whose prepare overruns from its first replay, or a later one, on."""
    from shadowgraph.demos.kernels import fill

    table = guarded(debugger, 8)
    graph = reader(table)
    for at in range(QUIET + 6 * LOOKS_APART[1]):
        fill[(1,)](table, 0, 9 if at >= first else 8, 7, BLOCK=16)
        graph.replay()
    assert debugger.monitor.observation.periods, "precondition"
    return tuple(debugger.check())


@pytest.mark.parametrize("first", [0, QUIET + 1])
def test_what_is_suppressed_is_so_in_a_nap(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, first: int) -> None:
    with sampled(monkeypatch, LOOKS_APART, PERIOD) as debugger:
        known = only(overruns_from(debugger, first))
    assert known.culprit.name == "fill"
    path = tmp_path / "known.txt"
    path.write_text(f"{known.fingerprint}\n")
    with sampled(monkeypatch, LOOKS_APART, PERIOD, suppressions=str(path)) as debugger:
        assert overruns_from(debugger, first) == ()
        assert debugger.monitor.book.suppressed
        notes = debugger.monitor.book.notes
    assert notes == (), "the launch log names the kernel at the first sighting"


def test_what_is_known_under_another_name_is_so_in_a_nap(debugger: sg.Debugger) -> None:
    """Sightings with other candidates belong to the cause that a closer look has confirmed."""
    from shadowgraph.demos.kernels import fill

    table = guarded(debugger, 8)
    graph = reader(table)

    def step(value: int, more: bool = False) -> None:
        if value:
            fill[(1,)](table, 0, 9, value, BLOCK=16)
        if more:
            table.mul_(1)
        graph.replay()

    for at in range(4):
        step(5 + at)
    for at in range(2):
        step(20 + at, more=True)
    debugger.check()
    assert len(debugger.findings) == 1, "precondition"
    while not passing.on:
        step(0)
    step(77)
    step(0)
    step(0)
    assert len(debugger.check()) == 1


def test_a_known_cause_that_is_seen_in_a_nap_is_watched_again_more_and_more_seldom(debugger: sg.Debugger) -> None:
    table, switch = guarded(debugger, 8), [True]
    graph = breaks(end(table), table, switch)
    for _ in range(4):
        graph.replay()
    found = only(debugger.check())
    assert found.culprit.status == "confirmed", "precondition"
    switch[0], roused = False, []
    for at in range(1, 7):
        while not passing.on:
            graph.replay()
        before, switch[0] = found.occurrences, True
        graph.replay()
        switch[0] = False
        while passing.on:
            graph.replay()
        graph.replay()
        graph.replay()
        found = only(debugger.findings)
        assert found.occurrences > before, "it is one more time of what was last seen there"
        roused += [at] * (not debugger.monitor.observation.unobserved)
        for _ in range(2 * LOOKS_APART[1]):  # a look arms the guard again
            graph.replay()
    assert roused == [1, 2, 4]


def test_what_was_launched_last_before_a_loss_in_a_nap_says_how_long_ago(debugger: sg.Debugger) -> None:
    table = guarded(debugger, 8)
    graph = reader(table)
    while not passing.on:
        touch(table)
        graph.replay()
    for _ in range(2):
        touch(table)
        graph.replay()
    assert passing.on, "precondition"
    work = debugger.monitor
    work.lose(RuntimeError("CUDA error: device-side assert"))
    (launch, *_) = work.crash_recorder.launches()
    assert (launch.name, launch.passed) == ("fill", 2)
    assert "2 replays before: those passed unseen" in str(debugger.report(quiet=True))


def test_of_a_launch_right_before_a_loss_nothing_of_the_kind_is_said(debugger: sg.Debugger) -> None:
    table = guarded(debugger, 8)
    graph = reader(table)
    touch(table)
    graph.replay()
    work = debugger.monitor
    work.lose(RuntimeError("CUDA error: device-side assert"))
    assert work.crash_recorder.launches()[0].passed == 0
    assert "passed unseen" not in str(debugger.report(quiet=True))


def test_a_replay_that_raises_while_it_passes_counts(debugger: sg.Debugger) -> None:
    table, raises = guarded(debugger, 8), [False]
    graph = sg.HostGraph()
    with sg.host_graph(graph):
        table.add_(0)
        graph.call(lambda: 1 // 0 if raises[0] else None, writes=())
    while not passing.on:
        graph.replay()
    raises[0] = True
    with pytest.raises(ZeroDivisionError):
        graph.replay()
    raises[0] = False
    assert passing.on, "precondition"
    debugger.check()
    assert debugger.monitor.budget.replays == graph.model.replays
    _, replays = debugger.monitor.flight_recorder.taken()
    assert [each.replay for each in replays] == list(range(1, graph.model.replays + 1))


def writer_of(debugger: sg.Debugger, table: torch.Tensor) -> tuple[str | None, str]:
    where = ByteRange(table.data_ptr(), table.data_ptr() + 4)
    writer = exception_context._writer(debugger.monitor, 0, where)
    assert writer is not None
    return writer.culprit.name, str(writer.culprit.status)


def test_who_was_seen_to_write_before_a_nap_is_a_candidate_ever_after(debugger: sg.Debugger) -> None:
    table, other = guarded(debugger, 8), guarded(debugger, 8)
    other.fill_(1)
    assert writer_of(debugger, other) == ("aten.fill_.Scalar", "confirmed")
    graph = until_steady(debugger, table)
    other.copy_(table)  # which passes unseen
    assert writer_of(debugger, other) == ("aten.fill_.Scalar", "candidate")
    graph.replay()
    debugger.monitor.observation.observe_all()
    assert writer_of(debugger, other) == ("aten.fill_.Scalar", "candidate")
    other.fill_(2)
    assert writer_of(debugger, other) == ("aten.fill_.Scalar", "confirmed")


def test_a_graph_that_wrote_before_host_code_passed_is_a_candidate(debugger: sg.Debugger) -> None:
    table = guarded(debugger, 8)
    graph = until_steady(debugger, table)
    graph.replay()
    table.fill_(9)  # which passes unseen
    assert writer_of(debugger, table) == ("aten.add_.Tensor", "candidate")
