"""Plans of flashinfer's wrappers while replays pass unobserved: noted at little cost, and told as others are."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from threading import Thread
from typing import Any

import planning_wrappers
import pytest
import torch
from planning_backend import Backend, ints

import shadowgraph as sg
from shadowgraph.common.internal_errors import internal_errors
from shadowgraph.integrations.flashinfer.adapter import Attachment
from shadowgraph.integrations.flashinfer.planner import StandIn
from shadowgraph.integrations.flashinfer.steady_plans import PLANNED, SteadyModule
from shadowgraph.model.host_plans import LARGEST, Again, HostPlan, HostPlans
from shadowgraph.model.launch_log_format import RowKind
from shadowgraph.model.launch_log_reader import LoggedEvent, LoggedLaunch, contents_of
from shadowgraph.monitor.preparing import PrepareBlock
from shadowgraph.monitor.sampling import observation
from shadowgraph.tracking import launch_recording, passing


class Module:
    """A compiled module whose planner does what a test wants."""

    def __init__(self) -> None:
        self.act: Callable[..., Any] = lambda *_: None

    def plan(self, *args: Any) -> Any:
        return self.act(*args)

    def run(self, *args: Any) -> str:
        return "ran"


@contextmanager
def replays_pass(*known: int) -> Iterator[None]:
    passing.let(100, set(known))
    try:
        yield
    finally:
        passing.let(0)


def planned(backend: Backend, size: int, given: torch.Tensor, *more: torch.Tensor) -> object:
    """Plan through whatever stands for a wrapper's module."""
    return backend.wrappers[size]._cached_module.plan(*[backend.workspace] * 3, given, *more, size)


def with_module(debugger: sg.Debugger, *sizes: int) -> tuple[Backend, Module]:
    """A backend that has captured and planned, and the module that its wrappers share."""
    backend, module = Backend(debugger, sizes=sizes), Module()
    backend.capture()
    for size in sizes:
        backend.wrappers[size]._cached_module = module
        planned(backend, size, ints(*range(size + 1)))
    return backend, module


def last_of(debugger: sg.Debugger) -> HostPlan:
    plan = debugger.monitor.flight_recorder.host_plans.last
    assert plan is not None
    return plan


def test_the_last_plan_is_kept_while_replays_pass(debugger: sg.Debugger) -> None:
    backend = Backend(debugger, sizes=(4, 2))
    backend.capture()
    passing.let(100, {backend.graphs[2].model.serial})
    try:
        for length in (3, 5):
            backend.step(2, [length, length])
    finally:
        passing.let(0)
    plan = debugger.monitor.flight_recorder.host_plans.last
    assert plan is not None
    assert torch.frombuffer(bytearray(plan.indptr), dtype=torch.int32).tolist() == [0, 5, 10]
    assert (plan.graph, plan.replay) == (backend.graphs[2].model.name, 2)
    assert plan.into is not None
    assert (plan.into.start, plan.into.shape) == (backend.kv_indptr.data_ptr(), (3,))
    log = launch_recording.current
    assert log is not None
    row = contents_of(log.memory).last(RowKind.PLAN)
    assert row is not None
    assert row.text.endswith("2 requests, 10 entries")
    assert row.replay == 2


@pytest.mark.parametrize("change", ["nothing", "type", "pointers", "length", "module", "no tensor"])
def test_a_plan_that_differs_in_more_than_values_is_seen_to(
    debugger: sg.Debugger, attached: Attachment, change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend, _ = with_module(debugger, 3)
    wrapper, given = backend.wrappers[3], ints(0, 7, 8, 9)
    noted: list[HostPlan] = []
    monkeypatch.setattr(
        attached.hooks, "_note", lambda *args: noted.append(type(attached.hooks)._note(attached.hooks, *args))
    )
    if change == "type":
        given = given.long()
    elif change == "pointers":
        with debugger.guard():
            wrapper._paged_kv_indptr_buf = torch.zeros(4, dtype=torch.int32)
    elif change == "length":
        wrapper._paged_kv_indptr_buf = backend.kv_indptr[:6]
    elif change == "module":
        wrapper._cached_module = Module()
    with replays_pass(backend.graphs[3].model.serial):
        if change == "no tensor":
            wrapper._cached_module.plan(*[backend.workspace] * 3)
            assert noted == [None]
            return
        planned(backend, 3, given)
    plan = last_of(debugger)
    assert noted == ([] if change in ("nothing", "module") else [plan])
    assert plan.indptr == given.numpy().tobytes()
    assert plan.dtype == ("int64" if change == "type" else "int32")
    assert plan.into is not None
    assert plan.into.start == wrapper._paged_kv_indptr_buf.data_ptr()
    assert plan.into.shape == tuple(wrapper._paged_kv_indptr_buf.shape)
    assert (plan.graph, plan.replay) == (backend.graphs[3].model.name, 1)


def test_the_graph_that_was_announced_is_the_one_that_is_planned_for(debugger: sg.Debugger) -> None:
    backend = Backend(debugger, sizes=(3, 2))
    backend.capture()
    first, second = backend.graphs[3].model, backend.graphs[2].model
    with debugger.prepare(backend.graphs[3]):
        backend.plan(3, [4, 5, 6])
    passing.let(100, {first.serial, second.serial})
    try:
        with debugger.prepare(backend.graphs[2]):
            passing.let(100, {first.serial, second.serial})
            backend.plan(3, [4, 5, 7])
    finally:
        passing.let(0)
    plan = debugger.monitor.flight_recorder.host_plans.last
    assert plan is not None
    assert plan.graph == second.name


def test_a_graph_that_was_announced_before_is_not_the_next_ones(debugger: sg.Debugger) -> None:
    backend, _ = with_module(debugger, 3, 2)
    with debugger.prepare(backend.graphs[2]):
        planned(backend, 3, ints(0, 7, 8, 9))
    assert last_of(debugger).graph == backend.graphs[2].model.name
    with replays_pass():
        planned(backend, 3, ints(0, 7, 8, 10))
    assert last_of(debugger).graph == backend.graphs[3].model.name


def test_index_pointers_that_are_the_queries_too_are_told_apart(debugger: sg.Debugger) -> None:
    backend, _ = with_module(debugger, 3)
    same = ints(0, 1, 2, 3)
    planned(backend, 3, same, same)
    with replays_pass():
        planned(backend, 3, same, ints(0, 10, 20, 30))
    assert last_of(debugger).indptr == ints(0, 10, 20, 30).numpy().tobytes()


def test_of_planners_within_each_other_the_one_that_raises_is_told(debugger: sg.Debugger) -> None:
    backend, module = with_module(debugger, 3, 2)

    def outer(*_: object) -> None:
        module.act = lambda *_: None
        planned(backend, 2, ints(0, 2, 4))
        raise RuntimeError("bad")

    module.act = outer
    with replays_pass(), pytest.raises(RuntimeError, match="bad"):
        planned(backend, 3, ints(0, 7, 8, 9))
    plans = debugger.monitor.flight_recorder.host_plans
    told = [plans.whole(plan) for plan in tuple(plans._plans)]
    assert [(plan.entries, plan.error) for plan in told[-2:]] == [(4, "bad"), (3, "")]


def test_a_planner_that_raises_while_replays_pass_is_told_with_its_plan(debugger: sg.Debugger) -> None:
    backend, module = with_module(debugger, 3)

    def refuse(*_: object) -> None:
        raise RuntimeError("no room")

    module.act = refuse
    with replays_pass(), pytest.raises(RuntimeError, match="no room"):
        planned(backend, 3, ints(0, 7, 8, 9))
    plan = last_of(debugger)
    assert (plan.error, plan.indptr) == ("no room", ints(0, 7, 8, 9).numpy().tobytes())


def test_what_the_planner_is_given_and_returns_is_its_own(debugger: sg.Debugger) -> None:
    backend, module = with_module(debugger, 3)
    module.act = lambda *args: args
    given = ints(0, 7, 8, 9)
    with replays_pass():
        assert type(backend.wrappers[3]._cached_module) is SteadyModule
        assert planned(backend, 3, given) == (*[backend.workspace] * 3, given, 3)
        assert backend.wrappers[3]._cached_module.run() == "ran"
        backend.wrappers[3]._cached_module = backend.wrappers[3]._cached_module
        with pytest.raises(AttributeError):
            _ = backend.wrappers[3]._cached_module.what
    assert vars(backend.wrappers[3])["_cached_module"] is module


def test_a_fault_of_ours_costs_no_plan(attached: Attachment, monkeypatch: pytest.MonkeyPatch) -> None:
    before = internal_errors.total
    with sg.debug() as debugger:
        backend, module = with_module(debugger, 3)
        module.act = lambda *_: "planned"
        monkeypatch.setattr(HostPlans, "note_again", lambda *_: 1 // 0)
        with replays_pass():
            assert planned(backend, 3, ints(0, 7, 8, 9)) == "planned"
        assert internal_errors.total == before + 1
        assert last_of(debugger).indptr == ints(0, 7, 8, 9).numpy().tobytes()


def test_the_planner_is_the_modules_own_at_that_time(debugger: sg.Debugger) -> None:
    backend, module = with_module(debugger, 3)
    wrapper, other = backend.wrappers[3], Module()
    module.act = lambda *_: "first"
    other.act = lambda *_: "other"
    with replays_pass():
        held = wrapper._cached_module
        assert planned(backend, 3, ints(0, 7, 8, 9)) == "first"
        module.act = lambda *_: "second"
        assert planned(backend, 3, ints(0, 7, 8, 9)) == "second"
        wrapper._cached_module = other
        assert planned(backend, 3, ints(0, 7, 8, 9)) == "other"
        assert held.plan(*[backend.workspace] * 3, ints(0, 7, 8, 9), 3) == "second"
        wrapper._cached_module = None
        assert wrapper._cached_module is None


def test_what_is_held_beyond_a_nap_plans_as_any_other(
    debugger: sg.Debugger, attached: Attachment, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend, _ = with_module(debugger, 3)
    with replays_pass():
        held = backend.wrappers[3]._cached_module
    assert type(held) is SteadyModule
    seen: list[object] = []
    monkeypatch.setattr(attached.hooks, "plan", lambda wrapper, *_: seen.append(wrapper))
    held.plan(*[backend.workspace] * 3, ints(0, 7, 8, 9), 3)
    assert seen == [backend.wrappers[3]]


@pytest.mark.parametrize("passes", [False, True])
def test_a_copy_of_a_stand_in_is_one_of_the_module(debugger: sg.Debugger, passes: bool) -> None:
    backend, _ = with_module(debugger, 3)
    backend.wrappers[3]._cached_module = Module()
    with replays_pass() if passes else nullcontext():
        stand_in = backend.wrappers[3]._cached_module
        assert type(stand_in) is (SteadyModule if passes else StandIn)
        assert type(copy.copy(stand_in)) is Module


@pytest.fixture
def sampled(attached: Attachment, monkeypatch: pytest.MonkeyPatch) -> Iterator[sg.Debugger]:
    """A debugger that lets replays pass after a few."""
    for name, value in (("QUIET", 3), ("WINDOW", 2), ("PERIOD", 4000), ("LOOKS_APART", (50, 60))):
        monkeypatch.setattr(observation, name, value)
    with sg.debug(watch_eager="sampled") as made:
        made.monitor.observation.wanted = True
        yield made


@pytest.mark.parametrize("steady", [True, False], ids=["steady", "whole"])
def test_a_plan_of_more_entries_than_all_before_is_watched(
    sampled: sg.Debugger, attached: Attachment, steady: bool
) -> None:
    backend = Backend(sampled)
    backend.capture()
    for _ in range(5):
        backend.step(3, [4, 5, 6])
    assert passing.on, "precondition"
    backend.plan(3, [3, 5, 4])
    assert passing.on
    if not steady:
        attached.hooks.forget()
    backend.plan(3, [10, 15, 24])
    assert not passing.on
    assert sampled.monitor.novelty.woken == 1
    assert last_of(sampled).indptr == ints(0, 10, 25, 49).numpy().tobytes()
    backend.graphs[3].replay()
    assert sampled.monitor.budget.observed == sampled.monitor.budget.replays - 2
    assert not sampled.check()
    assert sampled.facts().faults == {}


def test_nothing_is_kept_of_a_wrapper_that_is_gone(debugger: sg.Debugger, attached: Attachment) -> None:
    backend, _ = with_module(debugger, 3, 2)
    assert set(attached.hooks._steady) == {id(wrapper) for wrapper in backend.wrappers.values()}
    left = id(backend.wrappers[2])
    wrapper = backend.wrappers[3]
    wrapper._cached_module = module = Module()
    module.act = lambda *_, of=wrapper: None  # a module may lead back to it
    with replays_pass():
        planned(backend, 3, ints(0, 7, 8, 9))
    del backend.wrappers[3], wrapper.begin_forward  # which keeps it alive
    del wrapper, module
    gc.collect()
    assert set(attached.hooks._steady) == {left}


def test_index_pointers_that_moved_are_seen_to(debugger: sg.Debugger) -> None:
    """Where they lie is remembered by object, as long as it leads to the same memory."""
    backend = Backend(debugger)
    backend.capture()
    backend.step(3, [4, 5, 6])
    with debugger.guard():
        moved = torch.zeros(8, dtype=torch.int32)
    backend.wrappers[3]._paged_kv_indptr_buf.set_(moved[:4])
    backend.plan(3, [4, 5, 6])
    plan = debugger.monitor.flight_recorder.host_plans.last
    assert plan is not None
    assert plan.into is not None
    assert plan.into.start == moved.data_ptr()


THIS = "test_plans_and_eager_runs_are_in_the_launch_log"


@pytest.mark.parametrize("passes", [False, True])
def test_plans_and_eager_runs_are_in_the_launch_log(debugger: sg.Debugger, passes: bool) -> None:
    backend, _ = with_module(debugger, 3)
    log, wrapper = launch_recording.current, backend.wrappers[3]
    assert log is not None
    before = log.newest
    with replays_pass() if passes else nullcontext():
        planned(backend, 3, ints(0, 7, 8, 9))
        wrapper._cached_module.run(backend.workspace, wrapper.out)
    rows = contents_of(log.memory).since(before)
    (plan,) = (row for row in rows if isinstance(row, LoggedEvent) and row.kind is RowKind.PLAN)
    assert plan.text == "DecodeWrapper (decode): 3 requests, 9 entries"
    assert (plan.graph, plan.replay) == (backend.graphs[3].model.serial, 1)
    launched = [row for row in rows if isinstance(row, LoggedLaunch) and row.kernel.startswith("flashinfer")]
    assert [row.kernel for row in launched] == ["flashinfer.DecodeWrapper.plan", "flashinfer.DecodeWrapper.run"]
    assert [row.site.function for row in launched if row.site] == ["planned", THIS]
    assert (backend.workspace.data_ptr(), 0) in launched[0].pointers
    assert launched[1].pointers == ((backend.workspace.data_ptr(), 0), (wrapper.out.data_ptr(), 0))


def test_a_captured_run_is_no_launch_of_the_host(debugger: sg.Debugger) -> None:
    log = launch_recording.current
    assert log is not None
    before = log.newest
    backend = Backend(debugger, sizes=(3,))
    backend.capture()
    kernels = [row.kernel for row in contents_of(log.memory).since(before) if isinstance(row, LoggedLaunch)]
    assert "flashinfer.DecodeWrapper.run" not in kernels
    assert "flashinfer.DecodeWrapper.plan" in kernels


@pytest.mark.parametrize("count", [0, 1, 4096, 4097, 5000])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_index_pointers_of_any_number_are_told(debugger: sg.Debugger, count: int, dtype: torch.dtype) -> None:
    backend, _ = with_module(debugger, 3)
    planned(backend, 3, torch.tensor([0, 70_000], dtype=dtype))
    given = torch.arange(count, dtype=dtype)
    with replays_pass():
        debugger.monitor.novelty.see(PLANNED, backend.graphs[3].model.serial, 10_000, 10_000)
        assert type(backend.wrappers[3]._cached_module) is SteadyModule
        planned(backend, 3, given)
    plan, log = last_of(debugger), launch_recording.current
    assert (plan.indptr, plan.entries) == (given.numpy().tobytes()[:LARGEST], count)
    assert log is not None
    row = contents_of(log.memory).last(RowKind.PLAN)
    assert row is not None
    assert row.text == f"DecodeWrapper (decode): {count - 1} requests, {max(0, count - 1)} entries"


def test_a_block_of_another_thread_announces_nothing_to_this_one(debugger: sg.Debugger) -> None:
    backend, _ = with_module(debugger, 3, 2)
    blocks: list[PrepareBlock] = []
    thread = Thread(target=lambda: blocks.append(debugger.adapter.prepare(backend.graphs[2].model)))
    thread.start()
    thread.join()
    with replays_pass():
        planned(backend, 3, ints(0, 7, 8, 10))
    assert type(debugger.monitor.flight_recorder.host_plans._plans[-1]) is Again, "noted at little cost"
    assert last_of(debugger).graph == backend.graphs[3].model.name
    blocks[0].end()


def test_the_hook_around_a_plan_has_nothing_to_do_while_replays_pass(
    debugger: sg.Debugger, attached: Attachment, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = Backend(debugger)
    backend.capture(fast=False)
    backend.plan(3, [4, 5, 6])  # its data are kept from here on
    called: list[object] = []
    monkeypatch.setattr(attached.hooks, "_prepare", lambda wrapper: called.append(wrapper))
    with replays_pass():
        backend.plan(3, [4, 5, 6])
        assert called == []
    assert type(backend.wrappers[3]).plan.__name__ == "plan"
    backend.plan(3, [4, 5, 6])
    assert called == [backend.wrappers[3]] * 2, "of the wrapper's plan, and of its planner"


def test_a_plan_that_ends_the_quiet_in_the_hook_around_it_is_prepared_in_a_block(
    sampled: sg.Debugger, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = Backend(sampled)
    backend.capture(fast=False)
    for _ in range(5):
        backend.step(3, [4, 5, 6])
    assert passing.on, "precondition"
    seen: list[object] = []
    monkeypatch.setattr(planning_wrappers, "planner", lambda *args: seen.append(sampled.adapter.preparing.graph) or [0])
    backend.plan(3, [10, 15, 24])
    assert not passing.on
    assert seen == [backend.graphs[3].model]
    assert not sampled.adapter.preparing.anywhere
