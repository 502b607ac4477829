"""Graphs in pieces on a device: check nodes are disabled and enabled on executable graphs, counts go on, steps are
dated."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from helpers_cuda import capture, guarded, only, warm_kernels

import shadowgraph as sg
from shadowgraph.debugger import model_of
from shadowgraph.graphs.cuda.driver import driver
from shadowgraph.model.findings import Finding
from shadowgraph.model.graphs import Graph
from shadowgraph.monitor.sampling import observation
from shadowgraph.tracking import passing, steps
from shadowgraph.tracking.step_order import Order

pytestmark = pytest.mark.gpu
PIECES, QUIET, LOOKS_APART, PERIOD = 12, 36, (50_000, 50_000), 2_000_000


@pytest.fixture
def debugger(monkeypatch: pytest.MonkeyPatch) -> Iterator[sg.Debugger]:
    """A debugger that soon observes no launches, and looks closer at no replay unless something was found."""
    warm_kernels()
    for name, value in (("QUIET", QUIET), ("LOOKS_APART", LOOKS_APART), ("PERIOD", PERIOD), ("LONGEST", 1)):
        monkeypatch.setattr(observation, name, value)
    with sg.debug(backend="cuda", watch_eager="sampled") as made:
        yield made


class Model:
    """A model in pieces in one pool, with eager code between them. Each piece writes at an index that the host sets."""

    def __init__(self, debugger: Any, count: int = PIECES) -> None:
        self.table, self.eager = guarded(debugger, 64), guarded(debugger, 64)
        self.where = [guarded(debugger, 1, dtype=torch.int64) for _ in range(count)]
        self.pool, self.stream = torch.cuda.graph_pool_handle(), torch.cuda.Stream()
        self.step = 0
        self.over: Callable[[int, int], bool] = lambda place, step: False  # whether code behind a piece overruns
        self.pieces = [self._piece(where) for where in self.where]

    def _piece(self, where: torch.Tensor) -> torch.cuda.CUDAGraph:
        from kernels_cuda import stray

        graph, _ = capture(lambda: stray[(1,)](self.table, where), pool=self.pool, stream=self.stream)
        return graph

    @property
    def models(self) -> list[Graph]:
        found = [model_of(piece) for piece in self.pieces]
        return [model for model in found if model is not None]

    def plant(self, place: int, on: bool = True) -> None:
        """Have a piece, counted from 1, write right behind the table."""
        self.where[place - 1].fill_(64 if on else 0)

    def run(self, count: int = 1, until: int | None = None) -> None:
        from kernels_cuda import put

        for _ in range(count):
            self.step += 1
            for place, piece in enumerate(self.pieces[:until], 1):
                piece.replay()
                put[(1,)](self.eager, 0, 65 if self.over(place, self.step) else 64, BLOCK=1024)

    def enabled(self) -> list[int]:
        """The pieces whose nodes the driver has enabled, both or none."""
        found = []
        for place, (piece, model) in enumerate(zip(self.pieces, self.models, strict=True), 1):
            executable = int(torch._C._CUDAGraph.raw_cuda_graph_exec(piece))
            states = {driver().is_enabled(executable, node) for node in model.check_nodes}
            assert len(states) == 1
            if states == {True}:
                found.append(place)
        return found

    def until_quiet(self) -> None:
        self.run(2 * QUIET)
        torch.cuda.synchronize()
        assert passing.on, "invalid: launches are observed still"
        assert self.enabled() == [1, len(self.pieces)], "invalid: the order is not known"


def placed(found: Finding) -> tuple[str, int, int, int]:
    assert found.step is not None
    return str(found.phase), found.step.number, found.step.since, found.step.until


def counts(debugger: sg.Debugger, model: Model) -> list[tuple[int, int]]:
    torch.cuda.synchronize()
    engine: Any = debugger.monitor.context.engine
    known = engine.watches.counts()
    return [known[each.serial] for each in model.models]


def test_nodes_of_middle_pieces_are_disabled_and_first_and_last_count_on(debugger: sg.Debugger) -> None:
    model = Model(debugger)
    model.until_quiet()
    before = counts(debugger, model)
    model.run(100)
    after = counts(debugger, model)
    assert [b - a for (a, _), (b, _) in zip(before, after, strict=True)] == [100, *[0] * (PIECES - 2), 100]
    assert after[0] == after[-1] == (model.step, model.step)
    assert debugger.check() == ()
    assert debugger.facts().faults == {}
    assert steps.unchecked() > 100 * (PIECES - 2)


def test_a_fault_is_dated_to_the_step_then_to_its_piece(debugger: sg.Debugger) -> None:
    model = Model(debugger)
    model.until_quiet()
    model.run(200)
    model.plant(7)
    model.run()
    broken = model.step
    torch.cuda.synchronize()
    model.run()
    found = only(debugger.findings)
    assert placed(found) == ("step", broken, 2, 11)
    assert (found.code, found.past_end) == ("SG101", 4)
    for _ in range(6):
        model.run()
        torch.cuda.synchronize()
    found = only(debugger.check())
    assert placed(found) == ("replay", broken, 7, 7)
    assert (found.graph, found.replay) == (model.models[6].name, broken)
    assert found.culprit.name == "stray"
    assert debugger.facts().faults == {}
    first, *_, last = counts(debugger, model)
    assert first == last == (model.step, model.step)
    assert counts(debugger, model)[6] == (model.step, model.step), "what was not counted was added"


def test_a_fault_of_one_step_with_others_queued_behind_it(debugger: sg.Debugger) -> None:
    model = Model(debugger)
    model.until_quiet()
    torch.cuda._sleep(50_000_000)
    model.run(3)
    model.plant(7)
    model.run()
    broken = model.step
    model.plant(7, False)
    model.run(3)
    found = only(debugger.check())
    assert placed(found) == ("step", broken, 2, 11)


def test_code_between_two_pieces(debugger: sg.Debugger) -> None:
    model = Model(debugger)
    model.until_quiet()
    broken = model.step + 5
    model.over = lambda place, step: place == 3 and step >= broken
    model.run(6)
    torch.cuda.synchronize()
    for _ in range(8):
        model.run()
        torch.cuda.synchronize()
    found = only(debugger.check())
    assert placed(found) == ("between", broken, 3, 4)
    assert found.culprit.name == "put"


@pytest.mark.parametrize("place", [1, PIECES])
def test_the_first_and_the_last_piece(debugger: sg.Debugger, place: int) -> None:
    model = Model(debugger)
    model.until_quiet()
    model.plant(place)
    model.run()
    model.plant(place, False)
    found = only(debugger.check())
    assert placed(found) == ("replay", model.step, place, place)
    assert found.replay == model.step


def test_what_prepares_a_step(debugger: sg.Debugger) -> None:
    from kernels_cuda import put

    model = Model(debugger)
    model.until_quiet()
    put[(1,)](model.table, 64, 1, BLOCK=1024)
    model.run()
    assert placed(only(debugger.check())) == ("prepare", model.step, 1, 1)


def test_a_step_that_is_given_up(debugger: sg.Debugger) -> None:
    model = Model(debugger)
    model.until_quiet()
    model.plant(3)
    model.run(1, until=5)
    model.plant(3, False)
    broken = model.step
    model.run(1)
    assert model.enabled() == list(range(1, PIECES + 1))
    model.run(5)
    assert placed(only(debugger.check())) == ("step", broken, 2, 5)
    assert debugger.facts().faults == {}


def test_a_thread_that_captures_meanwhile_loses_no_capture(
    debugger: sg.Debugger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nodes are switched in the thread that replays, in the relaxed mode, while another one captures."""

    def begin(order: Order, observed: bool) -> bool:
        order.thin = not order.thin
        for piece in order.pieces[1:-1]:
            piece.wanted = not order.thin
        return False

    model = Model(debugger)
    model.run(3)
    monkeypatch.setattr(Order, "begin", begin)
    errors: list[BaseException] = []
    over = threading.Event()

    def captures() -> None:
        try:
            torch.cuda.set_stream(torch.cuda.Stream())
            table = torch.zeros(64, device="cuda")
            while not over.is_set():
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                    for _ in range(50):
                        table.add_(1)
                graph.replay()
                torch.cuda.current_stream().synchronize()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=captures)
    thread.start()
    try:
        seen = [len(model.enabled()) for _ in range(4 * QUIET) if model.run() is None]
    finally:
        over.set()
        thread.join()
    torch.cuda.synchronize()
    assert errors == []
    assert set(seen) == {2, PIECES}, "in turns"
    assert debugger.check() == ()
    assert debugger.facts().faults == {}


def test_a_piece_whose_executable_graph_the_program_holds(debugger: sg.Debugger) -> None:
    model = Model(debugger)
    model.until_quiet()
    torch.cuda.CUDAGraph.raw_cuda_graph_exec(model.pieces[5])  # through the class that is watched
    assert 6 in model.enabled(), "it may be launched without Python"
    model.run(8)
    assert model.enabled() == [1, 5, 6, 7, 12], "in no step; those before and behind it are in two"
    assert any("in no step" in line for line in debugger.facts().limits)
    assert counts(debugger, model)[5] == (model.step, model.step)
    assert debugger.check() == ()


def test_write_sets_of_a_piece_that_is_not_checked(debugger: sg.Debugger) -> None:
    """A probed replay instantiates the graph anew, with its nodes enabled."""
    model = Model(debugger)
    model.until_quiet()
    location = debugger.locate(model.pieces[4])
    debugger.monitor.observation.observe_all()
    model.run()
    assert location.outcomes[model.models[4].name].refused is None
    assert counts(debugger, model)[4] == (model.step, model.step), "the probed replay was counted, and those before it"
    model.run(2 * QUIET)
    torch.cuda.synchronize()
    assert model.enabled() == [1, PIECES]
    model.plant(5)
    model.run()
    model.plant(5, False)
    assert placed(only(debugger.check())) == ("step", model.step, 2, 11)
    assert debugger.facts().faults == {}


def test_graphs_of_a_debugger_before_are_checked_again() -> None:
    warm_kernels()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (("QUIET", QUIET), ("LOOKS_APART", LOOKS_APART), ("PERIOD", PERIOD), ("LONGEST", 1)):
            patch.setattr(observation, name, value)
        with sg.debug(backend="cuda", watch_eager="sampled") as first:
            model = Model(first)
            model.until_quiet()
    model.run(3)
    with sg.debug(backend="cuda", watch_eager="sampled") as second:
        model.run()
        assert model.enabled() == list(range(1, PIECES + 1))
        model.plant(7)
        model.run()
        model.plant(7, False)
        found = only(second.check())
        assert (str(found.phase), found.graph) == ("replay", model.models[6].name)
        assert found.replay == model.models[6].replays


def test_what_a_disabled_node_costs(debugger: sg.Debugger, record_property: Callable[[str, object], None]) -> None:
    """The device's time of a step in which only the first and the last piece are checked, against all."""
    model = Model(debugger, 40)
    model.until_quiet()

    def timed() -> float:
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda._sleep(20_000_000)  # the host is ahead
        begin.record()
        for piece in model.pieces:
            piece.replay()
        end.record()
        torch.cuda.synchronize()
        return float(begin.elapsed_time(end)) * 1000

    thin = sorted(timed() for _ in range(21))[10]
    steps.damaged(model.models[0])
    model.run(3)
    assert len(model.enabled()) == 40, "precondition"
    full = sorted(timed() for _ in range(21))[10]
    record_property("step_us", {"first and last": round(thin, 1), "all": round(full, 1)})
    print(f"a step of 40 pieces: {thin:.1f} us, with all checks {full:.1f} us")
