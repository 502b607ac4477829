"""A step larger than all before it is watched in full before it is prepared, though replays pass."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from types import FunctionType
from typing import Any

import pytest
import torch
from padding import Batch, told
from programs import guarded, only
from steady_state import QUIET, WINDOW, is_watched, reader, sampled, until_steady

import shadowgraph as sg
from shadowgraph.tracking import novelty, passing
from shadowgraph.tracking.novelty import Novelty

LOOKS_APART, PERIOD = (30, 60), 4000
KIND = "tokens of a batch"


@pytest.fixture
def debugger(monkeypatch: pytest.MonkeyPatch) -> Iterator[sg.Debugger]:
    with sampled(monkeypatch, LOOKS_APART, PERIOD) as made:
        yield made
    assert novelty.current is None


@pytest.fixture
def copy_to() -> Iterator[Callable[[torch.Tensor, int], None]]:
    """An operator that fills the first so many elements of a tensor, however many it has."""
    library = torch.library.Library("novelty", "DEF")
    library.define("fill_first(Tensor(a!) x, int count) -> ()")
    library.impl("fill_first", lambda x, count: ctypes.memset(x.data_ptr(), 1, count * x.itemsize) and None, "CPU")
    yield torch.ops.novelty.fill_first  # type: ignore[misc]
    library._destroy()


class Server:
    """A server that prepares a replay by an operator, which fills as many elements as a batch has tokens."""

    def __init__(self, debugger: sg.Debugger, fill: Callable[[torch.Tensor, int], None], bounded: bool) -> None:
        self.table = guarded(debugger, 8)
        self.graph = reader(self.table)
        self.fill, self.debugger, self.bounded = fill, debugger, bounded

    def step(self, tokens: int, reported: bool = True) -> None:
        if reported:
            self.debugger.adapter.novelty.see(KIND, self.graph.model.serial, 1, tokens)
        block = self.debugger.adapter.prepare(self.graph.model)  # as adapters do: without a check at its ends
        self.fill(self.table, min(tokens, 8) if self.bounded else tokens)
        block.end()
        self.graph.replay()


def served(debugger: sg.Debugger, fill: Callable[[torch.Tensor, int], None], bounded: bool = False) -> Server:
    """A server that has had short batches until replays pass."""
    server = Server(debugger, fill, bounded)
    for at in range(3 * QUIET):
        server.step(2 + at % 3)
    assert passing.on, "precondition"
    return server


def test_the_first_step_that_is_larger_names_its_culprit(
    debugger: sg.Debugger, copy_to: Callable[[torch.Tensor, int], None]
) -> None:
    server = served(debugger, copy_to)
    before = debugger.monitor.observation.periods
    server.step(9)
    found = only(debugger.check())
    assert (found.code, found.phase, found.past_end) == ("SG101", "prepare", 4)
    assert found.replay == server.graph.model.replays
    assert found.culprit.name == "novelty.fill_first.default"
    assert found.culprit.stack[0].function == "step"
    assert debugger.monitor.observation.periods == before


def test_its_fixed_twin_is_silent(debugger: sg.Debugger, copy_to: Callable[[torch.Tensor, int], None]) -> None:
    server = served(debugger, copy_to, bounded=True)
    server.step(9)
    assert debugger.monitor.novelty.woken == 1, "precondition"
    assert not debugger.check()


@pytest.fixture
def unnoted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Operators of libraries leave no row. They do for good, by the functions that call them, once any test of the
    process has loaded the observer's library: so they are called by other functions."""
    for kind in (torch._ops.OpOverload, torch._ops.OpOverloadPacket):
        call: Any = vars(kind)["__call__"]
        again = FunctionType(call.__code__, call.__globals__, call.__name__, call.__defaults__, call.__closure__)
        again.__kwdefaults__ = call.__kwdefaults__
        monkeypatch.setattr(kind, "__call__", again)


@pytest.mark.usefixtures("unnoted")
def test_without_the_sizes_only_the_observer_names_it(
    debugger: sg.Debugger, copy_to: Callable[[torch.Tensor, int], None]
) -> None:
    server = served(debugger, copy_to)
    server.step(9, reported=False)
    found = only(debugger.check())
    assert found.culprit.name is None


def test_what_was_broken_before_it_is_not_laid_on_it(
    debugger: sg.Debugger, copy_to: Callable[[torch.Tensor, int], None]
) -> None:
    server = served(debugger, copy_to, bounded=True)
    ctypes.memset(server.table.data_ptr() + server.table.nbytes, 1, 4)
    server.graph.replay()
    server.step(9)
    found = only(debugger.check())
    assert (found.detected_at, found.culprit.name, found.candidates) == ("replay_begin", None, ())


def test_a_larger_step_is_watched_with_the_next_one_and_then_passes(debugger: sg.Debugger) -> None:
    table = guarded(debugger, 8)
    graph = until_steady(debugger, table)
    sizes, serial = debugger.monitor.novelty, graph.model.serial
    sizes.see(KIND, serial, 100)
    assert is_watched()
    assert not passing.on
    checked = debugger.monitor.budget.observed
    for _ in range(2):
        assert is_watched()
        graph.replay()
    assert debugger.monitor.budget.observed == checked + 2
    assert not is_watched()
    assert passing.on
    sizes.see(KIND, serial, 100)
    assert passing.on
    sizes.see(KIND, serial, 1000)
    assert not passing.on
    (limit,) = (line for line in debugger.facts().limits if "larger" in line)
    assert limit == "a step larger than all before it was watched in full 2 times"


def test_a_larger_step_of_many_graphs_is_watched_for_a_window_at_most(debugger: sg.Debugger) -> None:
    table = guarded(debugger, 8)
    first = until_steady(debugger, table)
    pieces = [first, *(reader(table) for _ in range(WINDOW + 2))]
    for each in pieces * (QUIET * 8):  # each of them is known by then
        each.replay()
    while not passing.on:
        first.replay()
    debugger.monitor.novelty.see(KIND, first.model.serial, 100)
    watched = []
    for each in pieces:
        watched.append(is_watched())
        each.replay()
    assert watched == [True] * WINDOW + [False] * 3, watched
    while not is_watched():
        first.replay()
    for _ in range(WINDOW):  # the end of the period after it has its whole window
        assert is_watched()
        first.replay()


def test_news_in_a_larger_step_is_watched_for_long(debugger: sg.Debugger) -> None:
    table = guarded(debugger, 8)
    graph = until_steady(debugger, table)
    debugger.monitor.novelty.see(KIND, graph.model.serial, 100)
    graph.replay()
    debugger.protect(table)
    for _ in range(QUIET - 1):
        graph.replay()
        assert is_watched()


def test_it_is_checked_though_checks_are_thinned(monkeypatch: pytest.MonkeyPatch) -> None:
    with sampled(monkeypatch, LOOKS_APART, PERIOD, every=50) as debugger:
        table = guarded(debugger, 8)
        graph = reader(table)
        while not passing.on:
            graph.replay()
        debugger.monitor.novelty.see(KIND, graph.model.serial, 5)
        checked = debugger.monitor.budget.observed
        graph.replay()
        assert debugger.monitor.budget.observed == checked + 1


def test_before_the_first_graph_and_while_paused_nothing_is_woken(debugger: sg.Debugger) -> None:
    table = guarded(debugger, 8)
    graph = until_steady(debugger, table)
    debugger.pause()
    debugger.monitor.novelty.see(KIND, graph.model.serial, 5)
    assert debugger.monitor.observation.unobserved
    debugger.resume()
    debugger.monitor.observation.begin_idle()
    debugger.monitor.novelty.see(KIND, graph.model.serial, 50)
    assert debugger.monitor.observation.idle


def test_a_graph_that_is_gone_is_forgotten(debugger: sg.Debugger) -> None:
    table = guarded(debugger, 8)
    graph = until_steady(debugger, table)
    serial = graph.model.serial
    debugger.monitor.novelty.see(KIND, serial, 5)
    graph.reset()
    assert serial not in debugger.monitor.novelty._limits[KIND]


def test_padding_refreshed_before_a_window_that_begins_in_the_middle_of_a_step_is_not_stale(
    debugger: sg.Debugger,
) -> None:
    """A planner's sizes are known when half of the inputs are refreshed already."""
    batch = Batch(debugger)
    values = [[2, 3, 5, 7], [6], [1, 2]]
    for at in range(6 * QUIET):
        count = len(values[at % 3])
        if count < 4:
            batch.lens.fill_(1)
            batch.slots.zero_()
        batch.slots[:count].copy_(torch.tensor(values[at % 3]))
        debugger.monitor.novelty.see(KIND, 1, 2**at)
        batch.lens[:count].copy_(torch.tensor(values[at % 3]) + 20)
        batch.replay()
    assert debugger.monitor.novelty.woken > 3, "precondition"
    assert told(debugger) == []


# -- the sizes themselves ----------------------------------------------------------------------------------------


def woken(sizes: Iterator[int]) -> tuple[list[int], Novelty]:
    seen: list[str] = []
    counter = Novelty(lambda: True, seen.append)
    novel = []
    for size in sizes:
        before = len(seen)
        counter.see(KIND, 7, size)
        novel += [size] * (len(seen) - before)
    return novel, counter


def test_a_length_that_grows_token_by_token_is_new_less_and_less_often() -> None:
    novel, counter = woken(iter(range(100, 100_000)))
    assert novel[:4] == [100, 111, 125, 144]
    assert counter.woken == len(novel) < 25


def test_each_size_counts_by_itself() -> None:
    seen: list[str] = []
    counter = Novelty(lambda: True, seen.append)
    counter.see(KIND, 7, 1000, 1000, 1000)
    counter.see(KIND, 7, 1, 1101, 1)
    counter.see(KIND, 8, 1, 1, 1)
    assert seen == [
        "tokens of a batch beyond all before: 1,000, 1,000, 1,000",
        "tokens of a batch beyond all before: 1,101",
        "tokens of a batch beyond all before: 1, 1, 1",
    ]


def test_sizes_are_learnt_without_a_word_while_all_is_watched() -> None:
    seen: list[str] = []
    counter = Novelty(lambda: False, seen.append)
    for size in range(1, 1000):
        counter.see(KIND, 7, size)
    assert (seen, counter.woken, counter.sentence()) == ([], 0, None)


def test_too_many_sources_are_counted_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(novelty, "_SOURCES", 2)
    counter = Novelty(lambda: True, lambda _: None)
    for source in (1, 2, 3, 3, 2):
        counter.see(KIND, source, 5)
    assert (counter.woken, counter.dropped) == (2, 2)
    assert counter.sentence() == (
        "a step larger than all before it was watched in full 2 times; 2 steps were not judged by their sizes"
    )


def test_a_launch_after_the_size_is_not_accused_of_one_before_it_in_the_same_step(debugger: sg.Debugger) -> None:
    """Observation begins in the middle of a preparation: what was broken before is checked first."""
    table = guarded(debugger, 8)
    graph = until_steady(debugger, table)
    graph.replay()
    assert passing.on, "precondition"
    ctypes.memset(table.data_ptr() + table.nbytes, 1, 4)
    debugger.adapter.novelty.see("tokens", graph.model.serial, 1000)
    assert not passing.on, "precondition"
    table.add_(1)
    graph.replay()
    found = only(debugger.check())
    assert (found.code, found.phase, found.culprit.name, found.candidates) == ("SG101", "prepare", None, ())
