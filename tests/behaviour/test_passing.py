"""Most replays pass unobserved: their own check nodes date what breaks, and launches that were not observed are not
accused."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator

import pytest
import torch
from playing import played
from programs import guarded, only
from steady_state import QUIET, WINDOW, breaks, end, is_watched, reader, sampled, touch, until_steady

import shadowgraph as sg
from shadowgraph.checks.base import Checkpoint
from shadowgraph.tracking import passing

LOOKS_APART, PERIOD = (3, 6), 400


@pytest.fixture
def debugger(monkeypatch: pytest.MonkeyPatch) -> Iterator[sg.Debugger]:
    with sampled(monkeypatch, LOOKS_APART, PERIOD) as made:
        yield made
    assert not passing.on, "the next debugger's replays would pass"


def overrun(table: torch.Tensor) -> None:
    """Four bytes past the end, by no launch."""
    ctypes.memset(table.data_ptr() + table.nbytes, 1, 4)


def broken_by(debugger: sg.Debugger) -> tuple[sg.HostGraph, torch.Tensor, list[bool]]:
    """A graph that passes and overruns a buffer once it is told to; the buffer lives as long as the caller wants."""
    table, switch = guarded(debugger, 8), [False]
    graph = breaks(end(table), table, switch)
    for _ in range(QUIET + 1):
        graph.replay()
    assert passing.on, "precondition"
    switch[0] = True
    return graph, table, switch


def until_looked_at(debugger: sg.Debugger, *graphs: sg.HostGraph) -> int:
    """Replay until one was looked at; how many replays that took."""
    before = debugger.monitor.budget.observed
    for count in range(1, 2 * LOOKS_APART[1]):
        graphs[count % len(graphs)].replay()
        if debugger.monitor.budget.observed > before:
            return count
    raise AssertionError("no look")


def test_one_replay_in_a_few_is_looked_at_more_closely_and_all_are_counted(debugger: sg.Debugger) -> None:
    table = guarded(debugger, 8)
    graph = until_steady(debugger, table)
    counts = [until_looked_at(debugger, graph) for _ in range(40)]
    assert set(counts) == set(range(LOOKS_APART[0], LOOKS_APART[1] + 1)), "distances change"
    budget = debugger.monitor.budget
    assert (budget.observed, budget.replays) == (QUIET + 40, QUIET + sum(counts))
    assert budget.replays == graph.model.replays
    assert not debugger.check()
    (limit,) = debugger.facts().limits
    assert "guards were checked at each replay, as were declared buffers" in limit


def test_replays_that_pass_are_in_the_journal(debugger: sg.Debugger) -> None:
    table = guarded(debugger, 8)
    graph = until_steady(debugger, table)
    until_looked_at(debugger, graph)
    _, replays = debugger.monitor.flight_recorder.taken()
    assert [each.replay for each in replays] == list(range(1, graph.model.replays + 1))
    orders = [each.order for each in replays]
    assert orders == sorted(orders)


@pytest.mark.parametrize("turns", [2, 3, 4, 6])
def test_of_graphs_that_take_turns_each_is_looked_at(debugger: sg.Debugger, turns: int) -> None:
    table = guarded(debugger, 8)
    graphs, seen = [reader(table) for _ in range(turns)], set()
    for at in range(2 * PERIOD):
        if debugger.monitor.observation.looks_closer:
            seen.add(at % turns)
        graphs[at % turns].replay()
    assert seen == set(range(turns))


def test_what_a_replay_that_passes_breaks_is_found_and_dated_at_once(debugger: sg.Debugger) -> None:
    graph, _table, switch = broken_by(debugger)
    graph.replay()
    switch[0] = False
    broken = graph.model.replays
    graph.replay()  # the result of a check arrives later
    found = only(debugger.findings)
    assert (found.code, found.past_end, found.detected_at, found.confidence) == ("SG101", 4, "replay_end", "high")
    assert (found.phase, found.graph, found.replay) == ("replay", graph.model.name, broken)
    assert found.culprit.status == "candidate", "of the graph's nodes two were given the buffer to write"
    assert is_watched(), "after a finding launches are observed"
    assert not passing.on
    for _ in range(3):
        graph.replay()
    kept = only(debugger.check())
    assert kept.culprit.status == "not_reproduced", "the closer look came too late"


def test_what_is_found_between_replays_has_launches_observed(debugger: sg.Debugger) -> None:
    """Evidence may be dispatched by a reader of findings, before the next replay."""
    table = guarded(debugger, 8)
    graph = until_steady(debugger, table)
    graph.replay()
    assert passing.on, "precondition"
    overrun(table)
    debugger.monitor._boundaries.guards_now(Checkpoint("check"))
    assert debugger.findings, "precondition"
    assert passing.on, "precondition"
    graph.replay()
    assert not passing.on


def test_and_is_named_when_it_happens_again(debugger: sg.Debugger) -> None:
    graph, _table, _ = broken_by(debugger)
    for _ in range(4 * LOOKS_APART[1]):
        graph.replay()
    found = only(debugger.check())
    assert (found.detected_at, found.phase, found.confidence) == ("replay_end", "replay", "high")
    assert found.culprit.node == 1
    assert found.culprit.status == "confirmed", "by a closer look"
    assert found.occurrences > 2
    assert found.revision > 1


def test_a_launch_that_passed_unobserved_is_a_candidate(debugger: sg.Debugger) -> None:
    """A kernel that is given the buffer runs before each replay; the damage is of no launch."""
    table = guarded(debugger, 8)
    graph = reader(table)
    for _ in range(QUIET + 1):
        touch(table)
        graph.replay()
    assert passing.on, "precondition"
    overrun(table)
    for _ in range(2 * LOOKS_APART[1]):
        touch(table)
        graph.replay()
        if debugger.findings:
            break
    found = only(debugger.findings)
    assert (found.detected_at, found.phase, found.replay) == ("replay_begin", "prepare", QUIET + 2)
    assert (found.culprit.name, found.culprit.status) == ("fill", "candidate"), "it alone was given the buffer"


def test_a_kernel_that_overruns_in_every_prepare_is_named(debugger: sg.Debugger) -> None:
    from shadowgraph.demos.kernels import fill

    table = guarded(debugger, 8)
    graph = reader(table)
    for at in range(QUIET + 3 * LOOKS_APART[1]):
        fill[(1,)](table, 0, 9 if at > QUIET else 8, 7, BLOCK=16)
        graph.replay()
    found = only(debugger.check())
    assert (found.code, found.phase, found.culprit.name) == ("SG101", "prepare", "fill")
    assert found.culprit.status == "confirmed", "by a look launch by launch"


def test_a_clean_program_is_silent(debugger: sg.Debugger) -> None:
    table, switch = guarded(debugger, 8), [False]
    graphs = [breaks(end(table), table, switch), reader(table)]
    for at in range(3 * (PERIOD + WINDOW)):
        touch(table)
        table.add_(1)
        graphs[at % 2].replay()
    assert debugger.monitor.observation.periods >= 2, "precondition"
    assert not debugger.check()


def test_a_check_on_request_finds_it_at_once(debugger: sg.Debugger) -> None:
    table = guarded(debugger, 8)
    touch(table)  # its grid is known from here on
    graph = until_steady(debugger, table)
    graph.replay()
    assert passing.on, "precondition"
    overrun(table)
    touch(table)
    found = only(debugger.check())
    assert (found.detected_at, found.phase, found.replay) == ("check", "prepare", graph.model.replays + 1)
    assert (found.culprit.name, found.culprit.status) == ("fill", "candidate"), "it alone was given the buffer"


def test_launches_that_pass_are_not_told(debugger: sg.Debugger) -> None:
    table = guarded(debugger, 8)
    touch(table)  # its grid is known from here on
    graph = until_steady(debugger, table)
    before = len(debugger.monitor.flight_recorder.launches)
    touch(table)
    assert passing.on, "precondition"
    assert len(debugger.monitor.flight_recorder.launches) == before
    while passing.on:
        graph.replay()
    touch(table)
    assert len(debugger.monitor.flight_recorder.launches) == before + 1, "those before a look are"


def test_where_something_is_declared_each_replay_is_looked_at(debugger: sg.Debugger) -> None:
    table = guarded(debugger, 8)
    graph = until_steady(debugger, table)
    assert passing.on, "precondition"
    debugger.invariant(table, lambda values: bool((values < 9).all()))
    assert not passing.on
    for _ in range(2 * QUIET):
        graph.replay()
    assert debugger.monitor.observation.unobserved, "precondition"
    assert not passing.on
    budget = debugger.monitor.budget
    assert budget.observed == budget.replays


def test_a_capture_has_all_seen_again(debugger: sg.Debugger) -> None:
    table = guarded(debugger, 8)
    until_steady(debugger, table)
    assert passing.on, "precondition"
    other = reader(table)
    assert not passing.on
    other.replay()
    assert debugger.monitor.budget.observed == QUIET + 1


def test_a_graph_that_was_not_watched_enough_is_watched_from_its_second_replay_on(debugger: sg.Debugger) -> None:
    table = guarded(debugger, 8)
    usual, other = reader(table), reader(table)
    for _ in range(QUIET):
        usual.replay()
    assert passing.on, "precondition"
    other.replay()
    assert not passing.on
    assert is_watched()


@pytest.mark.parametrize(("every", "apart", "seen"), [(8, LOOKS_APART, 8), (4, (6, 6), 6)])
def test_with_rarer_checks_looks_are_no_more_often(
    monkeypatch: pytest.MonkeyPatch, every: int, apart: tuple[int, int], seen: int
) -> None:
    """And are checks, whatever the replay's number."""
    with sampled(monkeypatch, apart, PERIOD, every=every) as debugger:
        table = guarded(debugger, 8)
        graph = reader(table)
        while not passing.on:
            graph.replay()
        assert [until_every(debugger, graph) for _ in range(10)] == [seen] * 10


def until_every(debugger: sg.Debugger, graph: sg.HostGraph) -> int:
    before = debugger.monitor.budget.observed
    for count in range(1, 100):
        graph.replay()
        if debugger.monitor.budget.observed > before:
            return count
    return 0


def test_a_debugger_that_stops_while_replays_pass_leaves_them_to_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    with sampled(monkeypatch, LOOKS_APART, PERIOD) as first:
        held = guarded(first, 8)
        graph = until_steady(first, held)
        assert passing.on, "precondition"
    assert not passing.on
    with played(monkeypatch) as second:
        table = guarded(second, 8)
        other = reader(table)
        first.monitor.observation.replay_ended(graph.model.serial)  # in a thread of its own, a little late
        assert not passing.on
        other.replay()
        assert second.monitor.budget.observed == 1


def test_what_happens_while_checking_is_paused_is_not_judged_afterwards(debugger: sg.Debugger) -> None:
    table = guarded(debugger, 8)
    graph = until_steady(debugger, table)
    graph.replay()
    assert passing.on, "precondition"
    debugger.pause()
    overrun(table)
    graph.replay()
    debugger.resume()
    assert not passing.on
    for _ in range(QUIET - 1):
        graph.replay()
    assert not debugger.check()


def test_replays_that_passed_do_not_shorten_what_is_observed_after_a_request(monkeypatch: pytest.MonkeyPatch) -> None:
    with sampled(monkeypatch, (10**6, 10**6), 10**6) as debugger:
        graph = until_steady(debugger, guarded(debugger, 8))
        for _ in range(5 * QUIET):
            graph.replay()
        assert len(passing.pending()) >= 5 * QUIET, "precondition: none of these was entered yet"
        asked = debugger.locate(graph)
        graph.replay()
        assert asked.done
        for _ in range(QUIET - 2):
            assert debugger.monitor.observation.state.value == "observed"
            graph.replay()
