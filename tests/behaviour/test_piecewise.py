"""Graphs that are replayed in pieces: a step is dated from its first and last piece, and a fault that happens again at
the piece, or between two."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from playing import played
from programs import guarded, only
from steady_state import end, sampled

import shadowgraph as sg
from shadowgraph.model.findings import Finding
from shadowgraph.monitor.sampling import observation
from shadowgraph.tracking import passing, steps

PIECES = 12
QUIET = 3 * PIECES
FIRST = 50  # quiet steps


@pytest.fixture
def debugger(monkeypatch: pytest.MonkeyPatch) -> Iterator[sg.Debugger]:
    """One that looks closer at no replay of a test unless something was found."""
    with steady(monkeypatch) as made:
        yield made


@contextmanager
def steady(monkeypatch: pytest.MonkeyPatch, apart: tuple[int, int] = (100_000, 100_000)) -> Iterator[sg.Debugger]:
    with sampled(monkeypatch, apart, 1_000_000) as made:
        monkeypatch.setattr(observation, "QUIET", QUIET)
        made.monitor.observation.observe_all()
        yield made


class Model:
    """A model in pieces, with eager code between them; a fault is planted at a place and in the steps that are told."""

    def __init__(self, debugger: sg.Debugger, count: int = PIECES) -> None:
        self.table, self.between = guarded(debugger, 8), guarded(debugger, 8)
        self.step = 0
        self.broken: dict[int, Callable[[int], bool]] = {}  # whether a piece breaks the guard in a step, by place
        self.broken_between: dict[int, Callable[[int], bool]] = {}  # the same for code behind a piece
        self.address = end(self.table)
        self.pieces = [self._piece(place) for place in range(1, count + 1)]

    def _piece(self, place: int) -> sg.HostGraph:
        def body() -> None:
            if self.broken.get(place, lambda step: False)(self.step):
                ctypes.memset(self.address, 1, 4)

        graph = sg.HostGraph()
        with sg.host_graph(graph):
            self.table.add_(0)
            graph.call(body, writes=(self.table,))
        return graph

    def run(self, steps_: int = 1, until: int | None = None) -> None:
        from shadowgraph.demos.kernels import fill

        for _ in range(steps_):
            self.step += 1
            for place, piece in enumerate(self.pieces[:until], 1):
                piece.replay()
                self.between.add_(1)
                over = self.broken_between.get(place)
                if over is not None:
                    fill[(1,)](self.between, 0, 9 if over(self.step) else 8, 1, BLOCK=16)

    @property
    def names(self) -> list[str]:
        return [piece.model.name for piece in self.pieces]

    def checked(self) -> list[int]:
        return [place for place, piece in enumerate(self.pieces, 1) if steps.checks(piece.model)]

    def until_quiet(self) -> None:
        self.run(FIRST)
        assert passing.on, "precondition"
        assert self.checked() == [1, len(self.pieces)], "precondition"


def placed(found: Finding) -> tuple[str, int, int, int]:
    """Phase, number of the step, and the pieces that it may have been."""
    assert found.step is not None
    assert (found.step.pieces, found.step.first) == (PIECES, found.step.first)
    return str(found.phase), found.step.number, found.step.since, found.step.until


def test_a_fault_after_many_quiet_steps_is_dated_to_the_step_then_to_its_piece(debugger: sg.Debugger) -> None:
    model = Model(debugger)
    model.until_quiet()
    model.run(200)
    model.broken[7] = lambda step: step > 250
    model.run()
    model.pieces[0].replay()  # the evidence arrives with the next replay
    found = only(debugger.findings)
    assert placed(found) == ("step", 251, 2, 11)
    assert (found.code, found.past_end, found.revision) == ("SG101", 4, 1)
    first, last = model.names[0], model.names[-1]
    assert f"in step 251 of {first} to {last}, in one of pieces 2 to 11 of 12 or next to it" in found.message
    assert found.culprit.status == "candidate", "each node that was given the buffer"
    for piece in model.pieces[1:]:
        piece.replay()
    model.run(3)
    found = only(debugger.findings)
    assert placed(found) == ("replay", 251, 7, 7)
    assert (found.graph, found.replay) == (model.names[6], 251)
    assert f"in replay 251 of {model.names[6]}, piece 7 of 12 in step 251 of {first} to {last}" in found.message
    assert found.revision > 1
    assert found.occurrences >= 2
    assert (found.culprit.node, found.culprit.status) == (1, "confirmed"), "by a closer look at that piece"
    assert not debugger.facts().faults


def test_a_fault_of_one_step_alone_is_dated_to_it(debugger: sg.Debugger) -> None:
    model = Model(debugger)
    model.until_quiet()
    model.broken[7] = lambda step: step == 150
    model.run(200)
    assert placed(only(debugger.check())) == ("step", 150, 2, 11)


def test_code_between_two_pieces_is_found_with_its_step_then_there(debugger: sg.Debugger) -> None:
    model = Model(debugger)
    model.until_quiet()
    model.broken_between[3] = lambda step: step >= 200
    model.run(200 - model.step)
    model.pieces[0].replay()
    found = only(debugger.findings)
    assert placed(found) == ("step", 200, 2, 11)
    assert "fill" in {found.culprit.name, *(each.name for each in found.candidates)}
    for piece in model.pieces[1:]:
        piece.replay()
    model.run(6)
    found = only(debugger.check())
    assert placed(found) == ("between", 200, 3, 4)
    assert f"between pieces 3 and 4 of 12 in step 200 of {model.names[0]}" in found.message
    assert (found.culprit.name, found.culprit.status) == ("fill", "confirmed")


@pytest.mark.parametrize(("place", "phase"), [(1, "replay"), (12, "replay")])
def test_the_first_and_the_last_piece_are_dated_exactly(debugger: sg.Debugger, place: int, phase: str) -> None:
    model = Model(debugger)
    model.until_quiet()
    model.broken[place] = lambda step: step == 90
    model.run(90 - model.step + 1)
    found = only(debugger.check())
    assert placed(found) == (phase, 90, place, place)
    assert (found.graph, found.replay) == (model.names[place - 1], 90)


def test_what_prepares_a_step_is_dated_as_such(debugger: sg.Debugger) -> None:
    model = Model(debugger)
    model.until_quiet()
    ctypes.memset(model.address, 1, 4)
    model.run(2)
    found = only(debugger.check())
    assert placed(found) == ("prepare", FIRST + 1, 1, 1)
    assert found.message.endswith(f"while preparing step {FIRST + 1} of {model.names[0]} to {model.names[-1]}")


def test_damage_in_a_step_that_is_given_up(debugger: sg.Debugger) -> None:
    """The next step's first check finds it."""
    model = Model(debugger)
    model.until_quiet()
    model.broken[3] = lambda step: step == FIRST + 1
    model.run(1, until=5)
    model.run(2)
    assert placed(only(debugger.check())) == ("step", FIRST + 1, 2, 5)


def test_damage_before_a_graph_that_comes_between(debugger: sg.Debugger) -> None:
    model = Model(debugger)
    other = sg.HostGraph()
    with sg.host_graph(other):
        model.table.add_(0)
    for _ in range(QUIET):
        other.replay()
    model.until_quiet()
    model.broken[3] = lambda step: step == FIRST + 1
    model.run(1, until=5)
    other.replay()
    for piece in model.pieces[5:]:
        piece.replay()
    assert placed(only(debugger.check())) == ("step", FIRST + 1, 2, 5)
    model.run(10)
    assert len(debugger.check()) == 1


def test_a_check_on_request_within_a_step(debugger: sg.Debugger) -> None:
    model = Model(debugger)
    model.until_quiet()
    model.broken[3] = lambda step: step == FIRST + 1
    model.run(1, until=5)
    found = only(debugger.check())
    assert placed(found) == ("step", FIRST + 1, 2, 5)
    assert found.detected_at == "check"


def test_a_buffer_whose_memory_is_handed_on_within_a_step(debugger: sg.Debugger) -> None:
    """Its guards are checked a last time."""
    model = Model(debugger)
    model.until_quiet()
    model.broken[3] = lambda step: step == FIRST + 1
    model.run(1, until=5)
    buffer = debugger.monitor.context.ledger.owner(model.table.data_ptr(), model.table.data_ptr() + 1)
    assert buffer is not None
    debugger.monitor.retiring(buffer)
    found = only(debugger.check())
    assert (placed(found), found.detected_at) == (("step", FIRST + 1, 2, 5), "retire")


@pytest.mark.parametrize("turns", [(0, 1), (0, 0, 1)])
def test_two_batch_sizes_are_dated_each_by_its_own_steps(debugger: sg.Debugger, turns: tuple[int, ...]) -> None:
    models = [Model(debugger), Model(debugger)]
    models[1].run()
    for _ in range(FIRST):
        for turn in turns:
            models[turn].run()
    assert models[0].checked() == models[1].checked() == [1, 12], "precondition"
    models[1].broken[7] = lambda step: True
    for _ in range(3):
        for turn in turns:
            models[turn].run()
    found = only(debugger.check())
    assert placed(found) == ("replay", FIRST + 2, 7, 7)
    assert found.graph == models[1].names[6]


def test_a_fault_that_happens_again_much_later_is_located(debugger: sg.Debugger) -> None:
    """Launches pass unobserved again by then, and all pieces are checked still."""
    model = Model(debugger)
    model.until_quiet()
    model.broken[7] = lambda step: step in (60, 80)
    model.run(75 - model.step)
    assert placed(only(debugger.findings)) == ("step", 60, 2, 11)
    assert model.checked() == list(range(1, 13))
    model.run(10)
    assert placed(only(debugger.check())) == ("replay", 60, 7, 7)
    model.run(steps.AFTER_DAMAGE)
    assert model.checked() == [1, 12]


@pytest.mark.parametrize(("place", "since", "until", "at"), [(3, 2, 4, 5), (8, 6, 11, 12)])
def test_a_look_at_one_piece_narrows_the_step_down(
    debugger: sg.Debugger, place: int, since: int, until: int, at: int
) -> None:
    """Launches check the fifth piece."""
    model = Model(debugger)
    model.until_quiet()
    model.broken[place] = lambda step: step == 99
    model.step = 99
    for number, piece in enumerate(model.pieces, 1):
        if number == 5:
            passing.let(0)
        piece.replay()
    found = only(debugger.check())
    assert placed(found) == ("step", FIRST + 1, since, until)
    assert (found.graph, found.replay) == (model.names[at - 1], FIRST + 1)


def test_a_piece_that_is_gone_has_the_others_checked_again(debugger: sg.Debugger) -> None:
    model = Model(debugger)
    model.until_quiet()
    del model.pieces[6]
    gc.collect()
    model.run()
    assert model.checked() == list(range(1, 12))
    assert not debugger.check()


def test_a_piece_that_is_looked_at_more_closely_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    with steady(monkeypatch, (40, 60)) as debugger:
        model = Model(debugger)
        model.run(FIRST)
        model.broken[7] = lambda step: step == 100
        model.run(120)
        found = only(debugger.check())
        _, number, since, until = placed(found)
        assert number == 100
        assert since <= 7 <= until


@pytest.mark.parametrize("count", [3, 4])
def test_a_few_graphs_are_no_pieces(debugger: sg.Debugger, count: int) -> None:
    model = Model(debugger, count)
    model.run(200)
    assert passing.on, "precondition"
    model.broken[2] = lambda step: step == 201
    model.run(2)
    found = only(debugger.check())
    assert (str(found.phase), found.graph, found.replay, found.step) == ("replay", model.names[1], 201, None)


def test_a_clean_model_is_silent_and_its_replays_are_counted(debugger: sg.Debugger) -> None:
    model = Model(debugger)
    model.run(400)
    assert model.checked() == [1, 12]
    assert not debugger.check()
    assert debugger.monitor.budget.replays == 400 * PIECES
    (line,) = [line for line in debugger.facts().limits if "pieces" in line]
    assert "were checked with their step" in line
    assert not debugger.facts().faults


def test_without_the_fault_the_same_programs_are_silent(debugger: sg.Debugger) -> None:
    model = Model(debugger)
    model.until_quiet()
    model.broken[7] = model.broken_between[3] = lambda step: False
    model.run(100)
    model.run(1, until=5)
    model.run(30)
    assert not debugger.check()


def test_while_everything_is_observed_nothing_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    with played(monkeypatch, watch_eager="always") as debugger:
        model = Model(debugger)
        model.run(20)
        assert model.checked() == list(range(1, 13))
        assert debugger.monitor.budget.checked == 20 * PIECES


def test_steps_of_one_debugger_are_not_those_of_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    with steady(monkeypatch) as first:
        model = Model(first)
        model.until_quiet()
    with steady(monkeypatch) as second:
        model.run()
        assert model.checked() == list(range(1, 13))
        assert not second.check()
