"""Check nodes compare declared buffers, and those that the host plans from, at every replay: first changes are told."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from helpers_cuda import capture, guarded, name_of, only, warm_kernels

import shadowgraph as sg
from shadowgraph.debugger import model_of
from shadowgraph.engines.base import NodeCheck, NodePart
from shadowgraph.engines.cupy_engine import CupyEngine
from shadowgraph.engines.graph_watches import CheckNode
from shadowgraph.graphs.cuda.driver import driver
from shadowgraph.model.check_log import UNDECIDED
from shadowgraph.model.ranges import ByteRange
from shadowgraph.monitor.sampling import observation
from shadowgraph.tracking import passing

pytestmark = pytest.mark.gpu
QUIET, LOOKS_APART, PERIOD = 8, (5000, 5000), 200_000
REPLAYS = 600


@pytest.fixture
def debugger(monkeypatch: pytest.MonkeyPatch) -> Iterator[sg.Debugger]:
    """A debugger that soon observes no launches, and looks closer at one replay in 5,000."""
    warm_kernels()
    for name, value in (("QUIET", QUIET), ("LOOKS_APART", LOOKS_APART), ("PERIOD", PERIOD)):
        monkeypatch.setattr(observation, name, value)
    with sg.debug(backend="cuda", watch_eager="sampled") as made:
        yield made


class Pointers:
    """Index pointers of the host's, and a graph that writes the sums of some lengths into them."""

    def __init__(self, debugger: sg.Debugger) -> None:
        self.lens, self.indptr = guarded(debugger, 4), guarded(debugger, 5)
        self.lens.fill_(4)
        self.indptr.copy_(torch.arange(0, 20, 4, dtype=torch.int32))
        self.graph, self.kept = capture(lambda: self.indptr[1:].copy_(self.lens.cumsum(0)))

    def plan(self) -> list[int]:
        planned: list[int] = self.indptr.tolist()
        return planned

    @property
    def replays(self) -> int:
        model = model_of(self.graph)
        assert model is not None
        return model.replays


def steady(step: Callable[[], object]) -> None:
    """Call until replays pass unobserved, and then `REPLAYS` times more."""
    for _ in range(20 * QUIET):
        step()
        if passing.on:
            break
    assert passing.on, "invalid: launches are observed still"
    for _ in range(REPLAYS):
        step()
    torch.cuda.synchronize()
    assert passing.on, "invalid: something was found"


def tables(debugger: sg.Debugger, graph: torch.cuda.CUDAGraph) -> list[int]:
    """Where the ranges begin that a graph's check nodes compare."""
    engine: Any = debugger.monitor.context.engine
    model = model_of(graph)
    assert model is not None
    assert model.check_nodes, "invalid: no check nodes"
    known = engine.shadows._tables.get(model.serial)
    return [part.where.start for part in known.parts] if known is not None else []


# -- declared ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("queued", [0, 8])
def test_the_replay_that_overwrites_a_declared_buffer_is_dated(debugger: sg.Debugger, queued: int) -> None:
    it = Pointers(debugger)
    debugger.protect(it.indptr)
    steady(it.graph.replay)
    assert tables(debugger, it.graph) == [it.indptr.data_ptr()]
    if queued:
        torch.cuda._sleep(50_000_000)
        it.graph.replay()
    it.lens.fill_(5)
    it.graph.replay()
    broken = it.replays
    for _ in range(queued):
        it.graph.replay()
    torch.cuda.synchronize()
    it.graph.replay()
    found = only(debugger.check())
    assert (found.code, found.phase, found.replay, found.graph) == ("SG102", "replay", broken, name_of(it.graph))
    assert (found.bytes.first, found.bytes.last, found.bytes.count) == (4, 16, 4)
    assert found.culprit.name == "aten.copy_.default", "the only node that was given the buffer to write"
    assert debugger.facts().faults == {}


def test_a_declared_buffer_that_gets_the_values_that_it_has_is_silent(debugger: sg.Debugger) -> None:
    it = Pointers(debugger)
    debugger.protect(it.indptr)
    lengths = iter(range(1, 100_000))

    def step() -> None:
        it.lens.fill_(next(lengths) % 17)
        it.indptr[1:] = it.lens.cumsum(0)  # planned from the lengths that the graph will write
        it.graph.replay()

    steady(step)
    assert debugger.check() == ()
    assert debugger.facts().faults == {}
    engine: Any = debugger.monitor.context.engine
    assert engine.dropped == 0


def test_one_overwrite_in_many_replays_is_enough(debugger: sg.Debugger) -> None:
    it = Pointers(debugger)
    debugger.protect(it.indptr)
    steady(it.graph.replay)
    original = it.indptr.clone()
    it.lens.fill_(7)
    it.graph.replay()
    broken = it.replays
    it.lens.fill_(4)
    it.indptr.copy_(original)
    for _ in range(50):
        it.graph.replay()
    found = only(debugger.check())
    assert (found.code, found.replay, found.occurrences) == ("SG102", broken, 1)


def test_replays_that_python_does_not_see_are_compared(debugger: sg.Debugger) -> None:
    it = Pointers(debugger)
    debugger.protect(it.indptr)
    steady(it.graph.replay)
    executable = int(torch._C._CUDAGraph.raw_cuda_graph_exec(it.graph))
    stream = torch.cuda.current_stream().cuda_stream
    for _ in range(10):
        driver().launch(executable, stream)
    it.lens.fill_(5)
    driver().launch(executable, stream)
    found = only(debugger.check())
    assert (found.code, found.replay) == ("SG102", it.replays + 11)


@pytest.mark.parametrize("freed", [False, True])
def test_a_buffer_that_ends_while_replays_are_queued_is_compared_no_more(debugger: sg.Debugger, freed: bool) -> None:
    from kernels_cuda import stray

    values, where = guarded(debugger, 64), guarded(debugger, 1, dtype=torch.int64)
    declared = guarded(debugger, 64)
    debugger.protect(declared)
    offset = (declared.data_ptr() - values.data_ptr()) // 4
    graph, _ = capture(lambda: stray[(1,)](values, where))
    steady(graph.replay)
    assert tables(debugger, graph) == [declared.data_ptr()]
    torch.cuda._sleep(50_000_000)
    for _ in range(20):
        graph.replay()
    if freed:
        del declared
        gc.collect()
    where.fill_(offset + 3)  # its bytes have no other owner yet
    graph.replay()
    model = model_of(graph)
    assert model is not None
    broken = model.replays
    where.zero_()
    for _ in range(5):
        graph.replay()
    findings = debugger.check()
    assert [(each.code, each.replay, each.bytes.first) for each in findings if each.bytes is not None] == (
        [] if freed else [("SG102", broken, 12)]
    )
    assert debugger.facts().faults == {}


def test_buffers_come_and_go_while_two_graphs_replay(debugger: sg.Debugger) -> None:
    """Each table is replaced many times under replays in flight."""
    first, second = Pointers(debugger), Pointers(debugger)
    for _ in range(200):
        made = guarded(debugger, 256)
        debugger.protect(made)
        for it in (first, second):
            it.graph.replay()
        del made
        for it in (first, second):
            it.graph.replay()
    assert debugger.check() == ()
    assert debugger.facts().faults == {}


# -- what the host plans from ----------------------------------------------------------------------------------------


def first_change(debugger: sg.Debugger, it: Pointers, step: Callable[[], None]) -> tuple[Any, int]:
    """The finding about pointers that a graph changes from the next step on, and the replay of that step."""
    it.lens.fill_(5)
    step()
    broken = it.replays
    for _ in range(4):
        step()
    return only([each for each in debugger.check() if each.code == "SG102"]), broken


def test_the_first_change_of_what_the_host_plans_from_is_dated(debugger: sg.Debugger) -> None:
    it = Pointers(debugger)

    def step() -> None:
        it.plan()
        it.graph.replay()

    steady(step)
    assert tables(debugger, it.graph) == [it.indptr.data_ptr()]
    found, broken = first_change(debugger, it, step)
    assert (found.phase, found.replay, found.graph) == ("replay", broken, name_of(it.graph))
    assert (found.bytes.first, found.bytes.last, found.reader.kind) == (4, 16, "host")
    assert found.culprit.name == "aten.copy_.default"


def test_a_host_that_restores_them_is_silent_and_soon_steady_again(debugger: sg.Debugger) -> None:
    it = Pointers(debugger)
    original = it.indptr.clone()

    def step() -> None:
        it.indptr.copy_(original)
        it.plan()
        it.graph.replay()

    steady(step)
    assert tables(debugger, it.graph) == [it.indptr.data_ptr()]
    it.lens.fill_(5)
    for _ in range(40 * QUIET):
        step()
    assert debugger.check() == ()
    assert passing.on
    assert debugger.monitor.observation.periods == 2, "observed once more"
    assert tables(debugger, it.graph) == [], "the graph changes it in each replay"


def test_each_graph_has_its_own(debugger: sg.Debugger) -> None:
    first, second = Pointers(debugger), Pointers(debugger)
    values = guarded(debugger, 64)
    third, _ = capture(lambda: values.add_(1))

    def step() -> None:
        for it in (first, second):
            it.plan()
            it.graph.replay()
        third.replay()

    steady(step)
    assert tables(debugger, first.graph) == [first.indptr.data_ptr()]
    assert tables(debugger, second.graph) == [second.indptr.data_ptr()]
    assert tables(debugger, third) == [], "a graph without such buffers has none"
    found, broken = first_change(debugger, second, step)
    assert (found.replay, found.graph) == (broken, name_of(second.graph))


# -- the kernels, without a graph ------------------------------------------------------------------------------------


class Nodes:
    """The head and the tail of a graph that does nothing, and ranges of some sizes in a room of their own."""

    def __init__(self, serial: int, *sizes: int) -> None:
        self.engine, self.serial, self.replays = CupyEngine(), serial, 0
        self.room = torch.arange(sum(sizes) + 64 * len(sizes) + 64, device="cuda").to(torch.uint8)
        self.parts, at = list[NodePart](), self.room.data_ptr() + 5  # ranges need no alignment
        for number, size in enumerate(sizes):
            self.parts.append(NodePart(number, ByteRange(at, at + size), number))
            at += size + 51
        pair = self.engine.watches.begin(serial)
        assert pair is not None
        self.head, self.tail = pair

    def list(self) -> None:
        self.engine.list_shadows(self.serial, self.parts)
        torch.cuda.synchronize()

    def launch(self, node: CheckNode) -> None:
        kept: Any = node.kept
        kept.launch(node.blocks, node.threads, torch.cuda.current_stream().cuda_stream)

    def change(self, number: int, *offsets: int) -> None:
        for offset in offsets:
            self.room[self.parts[number].where.start - self.room.data_ptr() + offset] ^= 255

    def replay(self, body: Callable[[], object] = lambda: None) -> list[Any]:
        self.replays += 1
        self.launch(self.head)
        body()
        self.launch(self.tail)
        return self.engine.poll(wait=True)


SIZES = 1, 15, 16, 4096, 4097, 64 << 10


@pytest.mark.parametrize("number", range(len(SIZES)))
def test_each_byte_of_a_range_is_compared(number: int) -> None:
    nodes, size = Nodes(1, *SIZES), SIZES[number]
    for offset in (0, size // 2, size - 1):
        nodes.list()
        assert nodes.replay() == []
        (result,) = nodes.replay(lambda at=offset: nodes.change(number, at))  # type: ignore[misc]
        assert result.tag == NodeCheck(1, nodes.replays, True)
        (evidence,) = result.evidence
        where = nodes.parts[number].where
        assert (evidence.subject, evidence.first, evidence.last, evidence.count) == (
            *(number, where.start + offset),
            *(where.start + offset, 1),
        )
        at = evidence.first - evidence.window
        assert evidence.expected[at] ^ evidence.found[at] == 255
    assert nodes.engine.dropped == 0
    assert nodes.engine.watches.counts()[1] == (6, 6)


def test_what_changes_between_replays_is_no_change() -> None:
    nodes = Nodes(2, *SIZES)
    nodes.list()
    for number in range(len(SIZES)):
        assert nodes.replay() == []
        nodes.change(number, 0)
    assert nodes.replay() == []


def test_several_ranges_and_their_extents() -> None:
    nodes = Nodes(3, *[64 << 10] * 16)
    nodes.list()
    assert nodes.replay() == []
    results = nodes.replay(lambda: (nodes.change(2, 7, 60_000), nodes.change(15, 65_535)))
    found = {each.subject: each for result in results for each in result.evidence}
    assert sorted(found) == [2, 15]
    start = nodes.parts[2].where.start
    assert (found[2].first, found[2].last, found[2].count) == (start + 7, start + 60_000, 2)


def test_a_changed_range_is_reported_once_until_it_is_listed_again() -> None:
    nodes = Nodes(4, 5000, 5000)
    nodes.list()
    assert len(nodes.replay(lambda: nodes.change(0, 9))) == 1
    assert nodes.replay(lambda: nodes.change(0, 10)) == []
    assert len(nodes.replay(lambda: nodes.change(1, 10))) == 1
    nodes.list()
    assert len(nodes.replay(lambda: nodes.change(0, 11))) == 1


@pytest.mark.parametrize("undecided", [False, True])
def test_a_change_that_may_be_legal_is_no_damage_in_the_log(undecided: bool) -> None:
    nodes = Nodes(5, 100)
    nodes.parts = [part._replace(undecided=undecided) for part in nodes.parts]
    nodes.list()
    nodes.replay()
    assert len(nodes.replay(lambda: nodes.change(0, 9))) == 1
    log = nodes.engine._memory.log
    place = log.claim(5)
    assert int(log.rows["damaged"][place]) == (0 if undecided else 2 << 1 | 1)
    assert int(log.records["is_part"][0]) == (UNDECIDED if undecided else 1)


def test_a_withdrawn_buffer_is_compared_no_more() -> None:
    nodes = Nodes(6, 5000, 5000)
    nodes.list()

    def body() -> None:
        nodes.engine.withdraw_shadows(0)
        nodes.change(0, 9, 4999)

    assert nodes.replay(body) == []
    assert nodes.replay(lambda: nodes.change(0, 9)) == []
    assert len(nodes.replay(lambda: nodes.change(1, 9))) == 1


def test_another_table_says_nothing_of_the_replay_that_runs() -> None:
    nodes = Nodes(7, 5000, 5000)
    wanted, nodes.parts = nodes.parts, nodes.parts[:1]
    nodes.list()
    assert nodes.replay() == []

    def body() -> None:
        nodes.parts = wanted
        nodes.list()
        nodes.change(0, 9)

    assert nodes.replay(body) == []
    assert len(nodes.replay(lambda: nodes.change(1, 9))) == 1
    nodes.engine.clear_shadows()
    torch.cuda.synchronize()
    assert nodes.replay(lambda: nodes.change(1, 10)) == []


def test_paused_nodes_compare_nothing() -> None:
    nodes = Nodes(8, 5000)
    nodes.list()
    nodes.engine.pause(True)
    assert nodes.replay(lambda: nodes.change(0, 9)) == []

    def body() -> None:
        nodes.engine.pause(False)
        nodes.change(0, 9)

    assert nodes.replay(body) == [], "the head of this replay has copied nothing"
    assert len(nodes.replay(lambda: nodes.change(0, 9))) == 1


def test_a_graph_without_ranges_has_none() -> None:
    nodes = Nodes(9, 100)
    assert nodes.replay(lambda: nodes.change(0, 9)) == []
    nodes.parts = []
    nodes.list()
    assert nodes.replay() == []
    assert nodes.engine.shadows._tables == {}
