"""Host code that broke a guard is checked launch by launch the next time, and the launch named."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from playing import LateEngine, played
from programs import guarded, only, overflow, poke, reader_of

import shadowgraph as sg
from shadowgraph.graphs.events import events
from shadowgraph.model.launches import Access, Launch, LaunchKind, Pointer
from shadowgraph.model.views import TensorView


def steps(debugger: sg.Debugger, graph: sg.HostGraph, prepare: Callable[[], None], times: int, marked: bool) -> None:
    """Prepare and replay, a few times."""
    for _ in range(times):
        if marked:
            with debugger.prepare(graph):
                prepare()
        else:
            prepare()
        graph.replay()


@pytest.mark.parametrize("marked", [True, False])
def test_the_launch_is_named_in_the_next_prepare(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, marked: bool
) -> None:
    with played(monkeypatch) as debugger:
        table = guarded(debugger, 64)
        debugger.name("table", table)
        graph, _kept = reader_of(table)

        def prepare() -> None:
            table.fill_(1)
            overflow(table, 2)
            table.add_(1)

        steps(debugger, graph, prepare, 1, marked)
        first = only(debugger.check())
        assert (first.phase, first.replay, first.past_end) == ("prepare", 1, 8)
        assert (first.culprit.status, first.culprit.name, first.revision) == ("candidate", "aten.add_.Tensor", 1)
        steps(debugger, graph, prepare, 1, marked)
        found = only(debugger.check())
        steps(debugger, graph, prepare, 2, marked)
        last = only(debugger.check())
    assert (found.id, found.revision, found.fingerprint) == (first.id, 2, first.fingerprint)
    assert (found.culprit.status, found.culprit.name, found.culprit.seen_in) == ("confirmed", "fill", None)
    assert (found.culprit.stack[0].function, found.candidates) == ("overflow", ())
    assert (found.phase, found.replay) == ("prepare", 1)
    assert last.revision == 2
    assert last.occurrences > found.occurrences
    said = [record.getMessage() for record in caplog.records if record.name == "shadowgraph"]
    assert len(said) == 2
    assert "seen in a closer look at programs.py" in said[1]


def test_two_guards_and_two_launches(monkeypatch: pytest.MonkeyPatch) -> None:
    with played(monkeypatch) as debugger:
        table, other = guarded(debugger, 64), guarded(debugger, 64)
        graph, _kept = reader_of(table)

        def prepare() -> None:
            overflow(table, 1)
            overflow(other, 3)
            table.add_(other)

        steps(debugger, graph, prepare, 4, marked=True)
        found = debugger.check()
    assert [(one.culprit.name, one.culprit.status, one.past_end) for one in found] == [
        ("fill", "confirmed", 4),
        ("fill", "confirmed", 12),
    ]
    assert found[0].culprit.line == found[1].culprit.line
    assert found[0].culprit.stack[1].line + 1 == found[1].culprit.stack[1].line


def test_an_unseen_writer_is_placed_between_two_launches(monkeypatch: pytest.MonkeyPatch) -> None:
    with played(monkeypatch) as debugger:
        table = guarded(debugger, 64)
        graph, _kept = reader_of(table)

        def prepare() -> None:
            table.fill_(1)
            poke(table, 256, 4)
            table.add_(1)

        steps(debugger, graph, prepare, 1, marked=True)
        assert only(debugger.check()).culprit.status == "candidate"
        steps(debugger, graph, prepare, 1, marked=True)
        found = only(debugger.check())
    assert (found.culprit.status, found.culprit.name, found.culprit.kind) == ("unknown", None, "unseen")
    assert (found.revision, found.culprit.line) == (2, prepare.__code__.co_firstlineno + 3)
    assert (
        f"an unseen writer before test_locate_prepare.py:{found.culprit.line} wrote 4 bytes"
        in found.message.replace("up to ", "")
    )


def test_who_launches_is_told_from_what_it_launches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Launches that begin inside another one, or that are never heard of again, cost no certainty."""
    with played(monkeypatch) as debugger:
        table = guarded(debugger, 64)
        graph, _kept = reader_of(table)
        view = TensorView.of(table)
        pointers = (Pointer("self", view, Access.READ_WRITE),)
        outer, inner, lost = (Launch(LaunchKind.ATEN, name, pointers) for name in ("outer", "inner", "lost"))

        def prepare() -> None:
            events.launch_begins(lost, ())
            events.launch_begins(outer, ())
            events.launch_begins(inner, ())
            events.launch_ran(inner, None)
            poke(table, 256, 4)
            events.launch_ran(outer, None)
            events.launch_begins(inner, ())
            events.launch_ran(inner, None)

        steps(debugger, graph, prepare, 2, marked=True)
        found = only(debugger.check())
    assert (found.culprit.name, found.culprit.status) == ("inner", "candidate"), "outer had no check just before it"
    assert found.revision == 1


def test_a_launch_inside_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    with played(monkeypatch) as debugger:
        table = guarded(debugger, 64)
        graph, _kept = reader_of(table)
        pointers = (Pointer("self", TensorView.of(table), Access.READ_WRITE),)
        outer, inner = (Launch(LaunchKind.ATEN, name, pointers) for name in ("outer", "inner"))

        def prepare() -> None:
            events.launch_begins(outer, ())
            events.launch_ran(inner, None)  # nobody told that it begins
            poke(table, 256, 4)
            events.launch_ran(outer, None)
            table.add_(1)

        steps(debugger, graph, prepare, 2, marked=True)
        found = only(debugger.check())
    assert (found.culprit.name, found.culprit.status, found.revision) == ("outer", "confirmed", 2)


def test_nothing_happens_again(monkeypatch: pytest.MonkeyPatch) -> None:
    with played(monkeypatch) as debugger:
        table = guarded(debugger, 64)
        graph, _kept = reader_of(table)
        overflow(table, 1)
        steps(debugger, graph, lambda: None, 1, marked=True)
        assert only(debugger.check()).culprit.status == "candidate"
        assert debugger.monitor.stepper.armed
        steps(debugger, graph, lambda: overflow(table, 0), 1, marked=True)
        found = only(debugger.check())
        assert not debugger.monitor.stepper.armed
    assert (found.culprit.status, found.revision) == ("not_reproduced", 2)
    assert "perhaps fill wrote 4 bytes past the end" in found.message


def test_launches_are_checked_alone_only_while_there_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    checks: list[object] = []
    check = LateEngine.check

    def counted(engine: LateEngine, tag: object, *rest: object, **named: object) -> None:
        checks.append(tag)
        check(engine, tag, *rest, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(LateEngine, "check", counted)

    def count(debugger: sg.Debugger, graph: sg.HostGraph, table: torch.Tensor) -> int:
        before = len(checks)
        steps(debugger, graph, lambda: [overflow(table, 0) for _ in range(5)] and None, 1, marked=True)
        return len(checks) - before

    for locate, more in (("auto", 1 + 10), ("off", 1)):  # one before the guard is armed again
        with played(monkeypatch, locate=locate) as debugger:
            table = guarded(debugger, 64)
            graph, _kept = reader_of(table)
            count(debugger, graph, table)
            usual = count(debugger, graph, table)
            assert count(debugger, graph, table) == usual
            overflow(table, 1)
            graph.replay()
            assert len(debugger.check()) == 1
            assert count(debugger, graph, table) == usual + more
            assert count(debugger, graph, table) == usual


def test_damage_in_setup_is_looked_for_until_the_next_replay_of_any_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    with played(monkeypatch) as debugger:
        table, other = guarded(debugger, 64), guarded(debugger, 64)
        for _ in range(2):
            table.fill_(1)
            overflow(table, 1)
            table.add_(1)
            debugger.check()
        found = only(debugger.findings)
        assert (found.phase, found.culprit.name, found.culprit.status) == ("setup", "fill", "confirmed")
        graph, _kept = reader_of(other)
        graph.replay()
        assert not debugger.monitor.stepper.armed


def test_a_graph_that_goes_ends_the_look(monkeypatch: pytest.MonkeyPatch) -> None:
    with played(monkeypatch) as debugger:
        table = guarded(debugger, 64)
        graph, _kept = reader_of(table)
        overflow(table, 1)
        graph.replay()
        assert len(debugger.check()) == 1
        assert debugger.monitor.stepper.armed
        graph.reset()
        assert not debugger.monitor.stepper.armed
