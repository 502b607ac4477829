"""Buffers that are declared, or that the host plans from, are compared at every replay: the first one that changes them
after a long quiet time is dated, and its launch named."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence

import pytest
import torch
from programs import only, poke
from steady_state import PERIOD, sampled

import shadowgraph as sg
from shadowgraph.checks.mutation.check import InGraphMutation
from shadowgraph.demos.a1_indptr import TOKENS, Backend
from shadowgraph.demos.device import Buffers, HostDevice
from shadowgraph.engines.base import NodePart
from shadowgraph.engines.numpy_engine import NumpyEngine
from shadowgraph.model.graphs import Graph
from shadowgraph.monitor import node_shadows
from shadowgraph.tracking import passing, steps

MANY = 1000
LONG = [MANY, pytest.param(10 * MANY, marks=pytest.mark.slow)]


@pytest.fixture
def debugger(monkeypatch: pytest.MonkeyPatch) -> Iterator[sg.Debugger]:
    """One that is soon steady, and looks closer at few replays."""
    with sampled(monkeypatch, (100, 200), 4000) as made:
        yield made


class Server:
    """A backend whose graph rewrites the index pointers that host code plans from, with lengths that it is given."""

    def __init__(self, debugger: sg.Debugger, fixed: bool) -> None:
        self.device, self.fixed = HostDevice(), fixed
        with debugger.guard():
            self.backend = Backend(self.device, Buffers(self.device.device, 0))
        debugger.name("attn", self.backend)
        self.graph = self.backend.graphs[4]
        with self.device.capture(self.graph):
            self.kept = self.backend.forward(4)
        self.indptr = self.backend.metadata["flashinfer_kv_indptr"]

    def step(self, length: int = TOKENS) -> None:
        self.backend.lens.fill_(length)
        if self.fixed:
            self.indptr.copy_(torch.arange(len(self.indptr)) * length)  # what the graph will write
        self.backend.plan(4)
        self.graph.replay()


@pytest.mark.parametrize("quiet", LONG)
@pytest.mark.parametrize("fixed", [False, True])
@pytest.mark.parametrize("declared", [True, False])
def test_index_pointers_that_a_replay_overwrites_first_after_long(
    debugger: sg.Debugger, declared: bool, fixed: bool, quiet: int
) -> None:
    server = Server(debugger, fixed)
    if declared:
        debugger.protect(server.indptr)
    for _ in range(quiet):
        server.step()
    assert passing.on, "invalid: launches are observed still"
    for _ in range(4):
        server.step(TOKENS - 11)
    found = [each for each in debugger.check() if each.code == "SG102"]
    if fixed:
        assert found == []
        return
    first = only(found)
    assert (first.phase, first.graph, first.replay) == ("replay", server.graph.model.name, quiet + 1)
    assert first.buffer.name == 'attn.metadata["flashinfer_kv_indptr"]'
    assert (first.bytes.first, first.bytes.last) == (4, 32)
    assert (first.culprit.name, first.reader is None) == ("aten.copy_.default", declared)


@pytest.mark.parametrize("declared", [True, False])
def test_lengths_that_go_on_changing_are_dated_to_the_first_change(debugger: sg.Debugger, declared: bool) -> None:
    server = Server(debugger, False)
    if declared:
        debugger.protect(server.indptr)
    for _ in range(MANY):
        server.step()
    assert passing.on
    for length in range(2, 12):
        server.step(length)
    first = only([each for each in debugger.check() if each.code == "SG102"])
    assert (first.replay, first.culprit.name) == (MANY + 1, "aten.copy_.default")


def test_one_overwrite_of_declared_bytes_is_enough(debugger: sg.Debugger) -> None:
    """The host puts back what the replay has overwritten: no later replay changes it, and no read shows it."""
    server = Server(debugger, False)
    debugger.protect(server.indptr)
    original = server.indptr.clone()
    for _ in range(MANY):
        server.step()
    server.step(3)
    server.backend.lens.fill_(TOKENS)
    server.indptr.copy_(original)
    for _ in range(40):
        server.graph.replay()
    first = only(debugger.check())
    assert (first.code, first.replay, first.occurrences) == ("SG102", MANY + 1, 1)


def test_what_the_graph_changes_at_each_replay_costs_nothing_in_the_steady_state(debugger: sg.Debugger) -> None:
    """The public fix: the host restores the pointers from a copy before it plans; the graph writes others each time."""
    server = Server(debugger, False)
    original = server.indptr.clone()
    for length in range(2000):
        server.indptr.copy_(original)
        server.step(1 + length % 13)
    assert passing.on
    assert debugger.check() == ()
    assert listed(debugger, server.graph) == []
    assert debugger.monitor.observation.periods == 1, "observed once, at first"


def test_a_first_change_that_is_legal_ends_the_steady_state_once(debugger: sg.Debugger) -> None:
    server = Server(debugger, False)
    original = server.indptr.clone()
    seen = []
    for at in range(2000):
        server.indptr.copy_(original)
        server.step(TOKENS if at < 500 else 3)
        seen.append(passing.on)
    assert debugger.check() == ()
    assert seen[499]
    assert not any(seen[502:506])
    assert seen[-1]
    assert debugger.monitor.observation.periods == 2
    assert any("changed for the first time in a replay that passed" in line for line in debugger.facts().limits)


def test_a_legal_first_change_does_not_date_a_later_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    """The host restores what the graph changes, until it forgets to: that is not as of the first change."""
    with sampled(monkeypatch, (100, 200), 40) as debugger:
        server = Server(debugger, False)
        original = server.indptr.clone()
        for at in range(1000):
            if at < 900:
                server.indptr.copy_(original)
            server.step(TOKENS if at < 300 else 2 + at % 7)
        first = only([each for each in debugger.check() if each.code == "SG102"])
        assert first.replay > 900


@pytest.mark.parametrize("forgets", [304, 340])
def test_nor_does_it_soon_after(debugger: sg.Debugger, forgets: int) -> None:
    """In the observation that begins with the first change: the host was seen to restore it."""
    server = Server(debugger, False)
    original = server.indptr.clone()
    for at in range(forgets + 10):
        if at < forgets:
            server.indptr.copy_(original)
        server.step(TOKENS if at < 300 else 2 + at % 7)
        if passing.on and at > 302:
            debugger.monitor.observation.observe_all()
    first = only([each for each in debugger.check() if each.code == "SG102"])
    assert first.replay >= forgets


@pytest.mark.parametrize("overwrites", [False, True])
def test_a_host_that_writes_the_same_values_unseen_plans_from_its_own(debugger: sg.Debugger, overwrites: bool) -> None:
    """After the first change. Only what a replay overwrites once more, while the host is observed, is the graph's."""
    server = Server(debugger, False)
    own = torch.arange(len(server.indptr), dtype=server.indptr.dtype)
    server.indptr.copy_(own * TOKENS)
    for _ in range(MANY):
        server.step()
    assert passing.on
    server.backend.lens.fill_(3)
    server.graph.replay()
    server.indptr.copy_(own * 3)
    idle = sg.HostGraph()
    with sg.host_graph(idle):
        server.backend.lens.clone()
    while passing.on:
        idle.replay()
    server.backend.plan(4)
    assert debugger.check() == ()
    if overwrites:
        server.graph.replay()
        server.backend.plan(4)
        assert only(debugger.check()).replay == MANY + 1


def test_where_nothing_can_be_listed_declared_bytes_are_compared_by_launches(
    debugger: sg.Debugger, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(engine: NumpyEngine, graph: int, parts: Sequence[NodePart]) -> None:
        if parts:
            raise MemoryError("tables of check nodes")

    monkeypatch.setattr(NumpyEngine, "list_shadows", full)
    declared, switch = table(debugger, 64), [False]
    debugger.protect(declared)
    graph = sg.HostGraph()
    with sg.host_graph(graph):
        graph.call(lambda: poke(declared, 8, 4) if switch[0] else None, writes=(declared,))
    for _ in range(100):
        graph.replay()
    assert debugger.monitor.observation.unobserved
    assert not passing.on, "each replay is looked at more closely"
    switch[0] = True
    graph.replay()
    found = only(debugger.check())
    assert (found.code, found.replay) == ("SG102", 101)
    assert debugger.facts().faults == {}
    assert any("256 bytes of 1 declared range" in line for line in debugger.facts().limits)


def test_a_change_whose_record_was_lost_is_reported_in_the_next_period(
    debugger: sg.Debugger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A record in a full ring may be replaced before it is read; a range that was reported is silent until it is listed
    again."""
    engine, withdrawn = debugger.monitor.context.engine, list[int]()
    assert isinstance(engine, NumpyEngine)
    show = engine.list_shadows

    def noted(graph: int, parts: Sequence[NodePart]) -> None:
        withdrawn.extend([graph] if not parts else [])
        show(graph, parts)

    monkeypatch.setattr(engine, "list_shadows", noted)
    declared = table(debugger, 64)
    debugger.protect(declared)
    graph = sg.HostGraph()
    with sg.host_graph(graph):
        graph.call(lambda: None, writes=(declared,))
    until_passing(graph)
    assert withdrawn == []
    engine.dropped += 3
    debugger.monitor.observation.observe_all()
    until_passing(graph)
    assert withdrawn == [graph.model.serial]
    assert listed(debugger, graph) != []
    debugger.monitor.observation.observe_all()
    until_passing(graph)
    assert withdrawn == [graph.model.serial]


# -- which bytes are listed ----------------------------------------------------------------------------------------


def listed(debugger: sg.Debugger, graph: sg.HostGraph) -> list[NodePart]:
    engine = debugger.monitor.context.engine
    assert isinstance(engine, NumpyEngine)
    known = engine._of_graphs.get(graph.model.serial)
    return list(known.parts) if known is not None else []


def table(debugger: sg.Debugger, count: int, value: int = 0) -> torch.Tensor:
    with debugger.guard():
        return torch.full((count,), value, dtype=torch.int32)


def until_passing(graph: sg.HostGraph, before: Callable[[], object] = lambda: None) -> None:
    for _ in range(200):
        before()
        graph.replay()
        if passing.on:
            return
    raise AssertionError("invalid: launches are observed still")


def test_graphs_without_such_buffers_have_none(debugger: sg.Debugger) -> None:
    values, other = table(debugger, 64), table(debugger, 64)
    graph = sg.HostGraph()
    with sg.host_graph(graph):
        values.add_(other)
    until_passing(graph)
    assert listed(debugger, graph) == []


def test_each_graph_has_its_own(debugger: sg.Debugger) -> None:
    first, second = table(debugger, 64), table(debugger, 32)
    first.copy_(torch.arange(64))
    second.copy_(torch.arange(32))
    graphs = []
    for values in (first, second):
        graphs.append(sg.HostGraph())
        with sg.host_graph(graphs[-1]):
            values.mul_(1)
    for _ in range(40):
        for graph, values in zip(graphs, (first, second), strict=True):
            values.tolist()
            graph.replay()
    assert passing.on
    assert [[part.where.start for part in listed(debugger, graph)] for graph in graphs] == [
        [first.data_ptr()],
        [second.data_ptr()],
    ]


def test_large_declared_buffers_are_looked_at_in_each_replay(
    debugger: sg.Debugger, monkeypatch: pytest.MonkeyPatch
) -> None:
    large, where = table(debugger, 1 << 15), table(debugger, 1, 5)
    debugger.protect(large)
    graph = sg.HostGraph()
    with sg.host_graph(graph):
        large[-1:].copy_(where * 0)
        where.mul_(1)
    for _ in range(40):
        graph.replay()
    assert not passing.on
    (part,) = listed(debugger, graph)
    assert part.where.nbytes == node_shadows.LARGEST
    (line,) = [each for each in debugger.facts().limits if "check nodes" in each]
    assert line == (
        "check nodes read the first 64 KiB of guarded buffers, and 1 MiB for each graph; not 65,536 bytes of "
        "1 declared range, for which every replay is looked at more closely"
    )


def test_of_large_buffers_that_the_host_plans_from_the_beginning_is_compared(debugger: sg.Debugger) -> None:
    large = table(debugger, 1 << 15)
    large.copy_(torch.arange(1 << 15))
    graph = sg.HostGraph()
    with sg.host_graph(graph):
        large.mul_(1)
    until_passing(graph, lambda: large[:8].tolist())
    assert [part.where.nbytes for part in listed(debugger, graph)] == [node_shadows.LARGEST]
    (line,) = [each for each in debugger.facts().limits if "check nodes" in each]
    assert line.endswith(
        "not 65,536 bytes of 1 buffer that the host plans from, which are compared while launches are observed"
    )


def test_two_declarations_of_one_buffer_share_its_room(debugger: sg.Debugger) -> None:
    large, values = table(debugger, 1 << 15), table(debugger, 8)
    debugger.protect(large[: 3 << 12])
    debugger.protect(large[3 << 12 :])
    graph = sg.HostGraph()
    with sg.host_graph(graph):
        values.add_(1)
    graph.replay()
    assert [part.where.nbytes for part in listed(debugger, graph)] == [3 << 14, 1 << 14]


def test_memory_of_other_allocators_is_not_listed(debugger: sg.Debugger) -> None:
    foreign, values = torch.arange(8), table(debugger, 8)
    debugger.protect(foreign)
    graph = sg.HostGraph()
    with sg.host_graph(graph):
        values.add_(1)
        foreign.mul_(1)
    for _ in range(40):
        graph.replay()
    assert listed(debugger, graph) == []
    assert not passing.on, "each replay is looked at, as no node may read that memory"


def test_room_for_one_graph_is_bounded(debugger: sg.Debugger) -> None:
    tables = [table(debugger, 1 << 14, at) for at in range(20)]
    for each in tables:
        debugger.protect(each)
    graph = sg.HostGraph()
    with sg.host_graph(graph):
        tables[0].mul_(1)
    for _ in range(40):
        graph.replay()
    parts = listed(debugger, graph)
    assert sum(part.where.nbytes for part in parts) == node_shadows.MOST == 16 * parts[0].where.nbytes


def test_a_buffer_that_ends_is_not_compared_any_more(debugger: sg.Debugger) -> None:
    declared, values = table(debugger, 64), table(debugger, 8)
    address = declared.data_ptr()
    debugger.protect(declared)
    graph = sg.HostGraph()
    with sg.host_graph(graph):
        values.add_(1)
    writes: list[torch.Tensor] = []
    graph_of_writer = sg.HostGraph()
    with sg.host_graph(graph_of_writer):
        values.mul_(1)
        graph_of_writer.call(lambda: [each.add_(1) for each in writes], writes=(values,))
    for _ in range(20):
        graph.replay()
        graph_of_writer.replay()
    assert passing.on
    del declared
    writes.append(table(debugger, 64))
    assert writes[0].data_ptr() == address, "invalid: its memory has no other owner"
    for _ in range(10):
        graph_of_writer.replay()
    assert debugger.check() == ()


def test_a_buffer_that_ends_while_ranges_are_chosen_is_not_listed(
    debugger: sg.Debugger, monkeypatch: pytest.MonkeyPatch
) -> None:
    held, values = [table(debugger, 64)], table(debugger, 8)
    debugger.protect(held[0])
    graph = sg.HostGraph()
    with sg.host_graph(graph):
        values.add_(1)
    mutation = debugger.monitor.checks[InGraphMutation]
    node_parts = mutation.node_parts

    def ends_meanwhile(model: Graph) -> list[NodePart]:
        found = list(node_parts(model))
        ends = threading.Thread(target=held.clear)  # the thread that replays holds the debugger's lock
        ends.start()
        ends.join(30)
        return found

    monkeypatch.setattr(mutation, "node_parts", ends_meanwhile)
    graph.replay()
    assert held == []
    assert listed(debugger, graph) == []
    assert debugger.facts().faults == {}


def test_nothing_is_listed_for_the_next_debugger(monkeypatch: pytest.MonkeyPatch) -> None:
    with sampled(monkeypatch, (100, 200), 4000) as debugger:
        values = table(debugger, 64)
        debugger.protect(values)
        graph = sg.HostGraph()
        with sg.host_graph(graph):
            values.mul_(1)
        until_passing(graph)
        assert listed(debugger, graph)
        debugger.stop()
        debugger.start()
        assert listed(debugger, graph) == []
        graph.replay()
        assert listed(debugger, graph)
        graph.reset()
        assert listed(debugger, graph) == []


def test_paused_replays_are_not_compared(debugger: sg.Debugger) -> None:
    server = Server(debugger, False)
    debugger.protect(server.indptr)
    for _ in range(100):
        server.step()
    assert passing.on
    debugger.pause()
    server.step(3)
    debugger.resume()
    for _ in range(PERIOD):
        server.graph.replay()
    assert debugger.check() == ()


def test_pieces_of_a_step_are_looked_at_where_something_is_declared(debugger: sg.Debugger) -> None:
    """Nodes of most pieces are disabled, so that they compare nothing."""
    declared, values, switch = table(debugger, 64), table(debugger, 8), [False]
    debugger.protect(declared)
    pieces = []
    for place in range(8):
        pieces.append(sg.HostGraph())
        with sg.host_graph(pieces[-1]):
            values.add_(1)
            if place == 4:
                pieces[-1].call(lambda: poke(declared, 8, 4) if switch[0] else None, writes=(declared,))
    for _ in range(60):
        for piece in pieces:
            piece.replay()
    assert steps.in_order(pieces[4].model)
    assert not passing.on
    switch[0] = True
    for piece in pieces:
        piece.replay()
    found = only(debugger.check())
    assert (found.code, found.graph, found.replay) == ("SG102", pieces[4].model.name, 61)
