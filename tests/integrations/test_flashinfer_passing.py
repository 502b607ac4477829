"""Plans of flashinfer's wrappers while replays pass in a nap: noted at little cost, and told as others are."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from planning_backend import Backend, attachment, ints

import shadowgraph as sg
from shadowgraph.faults import faults
from shadowgraph.graphs import passing
from shadowgraph.integrations.flashinfer_adapter import Attachment


@pytest.fixture
def attached() -> Iterator[Attachment]:
    with attachment() as made:
        yield made


@pytest.fixture(params=["isolate", "faithful"])
def debugger(request: pytest.FixtureRequest, attached: Attachment) -> Iterator[sg.Debugger]:
    before = faults.total
    with sg.debug(layout=request.param) as made:
        yield made
    assert faults.total == before, faults.counts


def test_the_last_plan_is_kept_while_replays_pass(debugger: sg.Debugger) -> None:
    backend = Backend(debugger, sizes=(4, 2))
    backend.capture()
    passing.let(100, {backend.graphs[2].model.serial})
    try:
        for length in (3, 5):
            backend.step(2, [length, length])
    finally:
        passing.let(0)
    plan = debugger.supervisor.journal.host_plans.last
    assert plan is not None
    assert torch.frombuffer(bytearray(plan.indptr), dtype=torch.int32).tolist() == [0, 5, 10]
    assert (plan.graph, plan.replay) == (backend.graphs[2].model.name, 2)
    assert plan.into is not None
    assert (plan.into.start, plan.into.shape) == (backend.kv_indptr.data_ptr(), (3,))


@pytest.mark.parametrize("change", ["nothing", "type", "pointers", "length"])
def test_a_plan_that_differs_in_more_than_values_is_seen_to(
    debugger: sg.Debugger, attached: Attachment, change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = Backend(debugger)
    backend.capture()
    backend.step(3, [4, 5, 6])
    wrapper, given = backend.wrappers[3], ints(0, 7, 8, 9)
    if change == "type":
        given = given.long()
    elif change == "nothing":
        monkeypatch.setattr(attached.hooks, "_note", None)  # is not needed
    elif change == "pointers":
        with debugger.guard():
            wrapper._paged_kv_indptr_buf = torch.zeros(4, dtype=torch.int32)
    elif change == "length":
        wrapper._paged_kv_indptr_buf = backend.kv_indptr[:6]
    passing.let(100, {backend.graphs[3].model.serial})
    try:
        attached.hooks.plan(wrapper, lambda *_: None, *[backend.workspace] * 3, given, 3)
    finally:
        passing.let(0)
    plan = debugger.supervisor.journal.host_plans.last
    assert plan is not None
    assert plan.indptr == given.numpy().tobytes()
    assert plan.dtype == ("int64" if change == "type" else "int32")
    assert plan.into is not None
    assert plan.into.start == wrapper._paged_kv_indptr_buf.data_ptr()
    assert plan.into.shape == tuple(wrapper._paged_kv_indptr_buf.shape)
    assert (plan.graph, plan.replay) == (backend.graphs[3].model.name, 2)


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
    plan = debugger.supervisor.journal.host_plans.last
    assert plan is not None
    assert plan.graph == second.name


def test_index_pointers_that_are_the_queries_too_are_told_apart(debugger: sg.Debugger, attached: Attachment) -> None:
    backend = Backend(debugger)
    backend.capture()
    same, workspace = ints(0, 1, 2, 3), [backend.workspace] * 3
    attached.hooks.plan(backend.wrappers[3], lambda *_: None, *workspace, same, same, 3)
    passing.let(100)
    try:
        attached.hooks.plan(backend.wrappers[3], lambda *_: None, *workspace, same, ints(0, 10, 20, 30), 3)
    finally:
        passing.let(0)
    plan = debugger.supervisor.journal.host_plans.last
    assert plan is not None
    assert plan.indptr == ints(0, 10, 20, 30).numpy().tobytes()


def test_of_planners_within_each_other_the_one_that_raises_is_told(debugger: sg.Debugger, attached: Attachment) -> None:
    backend = Backend(debugger, sizes=(3, 2))
    backend.capture()
    for size in (3, 2):
        backend.plan(size, [4] * size)
    hooks, workspace = attached.hooks, [backend.workspace] * 3

    def outer(*_: object) -> None:
        hooks.plan(backend.wrappers[2], lambda *_: None, *workspace, ints(0, 2, 4), 2)
        raise RuntimeError("bad")

    passing.let(100)
    try:
        with pytest.raises(RuntimeError, match="bad"):
            hooks.plan(backend.wrappers[3], outer, *workspace, ints(0, 7, 8, 9), 3)
    finally:
        passing.let(0)
    plans = debugger.supervisor.journal.host_plans
    told = [plans.whole(plan) for plan in tuple(plans._plans)]
    assert [(plan.entries, plan.error) for plan in told[-2:]] == [(4, "bad"), (3, "")]


def test_a_planner_that_raises_while_replays_pass_is_told_with_its_plan(
    debugger: sg.Debugger, attached: Attachment
) -> None:
    backend = Backend(debugger)
    backend.capture()
    backend.step(3, [4, 5, 6])

    def refuse(*_: object) -> None:
        raise RuntimeError("no room")

    passing.let(100, {backend.graphs[3].model.serial})
    try:
        with pytest.raises(RuntimeError, match="no room"):
            attached.hooks.plan(backend.wrappers[3], refuse, *[backend.workspace] * 3, ints(0, 7, 8, 9), 3)
    finally:
        passing.let(0)
    plan = debugger.supervisor.journal.host_plans.last
    assert plan is not None
    assert (plan.error, plan.indptr) == ("no room", ints(0, 7, 8, 9).numpy().tobytes())


def test_index_pointers_that_moved_are_seen_to(debugger: sg.Debugger) -> None:
    """Where they lie is remembered by object, as long as it leads to the same memory."""
    backend = Backend(debugger)
    backend.capture()
    backend.step(3, [4, 5, 6])
    with debugger.guard():
        moved = torch.zeros(8, dtype=torch.int32)
    backend.wrappers[3]._paged_kv_indptr_buf.set_(moved[:4])
    backend.plan(3, [4, 5, 6])
    plan = debugger.supervisor.journal.host_plans.last
    assert plan is not None
    assert plan.into is not None
    assert plan.into.start == moved.data_ptr()
