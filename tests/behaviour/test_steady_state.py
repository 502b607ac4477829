"""Observation: when nothing happens, eager operators pass unseen for a while; nothing wrong may follow from that."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from padding import Batch, told
from playing import played
from programs import guarded, only
from steady_state import PERIOD, QUIET, WINDOW, is_watched, reader, sampled, touch, until_steady
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode

import shadowgraph as sg
from shadowgraph.checks.dangling.check import Dangling
from shadowgraph.checks.mutation.check import InGraphMutation
from shadowgraph.checks.registry import Checks
from shadowgraph.checks.stale_rows.check import StaleRows
from shadowgraph.graphs.dispatch import host_reads, thread_modes
from shadowgraph.model.row_history import RowState
from shadowgraph.monitor.sampling import observation
from shadowgraph.tracking import passing

Resize = Callable[[torch.Tensor], torch.Tensor]
ROUNDS = QUIET + 3 * (PERIOD + WINDOW)


@pytest.fixture
def debugger(monkeypatch: pytest.MonkeyPatch) -> Iterator[sg.Debugger]:
    with sampled(monkeypatch) as made:
        yield made


def past_the_end(namespace: str, name: str, value: int) -> Iterator[object]:
    """An operator that fills one element behind the end of what it was given, for as long as somebody needs it."""
    library = torch.library.Library(namespace, "DEF")
    library.define(f"{name}(Tensor(a!) x) -> ()")
    library.impl(name, lambda x: ctypes.memset(x.data_ptr() + x.nbytes, value, x.itemsize) and None, "CPU")
    yield getattr(getattr(torch.ops, namespace), name)
    library._destroy()


@pytest.fixture
def spill() -> Iterator[object]:
    """An operator that zeroes one element behind the end of what it was given."""
    yield from past_the_end("steady_state", "spill", 0)


def test_the_mode_leaves_the_stack_and_comes_back(debugger: sg.Debugger) -> None:
    table = guarded(debugger, 8)
    graph, seen = reader(table), []
    for _ in range(ROUNDS):
        graph.replay()
        seen.append(is_watched())
    quiet, unobserved, window = [True] * (QUIET - 1), [False] * PERIOD, [True] * WINDOW
    assert seen == [*quiet, *(unobserved + window) * 3, False]
    (limit,) = debugger.facts().limits
    assert limit.startswith("eager operators were observed around 4 replays in 14 after 6 without news")


def test_who_may_end_without_a_summary_is_told_at_once(debugger: sg.Debugger) -> None:
    said: list[str] = []
    debugger.runner.subscribe_report_lines(said.append)
    table = guarded(debugger, 8)
    graph = reader(table)
    for _ in range(ROUNDS):
        graph.replay()
    (line,) = said
    assert line.startswith("eager operators were observed around 4 replays in 14")
    assert debugger.facts().limits == ()


def test_without_being_asked_nobody_naps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(observation, "QUIET", 2)
    with played(monkeypatch) as debugger:
        table = guarded(debugger, 8)
        graph = reader(table)
        for _ in range(9):
            graph.replay()
            assert is_watched()
        assert debugger.facts().limits == ()


def test_a_capture_ends_a_nap(debugger: sg.Debugger) -> None:
    table = guarded(debugger, 8)
    graph = reader(table)
    for _ in range(QUIET + 2):
        graph.replay()
    assert not is_watched()
    other = reader(table)
    for _ in range(QUIET - 1):
        other.replay()
        assert is_watched()
    other.replay()
    assert not is_watched()


def test_what_an_operator_breaks_in_a_nap_is_found_at_once_and_named_when_it_happens_again(
    debugger: sg.Debugger, spill: object
) -> None:
    table = guarded(debugger, 8)
    graph = reader(table)
    for _ in range(QUIET + 2):
        graph.replay()
    assert not is_watched()
    spill(table)  # type: ignore[operator]
    graph.replay()
    found = only(debugger.check())
    assert (found.code, found.past_end, found.phase, found.culprit.name) == ("SG101", 4, "prepare", None)
    for _ in range(3):
        spill(table)  # type: ignore[operator]
        graph.replay()
        assert is_watched(), "a finding ends the steady state"
    found = only(debugger.check())
    assert (found.culprit.name, found.culprit.status) == ("steady_state.spill.default", "confirmed")


def plan(indptr: torch.Tensor, lens: torch.Tensor, refresh: bool) -> list[int]:
    """A host that fills an index array, unless it forgets to, with what a graph happened to leave in it, and plans."""
    if refresh:
        first, second = lens.tolist()
        indptr.copy_(torch.tensor([0, first, first + second], dtype=torch.int32))
    lens.add_(1)
    return indptr.tolist()


def planned(debugger: sg.Debugger, rounds: int, refresh: bool) -> list[int]:
    """A graph that overwrites the array; the rounds after which something had been found."""
    with debugger.guard():
        indptr, lens = torch.tensor([0, 4, 11]).int(), torch.tensor([4, 7]).int()
    graph = sg.HostGraph()
    with sg.host_graph(graph):
        indptr[1:].copy_(lens.cumsum(0))
    seen = []
    for at in range(rounds):
        plan(indptr, lens, refresh or at < QUIET + PERIOD - 2)
        graph.replay()
        seen += [at] * bool(debugger.findings)
    return seen


def test_a_host_that_rewrites_unseen_what_a_graph_wrote_is_not_accused(debugger: sg.Debugger) -> None:
    assert planned(debugger, ROUNDS, refresh=True) == []
    assert told(debugger) == []


def test_nor_would_it_be_silent_by_chance(debugger: sg.Debugger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(debugger.monitor.checks, "needs_every_write", ())
    monkeypatch.setattr(Checks, "invalidate_writers", lambda checks: None)
    monkeypatch.setattr(host_reads, "rest", lambda on: None)
    assert planned(debugger, ROUNDS, refresh=True)


def test_a_host_that_forgets_is_found_in_the_next_window(debugger: sg.Debugger) -> None:
    seen = planned(debugger, ROUNDS, refresh=False)
    assert seen[0] >= QUIET + PERIOD
    found = only(debugger.findings)
    assert (found.code, found.reader.name) == ("SG102", "tolist")


def test_padding_that_is_refreshed_unseen_is_not_stale(debugger: sg.Debugger) -> None:
    batch = Batch(debugger)
    for at in range(ROUNDS):
        batch.step([[2, 3, 5, 7], [6], [1, 2]][at % 3], zero=True)
    assert told(debugger) == []


def test_forgotten_padding_is_found_in_a_window(debugger: sg.Debugger) -> None:
    batch = Batch(debugger)
    for at in range(ROUNDS):
        batch.step([[2, 3, 5, 7], [6], [1, 2]][at % 3], zero=at < QUIET + 1)
    debugger.check()
    assert {finding.code for finding in (*debugger.findings, *debugger.notes)} == {"SG103"}


def test_a_host_that_reads_what_a_graph_makes_is_not_accused_after_a_nap(debugger: sg.Debugger) -> None:
    with debugger.guard():
        tokens = torch.tensor([3, 1, 4, 1]).int()
    graph = sg.HostGraph()
    with sg.host_graph(graph):
        tokens.copy_(tokens * 3 % 101)
    for _ in range(ROUNDS):
        graph.replay()
        tokens.tolist()
    assert debugger.findings == debugger.notes == ()
    assert {each.code for each in debugger.inferred} == {"SG102"}, "precondition: it is followed"


class Theirs(TorchDispatchMode):
    """A mode of the program's."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def test_a_nap_that_ends_within_a_mode_of_the_programs_leaves_that_one_its_place(debugger: sg.Debugger) -> None:
    table = guarded(debugger, 8)
    graph = until_steady(debugger, table)
    with Theirs() as theirs:  # type: ignore[no-untyped-call]
        for _ in range(PERIOD):
            graph.replay()
        assert not debugger.monitor.observation.unobserved
        assert _get_current_dispatch_mode() is theirs
        assert debugger.monitor.observation.incomplete
    assert _get_current_dispatch_mode() is None
    graph.replay()
    assert is_watched()
    assert not debugger.monitor.observation.incomplete


def test_who_asks_for_guards_in_a_nap_gets_them(debugger: sg.Debugger) -> None:
    table = guarded(debugger, 8)
    until_steady(debugger, table)
    assert not is_watched()
    made = guarded(debugger, 8)
    assert not made.untyped_storage().resizable()


def test_after_a_capture_its_thread_is_watched_at_once(debugger: sg.Debugger) -> None:
    table = guarded(debugger, 8)
    until_steady(debugger, table)
    graph = sg.HostGraph()
    with sg.host_graph(graph):
        table.add_(0)
    assert is_watched()
    assert not debugger.monitor.observation.incomplete


def in_a_thread(work: Callable[[], object]) -> None:
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


def test_while_the_mode_of_some_thread_rests_nothing_is_said_that_needs_all_writes(debugger: sg.Debugger) -> None:
    with debugger.guard():
        indptr, lens = torch.tensor([0, 4, 11]).int(), torch.tensor([4, 7]).int()
    graph = sg.HostGraph()
    with sg.host_graph(graph):
        indptr[1:].copy_(lens.cumsum(0))
    for _ in range(QUIET - 1):
        plan(indptr, lens, refresh=True)
        graph.replay()
    graph.replay()  # the steady state takes the mode off this thread, which never replays again
    assert not is_watched()
    work = debugger.monitor
    for at in range(ROUNDS):
        with torch._C._DisableTorchDispatch():  # no read of this thread's tells
            indptr.copy_(torch.tensor([0, at, at + 1], dtype=torch.int32))
        in_a_thread(graph.replay)
        in_a_thread(indptr.tolist)
        assert work.observation.incomplete
    assert debugger.findings == ()
    indptr.tolist()
    assert is_watched() or work.observation.unobserved


def test_a_thread_that_ends_in_its_sleep_is_not_waited_for(debugger: sg.Debugger) -> None:
    table = guarded(debugger, 8)
    graph = reader(table)
    mode = debugger.eager_mode
    assert mode is not None

    def replay() -> None:
        entered = thread_modes.enter(lambda *_: mode)
        for _ in range(QUIET):
            graph.replay()
        thread_modes.leave(entered)

    in_a_thread(replay)
    assert debugger.monitor.observation.unobserved
    for _ in range(PERIOD):
        graph.replay()
    assert not debugger.monitor.observation.incomplete


def test_a_mode_that_rests_when_its_debugger_stops_is_back_for_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(observation, "QUIET", QUIET)
    current: list[sg.Debugger] = []
    mode = thread_modes.enter(lambda *_: current[-1].eager_mode if current else None)
    try:
        for option in ("sampled", "always"):
            with played(monkeypatch, watch_eager=option) as debugger:
                current.append(debugger)
                assert is_watched()
                table = guarded(debugger, 8)
                graph = reader(table)
                debugger._mode.__exit__(None, None, None)  # type: ignore[union-attr]
                for _ in range(QUIET):
                    graph.replay()
                assert is_watched() is (option == "always")
                debugger._mode.__enter__()  # type: ignore[union-attr]
    finally:
        thread_modes.leave(mode)


PAST = 4 * 8  # bytes from the start of a table to what lies behind it


@pytest.fixture
def mark() -> Iterator[object]:
    """An operator that writes ones behind the end of what it was given."""
    yield from past_the_end("steady_mark", "mark", 1)


def held(table: torch.Tensor) -> bytes:
    return ctypes.string_at(table.data_ptr() + PAST, 4)


def spill_over(table: torch.Tensor) -> None:
    from shadowgraph.demos.kernels import fill

    fill[(1,)](table, 0, 9, 7, BLOCK=16)


def test_what_an_unseen_operator_wrote_past_an_end_stays_though_a_kernel_was_seen(
    debugger: sg.Debugger, mark: Callable[[torch.Tensor], None]
) -> None:
    table = guarded(debugger, 8)
    touch(table)  # its grid is known from here on
    graph = until_steady(debugger, table)
    seen = []
    for _ in range(3):  # found after the first; in the second phase the operator is seen again, and runs first
        mark(table)
        touch(table)
        seen.append(held(table))
        graph.replay()
    assert seen == [b"\1" * 4] * 3
    assert only(debugger.check()).occurrences >= 1


def test_nor_does_a_kernel_arm_in_a_nap_what_was_broken_before_it(
    debugger: sg.Debugger, mark: Callable[[torch.Tensor], None]
) -> None:
    table = guarded(debugger, 8)
    graph = reader(table)
    mark(table)
    touch(table)
    graph.replay()
    for _ in range(QUIET + PERIOD):
        graph.replay()
        if debugger.monitor.observation.unobserved:
            break
    assert debugger.monitor.observation.unobserved
    assert debugger.monitor._rearming.waiting, "precondition"
    mark(table)
    touch(table)
    assert held(table) == b"\1" * 4


def test_a_kernel_that_overruns_in_a_nap_is_named_at_once(debugger: sg.Debugger) -> None:
    table = guarded(debugger, 8)
    graph = until_steady(debugger, table)
    touch(table)
    spill_over(table)
    graph.replay()
    found = only(debugger.check())
    assert (found.code, found.phase, found.past_end) == ("SG101", "prepare", 4)
    named = {found.culprit.name, *(other.name for other in found.candidates)}
    assert named == {"fill"}, "who was given the buffer"
    assert found.culprit.stack[0].function == "spill_over", "the likeliest is the last"


def test_a_rule_broken_unseen_is_not_laid_on_whom_was_seen_before(debugger: sg.Debugger) -> None:
    table = guarded(debugger, 8)
    touch(table)  # its grid is known from here on
    debugger.invariant(table, sg.index_range(0, 9))
    touch(table)  # its grid is known from here on
    table.fill_(3)
    graph = until_steady(debugger, table)
    touch(table)  # a kernel, which is seen, and keeps the rule no longer than until the operator after it
    table.fill_(11)
    graph.replay()
    found = only(debugger.check())
    assert (found.code, found.culprit.name) == ("SG109", None)
    for _ in range(3):
        table.fill_(12)
        graph.replay()
    assert is_watched()
    found = only(debugger.check())
    assert found.culprit.name == "aten.fill_.Scalar"


def last_rows(debugger: sg.Debugger) -> set[RowState]:
    """States of rows at the last replay that is told of."""
    history = debugger.monitor.checks[StaleRows].history()
    return {stretch.state for rows in history for stretch in rows.replays[-1].rows}


def test_what_is_told_of_rows_does_not_reach_over_a_nap(debugger: sg.Debugger) -> None:
    batch = Batch(debugger)
    batch.step([2, 3, 5, 7], zero=True)
    batch.step([2, 3, 5, 7], zero=True)
    for _ in range(QUIET + PERIOD - 2):
        batch.replay()
    assert RowState.KEPT in last_rows(debugger), "precondition: at the last observed replay"
    assert not debugger.monitor.observation.incomplete
    batch.replay()
    assert last_rows(debugger) == {RowState.UNKNOWN}


def test_memory_that_moved_unseen_is_found_gone_in_the_next_window(debugger: sg.Debugger) -> None:
    table, other = torch.zeros(8), guarded(debugger, 8)
    assert table.untyped_storage().resizable(), "precondition: none of ours"
    graph = reader(table)
    beside = until_steady(debugger, other)
    table.resize_(1 << 16)
    dangling = debugger.monitor.checks[Dangling]
    held = dangling._held[graph.model.serial]
    assert held.uses[0].buffer.alive, "precondition: nobody has looked"
    for _ in range(PERIOD):
        beside.replay()
    assert not held.uses[0].buffer.alive


@pytest.mark.parametrize("resize", [lambda t: t.resize_(20), lambda t: t.resize_as_(torch.zeros(20))])
def test_what_is_guarded_can_grow_in_a_nap_too(debugger: sg.Debugger, resize: Resize) -> None:
    table, grows = guarded(debugger, 8), guarded(debugger, 8)
    until_steady(debugger, table)
    assert not is_watched()
    resize(grows)
    assert grows.shape == (20,)
    assert is_watched()
    assert debugger.facts().faults == {}
    debugger.stop()
    with pytest.raises(RuntimeError, match="not resizable"):
        resize(table)  # nobody watches: what it would have been


def test_a_constant_that_the_host_wrote_again_is_no_declaration(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else no replay passes any more, in a server that sets its index buffers before each replay."""
    with sampled(monkeypatch, apart=(8, 8), asleep=1000) as debugger:
        table = guarded(debugger, 8)
        table.fill_(1)
        graph = reader(table)
        graph.replay()
        table.copy_(torch.arange(8, dtype=table.dtype))
        for _ in range(QUIET):
            graph.replay()
        mutation, budget = debugger.monitor.checks[InGraphMutation], debugger.monitor.budget
        assert mutation.declared, "it must have been taken up again, or this shows nothing"
        assert debugger.monitor.observation.unobserved
        before = budget.observed
        for _ in range(80):
            graph.replay()
        assert budget.observed - before == 10, "one in 8"


def test_a_step_in_inference_mode_as_servers_have_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The steady state begins and ends inside of a block that restores torch's dispatch keys at its end."""
    with sampled(monkeypatch, (10_000, 20_000), 12) as debugger:
        table = guarded(debugger, 8)
        graph, states = reader(table), set[bool]()

        @torch.inference_mode()
        def step(number: int) -> None:
            table.copy_(torch.from_numpy(np.full(8, number, dtype=np.int32)))
            graph.replay()
            states.add(passing.on)

        for number in range(60):
            step(number)
            assert torch.from_numpy(np.arange(3)).tolist() == [0, 1, 2]
            assert is_watched() is not debugger.monitor.observation.unobserved
        assert states == {True, False}, "invalid: the steady state did not begin and end"
        assert debugger.facts().faults == {}
    assert torch._C._len_torch_dispatch_stack() == 0
    assert torch.from_numpy(np.arange(3)).tolist() == [0, 1, 2]


def test_a_debugger_that_ends_in_inference_mode() -> None:
    debugger = sg.debug(backend="host")
    debugger.__enter__()
    with torch.inference_mode():
        debugger.__exit__(None, None, None)
    assert torch.from_numpy(np.arange(3)).tolist() == [0, 1, 2]
