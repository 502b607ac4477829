"""Adapters reach a debugger by its adapter interface alone, and an adapter can be written from it."""

from __future__ import annotations

import ast
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import shadowgraph as sg
from shadowgraph import session
from shadowgraph.common.errors import FindingsError
from shadowgraph.common.internal_errors import internal_errors
from shadowgraph.graphs.events import Listener, listeners
from shadowgraph.graphs.lookup import model_of
from shadowgraph.model.findings import Batch
from shadowgraph.model.graphs import Graph
from shadowgraph.model.host_plans import HostPlan
from shadowgraph.monitor.subscriptions import Callbacks

PACKAGES = Path(sg.__file__).parent / "integrations"
SOURCES = sorted(path for name in ("flashinfer", "sglang", "vllm") for path in (PACKAGES / name).rglob("*.py"))
REACHES_THROUGH = {"monitor", "checks", "context", "flight_recorder", "_work", "ledger", "allocator"}
NEW = 32


def reached(source: str) -> set[str]:
    """Attributes of a source through which it would reach parts of the debugger, private ones of others included."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute):
            of_debugger = isinstance(node.value, ast.Name) and node.value.id in {"debugger", "adapter"}
            own_part = isinstance(node.value, ast.Attribute) and node.value.attr in {"adapter", "plans"}
            private = node.attr.startswith("_") and (of_debugger or own_part)
            if node.attr in REACHES_THROUGH or private:
                found.add(node.attr)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("shadowgraph.monitor"):
            found.add("monitor")
    return found


def test_sources_are_read() -> None:
    assert len(SOURCES) > 10
    assert reached("debugger.monitor.observation") == {"monitor"}
    assert reached("debugger._allocator.device") == {"_allocator"}
    assert reached("session.current().adapter._work") == {"_work"}
    assert reached("from shadowgraph.monitor.sampling import observation") == {"monitor"}


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_an_adapter_uses_the_interface_alone(path: Path) -> None:
    assert reached(path.read_text()) == set()


class Planner:
    """A package's object, whose plans fill the memory that a graph was captured with."""

    def __init__(self, table: torch.Tensor) -> None:
        self.table = table


class Adapter(Listener):
    """An adapter for `Planner`, written from the interface."""

    def __init__(self) -> None:
        self.capturing: Graph | None = None

    def capture_began(self, graph: Graph) -> None:
        self.capturing = graph

    def capture_ended(self, graph: Graph) -> None:
        self.capturing = None

    def run(self, planner: Planner) -> torch.Tensor:
        debugger = session.current()
        if debugger is not None and self.capturing is not None:
            if not debugger.adapter.is_named(planner.table, "table"):
                debugger.adapter.name("planner", planner)
            debugger.adapter.bind(self.capturing, planner, "table", planner.table)
        return planner.table * 2

    def plan(self, planner: Planner, given: torch.Tensor, act: Callable[[], None]) -> None:
        debugger = session.current()
        assert debugger is not None
        adapter, data = debugger.adapter, given.numpy().tobytes()
        plan = HostPlan("Planner", "decode", len(given), data, "int32", len(given), attribute="table")
        adapter.plans.note(plan)
        if adapter.plans.compares:
            adapter.plans.expect(planner, {"table": data})
        (graph,) = adapter.graphs_of(planner)
        block = adapter.prepare(graph)
        try:
            act()
        except RuntimeError as error:
            adapter.plans.failed(plan, error)
            raise
        finally:
            block.end()


@pytest.fixture
def adapter() -> Iterator[Adapter]:
    made = Adapter()
    yield made
    if made in listeners:
        listeners.remove(made)


def prepared(debugger: sg.Debugger, adapter: Adapter) -> tuple[Planner, sg.HostGraph]:
    """A planner whose memory a graph was captured with."""
    listeners.append(adapter)
    with debugger.guard():
        planner = Planner(torch.arange(8, dtype=torch.int32))
    graph = sg.HostGraph()
    with sg.host_graph(graph):
        planner.result = adapter.run(planner)  # type: ignore[attr-defined]
    return planner, graph


def ints(first: int) -> torch.Tensor:
    return torch.arange(first, first + 8, dtype=torch.int32)


def refresh(table: torch.Tensor, first: int) -> None:
    table.copy_(ints(first))


def counted(what: str) -> int:
    """Internal errors of one kind so far."""
    return sum(count for key, count in internal_errors.counts.items() if key.startswith(what))


def test_a_plan_that_reached_other_memory_is_named_and_a_fixed_one_is_silent(adapter: Adapter) -> None:
    batches: dict[int, Batch] = {2: Batch(8, 8, (), ("request",))}
    with sg.debug() as debugger:
        heard: list[str] = []
        end = debugger.adapter.subscribe_findings(lambda finding: heard.append(finding.code))
        debugger.adapter.provide_batches(lambda graph, replay: batches.get(replay))
        planner, graph = prepared(debugger, adapter)
        captured = planner.table
        adapter.plan(planner, ints(1), lambda: refresh(captured, 1))
        graph.replay()
        assert not debugger.check(), "the fixed twin"
        planner.table = torch.zeros(8, dtype=torch.int32)  # rebound
        adapter.plan(planner, ints(NEW), lambda: refresh(planner.table, NEW))
        graph.replay()
        (found,) = debugger.check()
        assert (found.code, found.replay, found.batch) == ("SG108", 2, batches[2])
        assert found.buffer.name == "captured", "the variable that leads there still"
        assert heard[0] == "SG108"
        end()
        before = len(heard)
        adapter.plan(planner, ints(2 * NEW), lambda: refresh(planner.table, 2 * NEW))
        graph.replay()
        debugger.check()
        assert len(heard) == before


def test_launches_of_a_block_prepare_the_announced_graph_in_their_thread_alone(adapter: Adapter) -> None:
    with sg.debug() as debugger:
        planner, graph = prepared(debugger, adapter)
        seen: list[object] = []

        def look() -> None:
            seen.append(debugger.adapter.preparing.graph)

        def act() -> None:
            look()
            thread = threading.Thread(target=look)
            thread.start()
            thread.join()

        adapter.plan(planner, ints(1), act)
        look()
        assert seen == [model_of(graph), None, None]
        assert not debugger.adapter.preparing.anywhere


def test_an_exception_is_joined_with_its_plan_whatever_a_batch_source_does(adapter: Adapter) -> None:
    def source(graph: Graph, replay: int) -> Batch:
        raise ValueError("internal")

    def act() -> None:
        raise RuntimeError("indptr[3] should be non-negative")

    with sg.debug() as debugger:
        told: list[Any] = []
        debugger.adapter.subscribe_failures(told.append)
        debugger.adapter.provide_batches(source)
        planner, graph = prepared(debugger, adapter)
        graph.replay()
        with pytest.raises(RuntimeError, match="non-negative"):
            adapter.plan(planner, ints(1), act)
        (failure,) = debugger.facts().failures
        assert told == [failure]
        assert (failure.kind, failure.plan.planner, failure.plan.failed, failure.batch) == (  # type: ignore[union-attr]
            "planner",
            "Planner",
            True,
            None,
        )
        assert counted("batch of a replay: ValueError") == 1
    internal_errors.clear()


def test_batch_sources_are_asked_latest_first_and_added_once() -> None:
    asked: list[str] = []

    def first(graph: Graph, replay: int) -> Batch:
        asked.append("first")
        return Batch(1, 1)

    def second(graph: Graph, replay: int) -> None:
        asked.append("second")

    with sg.debug() as debugger:
        for source in (first, second, first, second):
            debugger.adapter.provide_batches(source)
        assert debugger.monitor.batches.of(Graph(1, "graph#1"), 1) == Batch(1, 1)
    assert asked == ["second", "first"]


def test_padding_and_scratch_are_declared_as_by_users() -> None:
    with sg.debug() as debugger:
        with pytest.raises(sg.UnknownBufferError):
            debugger.adapter.padding("no tensor", "refresh")  # type: ignore[arg-type]
        with pytest.raises(sg.UsageError):
            debugger.adapter.padding(torch.zeros(4), "sometimes")
        with pytest.raises(sg.UnknownBufferError):
            debugger.adapter.name("number", 3)
        before = len(debugger.buffers)
        debugger.adapter.scratch(torch.zeros(4))
        assert len(debugger.buffers) == before, "untracked memory stays so"


def test_a_subscription_is_one_and_ends() -> None:
    heard: list[int] = []
    callbacks: Callbacks[[int]] = Callbacks("a test")
    assert not callbacks
    ends = [callbacks.subscribe(heard.append) for _ in range(2)]
    callbacks.call(1)
    callbacks.post(2)
    for end in ends:
        end()
    callbacks.call(3)
    assert heard == [1, 2]
    assert not callbacks


def test_errors_of_a_subscriber_are_counted_and_those_for_users_pass() -> None:
    heard: list[int] = []
    callbacks: Callbacks[[int]] = Callbacks("a test's subscriber")

    def failing(fact: int) -> None:
        raise ValueError(fact)

    def finding(fact: int) -> None:
        raise FindingsError("found")

    callbacks.subscribe(failing)
    callbacks.subscribe(heard.append)
    callbacks.call(1)
    assert counted("a test's subscriber: ValueError") == 1
    callbacks.subscribe(finding)
    with pytest.raises(FindingsError):
        callbacks.call(2)
    assert heard == [1, 2]
    internal_errors.clear()
