"""Operators that no dispatch mode sees: candidates between two replays, last launches of a crash, the report's line."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from programs import guarded
from steady_state import PERIOD, reader, sampled
from support.compiled_observer import cache_with_the_library

import shadowgraph as sg
from shadowgraph.common.options import defaults_of
from shadowgraph.common.settings import Settings
from shadowgraph.graphs.observer.observer import OperatorObserver, observer
from shadowgraph.model.views import TensorView
from shadowgraph.tracking import passing


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return cache_with_the_library(tmp_path_factory)


@pytest.fixture
def debugger(cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[sg.Debugger]:
    """One that reaches the steady state, with the observer on."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    monkeypatch.delenv("CXX", raising=False)
    with sampled(monkeypatch, (3, 6), 4 * PERIOD, operators="observer") as made:
        assert observer.wait(60), observer.sentence()
        yield made


def steady(debugger: sg.Debugger) -> tuple[torch.Tensor, sg.HostGraph]:
    """A buffer, and a graph whose replays pass unseen with the operators that prepare them."""
    table = guarded(debugger, 8)
    graph = reader(table)
    while not passing.on:
        graph.replay()
    return table, graph


def test_the_one_operator_that_was_given_the_buffer_is_known_the_first_time(debugger: sg.Debugger) -> None:
    table, graph = steady(debugger)
    journal, other = debugger.monitor.flight_recorder, torch.zeros(64)
    graph.replay()
    before = observer.latest_sequence()
    for _ in range(20):
        other.add_(1)
    thread = threading.Thread(target=table.fill_, args=(7,))
    thread.start()
    thread.join()
    after = observer.latest_sequence()
    graph.replay()
    table.zero_()
    (ran,) = journal.launches_between(before, after, [TensorView.of(table).hull])
    assert (ran.launch.name, ran.launch.pointers[0].argument) == ("aten.fill_.Scalar", "self")
    assert len(journal.launches_between(before, after)) == 21


def test_the_log_of_launches_has_what_passed(debugger: sg.Debugger) -> None:
    table, _ = steady(debugger)
    table.fill_(3)
    assert passing.on, "precondition"
    launches, _ = debugger.monitor.flight_recorder.taken()
    assert launches[-1].launch.name == "aten.fill_.Scalar"
    assert launches[-1].launch.pointers[0].view.hull == TensorView.of(table).hull
    assert [each.time for each in launches] == sorted(each.time for each in launches)


def test_the_last_launches_of_a_crash_in_a_nap_are_those_that_passed(debugger: sg.Debugger) -> None:
    table, _ = steady(debugger)
    debugger.name("runner", {"table": table})
    for value in range(5):
        table.fill_(value)
    table.add_(1)
    work = debugger.monitor
    work.lose(RuntimeError("CUDA error: device-side assert"))
    table.zero_()  # what the program runs while it ends
    add, fill, _ = work.crash_recorder.launches()
    assert (add.name, fill.name) == ("aten.add_.Tensor", "aten.fill_.Scalar")
    assert (add.values[0].argument, add.values[0].data) == ("self", b"")
    assert "table" in add.values[0].owner
    said = str(debugger.report(quiet=True))
    assert "ran last aten.add_.Tensor" in " ".join(said.split())
    assert f"self is {add.values[0].owner}, {add.values[0].dtype}" in said


def test_after_a_loss_while_operators_are_watched_nothing_is_told_twice(debugger: sg.Debugger) -> None:
    table = guarded(debugger, 8)
    graph = reader(table)
    table.fill_(1)
    graph.replay()
    work = debugger.monitor
    (seen,) = {given.launch.name for given in work.flight_recorder.given}
    work.lose(RuntimeError("CUDA error: device-side assert"))
    names = [each.name for each in work.crash_recorder.launches()]
    assert names == [seen] == ["aten.fill_.Scalar"]


def test_the_report_says_nothing_while_all_operators_are_noted(debugger: sg.Debugger) -> None:
    assert "observer" not in str(debugger.report(quiet=True))
    assert observer.active


def test_it_ends_with_the_debugger(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    monkeypatch.delenv("CXX", raising=False)
    for _ in range(2):
        with sg.debug(operators="observer"):
            assert observer.wait(60)
        assert not observer.active
        before = observer.latest_sequence()
        torch.zeros(3).fill_(1)
        assert observer.latest_sequence() == before


def test_by_default_nothing_is_built_on_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[OperatorObserver] = []
    monkeypatch.setattr(OperatorObserver, "start", started.append)
    for options in ({}, {"operators": "auto"}, {"operators": "mode"}):
        with sg.debug(**options) as debugger:
            assert debugger.monitor.flight_recorder.observer is None
            assert debugger.monitor.flight_recorder.launches_between(0, 10) == ()
    assert started == []
    assert Settings().operators == "mode"
    assert defaults_of("wrap", {})["operators"] == "auto"
    assert "operators" not in defaults_of("wrap", {"SHADOWGRAPH_OPERATORS": "mode"})


def test_the_report_says_why_there_is_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fresh = OperatorObserver()
    monkeypatch.setattr("shadowgraph.debugger.observer", fresh)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with sg.debug(operators="observer") as debugger:
        assert not fresh.wait(60)
        x = torch.zeros(3)
        graph = reader(x)
        graph.replay()
        said = " ".join(str(debugger.report(quiet=True)).split())
    assert (
        "limit: operators are noted by the dispatch mode of watched threads alone: no observer in C++ (no C++" in said
    )
