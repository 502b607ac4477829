"""SG108 on what a user declares, and on graphs of which no more is known than of a device's."""

from __future__ import annotations

import types
from typing import Any

import pytest
import torch
from captures import graph_over, silent
from playing import played
from programs import guarded, only, poke

import shadowgraph as sg
from shadowgraph.checks.rebound.bindings import Planned
from shadowgraph.checks.rebound.check import ReboundInputs
from shadowgraph.common.errors import UnknownBufferError, UsageError
from shadowgraph.dumps.redaction import redacted


class Owner:
    """Whatever holds a tensor."""

    def __init__(self, **tensors: torch.Tensor) -> None:
        self.__dict__.update(tensors)


def values(*numbers: int) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.int32)


def declared(debugger: sg.Debugger) -> tuple[Owner, sg.HostGraph]:
    """A graph over an input that somebody else keeps alive too."""
    owner = Owner(x=guarded(debugger, 4))
    owner.kept = owner.x  # type: ignore[attr-defined]
    owner.x.copy_(values(1, 2, 3, 4))
    debugger.name("owner", owner)
    graph = graph_over(lambda: owner.x * 2)
    debugger.refreshes(graph, owner, "x")
    graph.replay()
    return owner, graph


@pytest.mark.parametrize("layout", ["isolate", "faithful"])
def test_a_name_that_leads_to_fresh_memory(layout: str) -> None:
    """The shape of vLLM 53915: an eager operator returns its result at another address in each step."""
    with sg.debug(layout=layout) as debugger:
        owner, graph = declared(debugger)
        owner.x = guarded(debugger, 4)
        owner.x.copy_(values(1, 7, 3, 9))
        graph.replay()
        graph.replay()
        found: Any = only(debugger.findings)
    assert (found.code, found.severity, found.phase, found.replay) == ("SG108", "error", "prepare", 2)
    assert (found.graph, found.occurrences, found.confidence) == (graph.model.name, 2, "high")
    assert found.buffer.name in ("owner.kept", "owner.x")
    assert (found.bytes.first, found.bytes.last, found.bytes.count) == (4, 15, 8)
    assert found.bytes.ranges == ((4, 7), (12, 15))
    assert (found.detail.attribute, found.detail.moved, found.detail.planned) == ("owner.x", True, False)
    assert found.detail.now.address == owner.x.data_ptr()
    assert (found.culprit.name, found.culprit.status) == ("aten.copy_.default", "candidate")
    assert found.reader.name == "aten.mul.Tensor"
    hidden = redacted(found)
    assert hidden.window is None
    assert hidden.detail.attribute == "owner.x"


@pytest.mark.parametrize("layout", ["isolate", "faithful"])
def test_its_fixed_twin_copies_onto_the_captured_memory(layout: str) -> None:
    with sg.debug(layout=layout) as debugger:
        owner, graph = declared(debugger)
        for step in range(3):
            owner.x = guarded(debugger, 4)
            owner.x.copy_(values(1, 7, 3, step))
            owner.kept.copy_(owner.x)  # type: ignore[attr-defined]
            graph.replay()
        assert silent(debugger)


def test_constants_and_swaps_of_equal_values_are_silent() -> None:
    with sg.debug() as debugger:
        owner, graph = declared(debugger)
        for _ in range(2):
            owner.x = owner.x.clone()
            graph.replay()
        assert silent(debugger)


def test_two_buffers_in_turn_with_a_graph_each_are_silent() -> None:
    with sg.debug() as debugger:
        owner = Owner(x=guarded(debugger, 4))
        both = [owner.x, guarded(debugger, 4)]
        graphs = []
        for owner.x in both:
            graphs.append(graph_over(lambda: owner.x * 2))
            debugger.refreshes(graphs[-1], owner, "x")
        for step in range(4):
            owner.x = both[step % 2]
            owner.x.fill_(step)
            graphs[step % 2].replay()
        assert silent(debugger)


@pytest.mark.parametrize("again", [9, 4])
def test_after_a_pause_no_value_is_an_old_one(again: int) -> None:
    with sg.debug() as debugger:
        owner, graph = declared(debugger)
        debugger.pause()
        owner.kept.copy_(values(1, 2, 3, again))  # type: ignore[attr-defined]
        debugger.resume()
        owner.x = values(5, 5, 5, 5)
        graph.replay()
        assert silent(debugger)
        graph.replay()
        assert only(debugger.findings).replay == 3, "then it is"


def test_what_cannot_be_declared() -> None:
    with sg.debug() as debugger:
        owner = Owner(x=guarded(debugger, 4))
        graph = graph_over(lambda: owner.x * 2)
        with pytest.raises(UnknownBufferError, match="'y' of this Owner leads to no tensor"):
            debugger.refreshes(graph, owner, "y")
        for weakless in ({"x": owner.x}, types.SimpleNamespace(x=owner.x)):
            with pytest.raises(UsageError, match=f"weakly, which {type(weakless).__name__} does not allow"):
                debugger.refreshes(graph, weakless, "x")


class Slotted:
    __slots__ = ("__weakref__", "x")

    def __init__(self, x: torch.Tensor) -> None:
        self.x = x


class Module(torch.nn.Module):
    def __init__(self, x: torch.Tensor) -> None:
        super().__init__()
        self.register_buffer("x", x)


@pytest.mark.parametrize("fixed", [False, True], ids=["rebound", "refreshed"])
@pytest.mark.parametrize("kind", [Slotted, Module])
def test_where_an_owner_holds_its_tensors(kind: type[Any], fixed: bool) -> None:
    with sg.debug() as debugger:
        owner = kind(guarded(debugger, 4))
        kept = owner.x
        graph = graph_over(lambda: owner.x * 2)
        debugger.refreshes(graph, owner, "x")
        for step in range(3):
            if fixed:
                owner.x.copy_(values(1, 7, 3, step))
            else:
                owner.x = values(1, 7, 3, step)
            graph.replay()
        if fixed:
            assert silent(debugger)
            return
        found = only(debugger.findings)
    assert (found.code, found.buffer.shape) == ("SG108", tuple(kept.shape))


# -- as on a device ----------------------------------------------------------------------------------------------------


def test_on_a_device_a_replay_before_tells_what_was_there(monkeypatch: pytest.MonkeyPatch) -> None:
    with played(monkeypatch) as debugger:
        owner, graph = declared(debugger)
        owner.x = guarded(debugger, 4)
        for step in range(3):
            owner.x.copy_(values(1, 7, 3, step))
            graph.replay()
            debugger.check()
            assert len(debugger.findings) == 1
        found = only(debugger.findings)
    assert (found.code, found.replay, found.occurrences, found.confidence) == ("SG108", 2, 3, "medium")


def test_on_a_device_without_one_the_first_look_notes_and_the_second_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    with played(monkeypatch) as debugger:
        owner = Owner(x=guarded(debugger, 4))
        owner.kept = owner.x  # type: ignore[attr-defined]
        graph = graph_over(lambda: owner.x * 2)
        debugger.refreshes(graph, owner, "x")
        owner.x = guarded(debugger, 4)
        for step in range(2):
            owner.x.copy_(values(1, 7, 3, step))
            graph.replay()
            debugger.check()
            assert len(debugger.findings) == step
        assert only(debugger.findings).replay == 2


def test_on_a_device_a_plan_before_the_capture_tells_at_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    with played(monkeypatch) as debugger:
        owner = Owner(x=guarded(debugger, 4))
        owner.x.copy_(values(1, 2, 3, 4))
        check, clock = debugger.monitor.checks[ReboundInputs], debugger.monitor.context.clock
        check.plan(owner, Planned(next(clock), {"x": values(1, 2, 3, 4).numpy().tobytes()}))
        graph = graph_over(lambda: owner.x * 2)
        assert check.bind(graph.model, owner, "x", owner.x)
        assert check.graphs_of(owner) == [graph.model]
        graph.replay()
        check.plan(owner, Planned(next(clock), {"x": values(1, 2, 3, 5).numpy().tobytes()}))
        graph.replay()
        debugger.check()
        found = only(debugger.findings)
        assert (found.replay, found.bytes.first, found.bytes.last) == (2, 12, 15)
        assert (found.detail.moved, found.detail.planned, found.detail.now) == (False, True, None)


@pytest.mark.parametrize("seen", [True, False])
def test_on_a_device_a_refresh_is_silent(monkeypatch: pytest.MonkeyPatch, seen: bool) -> None:
    """Seen as a write, or by the values that changed; what the plan was made from may be an upper bound of them."""
    with played(monkeypatch) as debugger:
        owner = Owner(x=guarded(debugger, 4))
        check, clock = debugger.monitor.checks[ReboundInputs], debugger.monitor.context.clock
        graph = graph_over(lambda: owner.x * 2)
        check.bind(graph.model, owner, "x", owner.x)
        for step in range(1, 4):
            if seen:
                owner.x.copy_(values(1, 2, 3, step))
            else:
                owner.x.numpy()[:] = values(1, 2, 3, step).numpy()
            check.plan(owner, Planned(next(clock), {"x": values(1, 2, 3, step + 8).numpy().tobytes()}))
            graph.replay()
        debugger.check()
        assert [f.code for f in debugger.findings] == []


def test_on_a_device_a_kernel_that_may_have_refreshed_it_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """It wrote the same values again, as for an idle batch, and the plan was made from an upper bound of them."""
    from shadowgraph.demos.kernels import fill

    with played(monkeypatch) as debugger:
        owner = Owner(x=guarded(debugger, 4))
        check, clock = debugger.monitor.checks[ReboundInputs], debugger.monitor.context.clock
        graph = graph_over(lambda: owner.x * 2)
        check.bind(graph.model, owner, "x", owner.x)
        for _ in range(3):
            fill[(1,)](owner.x, 0, 4, 3, BLOCK=256)
            check.plan(owner, Planned(next(clock), {"x": values(8, 8, 8, 8).numpy().tobytes()}))
            graph.replay()
        assert silent(debugger)
        check.plan(owner, Planned(next(clock), {"x": values(8, 8, 8, 8).numpy().tobytes()}))
        graph.replay()
        assert [f.code for f in debugger.check()] == ["SG108"], "without one nobody refreshed it"


def test_on_a_device_a_replay_that_nobody_planned_for_is_not_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    with played(monkeypatch) as debugger:
        owner = Owner(x=guarded(debugger, 4))
        check, clock = debugger.monitor.checks[ReboundInputs], debugger.monitor.context.clock
        graph = graph_over(lambda: owner.x * 2)
        check.bind(graph.model, owner, "x", owner.x)
        for planned in (True, True, False, False):
            if planned:
                check.plan(owner, Planned(next(clock), {"x": values(5, 6, 7, 8).numpy().tobytes()}))
            graph.replay()
        debugger.check()
        assert only(debugger.findings).occurrences == 1, "the first look notes what is there"


def test_a_refresh_that_is_seen_in_part_only_is_silent() -> None:
    with sg.debug() as debugger:
        owner = Owner(x=guarded(debugger, 4))
        check, clock = debugger.monitor.checks[ReboundInputs], debugger.monitor.context.clock
        graph = graph_over(lambda: owner.x * 2)
        check.bind(graph.model, owner, "x", owner.x)
        for step in range(1, 4):
            owner.x[:2].fill_(step)
            poke(owner.x, 8, 8, step)
            check.plan(owner, Planned(next(clock), {"x": values(step, step, 77, 77).numpy().tobytes()}))
            graph.replay()
        assert silent(debugger)
