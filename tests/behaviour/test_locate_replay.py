"""On a device a failed check has candidates; the replay after it names the node."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from playing import played
from programs import guarded, only, overflow, poke, underflow

import shadowgraph as sg
from shadowgraph.graphs.host import probe as host_probe
from shadowgraph.model.graphs import Graph
from shadowgraph.model.probes import Outcome, Probe
from shadowgraph.wrap.folder.findings_log import FORMAT, FindingsLog
from shadowgraph.wrap.folder.injection_config import InjectionConfig
from shadowgraph.wrap.folder.reader import read_run
from shadowgraph.wrap.folder.run_folder import RunFolder
from shadowgraph.wrap.inject.findings_logger import FindingsLogger


def broken_by_the_second(table: torch.Tensor, other: torch.Tensor) -> sg.HostGraph:
    """Three nodes are given the table; the second of them writes past its end."""
    graph = sg.HostGraph()
    with sg.host_graph(graph):
        table.add_(1)
        overflow(table, 2)
        table.mul_(2)
        other.add_(1)
    return graph


def test_the_node_is_named_by_the_next_replay(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with played(monkeypatch) as debugger:
        table, other = guarded(debugger, 64), guarded(debugger, 64)
        debugger.name("table", table)
        graph = broken_by_the_second(table, other)
        graph.replay()
        graph.replay()
        first = only(debugger.findings)
        assert (first.culprit.status, first.culprit.name, first.revision) == ("candidate", "aten.mul_.Tensor", 1)
        assert (first.phase, first.replay, first.past_end) == ("replay", 1, 8)
        graph.replay()
        found = only(debugger.findings)
        graph.replay()
    assert (found.id, found.revision, found.fingerprint) == (first.id, 2, first.fingerprint)
    culprit = found.culprit
    assert (culprit.status, culprit.kind, culprit.name, culprit.node) == ("confirmed", "triton", "fill", 1)
    assert (culprit.seen_in, culprit.kernel, culprit.grid) == (3, None, (1,))
    assert culprit.stack[0].function == "overflow"
    assert culprit.line == culprit.stack[0].line
    assert culprit.source is not None
    pointed = only(culprit.arguments)
    assert (pointed.name, pointed.buffer, pointed.at, pointed.address) == ("target", "table", 0, table.data_ptr())
    assert culprit.led_by == pointed
    assert found.candidates == ()
    assert "fill (node 1) wrote 8 bytes past the end of table" in found.message
    assert only(debugger.findings).occurrences > found.occurrences, "later sightings are sightings of the same"
    said = [record.getMessage() for record in caplog.records if record.name == "shadowgraph"]
    assert len(said) == 2
    assert "seen in a closer look of replay 3 at programs.py" in said[1]


def test_two_culprits_in_one_replay(monkeypatch: pytest.MonkeyPatch) -> None:
    with played(monkeypatch) as debugger:
        table, other = guarded(debugger, 64), guarded(debugger, 64)
        graph = sg.HostGraph()
        with sg.host_graph(graph):
            overflow(table, 1)
            underflow(other, 1)
            overflow(table, 3)
            table.add_(1)
            other.add_(1)
        for _ in range(3):
            graph.replay()
        after, before = debugger.findings
    assert (after.culprit.node, after.culprit.status, after.culprit.seen_in) == (0, "confirmed", 3)
    assert [(one.node, one.status) for one in after.candidates] == [(2, "confirmed")]
    assert (before.bytes.side, before.culprit.node, before.culprit.status) == ("before", 1, "confirmed")


def test_what_a_probed_replay_shows_beside_is_confirmed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another guard breaks for the first time in the replay that is probed for the sake of the first."""
    with played(monkeypatch) as debugger:
        table, other, switch = guarded(debugger, 64), guarded(debugger, 64), guarded(debugger, 1)
        graph = sg.HostGraph()
        with sg.host_graph(graph):
            overflow(table, 1)
            graph.call(lambda: poke(other, 256, 4) if switch.item() else None, writes=(other,))
            other.add_(1)
            table.add_(1)
        graph.replay()
        graph.replay()
        assert only(debugger.findings).culprit.status == "candidate"
        switch.fill_(1)
        graph.replay()
        debugger.check()
        _, second = debugger.findings
    assert (second.replay, second.revision) == (3, 1)
    assert (second.culprit.status, second.culprit.node, second.culprit.seen_in) == ("confirmed", 1, 3)


def test_damage_that_does_not_happen_again(monkeypatch: pytest.MonkeyPatch) -> None:
    with played(monkeypatch) as debugger:
        table, switch = guarded(debugger, 64), guarded(debugger, 1)
        switch.fill_(1)
        graph = sg.HostGraph()
        with sg.host_graph(graph):
            graph.call(lambda: poke(table, 256, 4) if switch.item() else None, writes=(table,))
            table.add_(1)
        graph.replay()
        switch.fill_(0)
        graph.replay()
        graph.replay()
        found = only(debugger.findings)
        quiet = Looks(graph.model)
        graph.replay()
        assert quiet.probes == [], "it is not looked for for ever"
    assert (found.culprit.status, found.culprit.seen_in, found.revision) == ("not_reproduced", 3, 2)
    assert "perhaps aten.add_.Tensor (node 1) wrote 4 bytes past the end" in found.message


def test_a_replay_that_cannot_be_probed(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def refuse(steps: object, model: Graph, watched: bool, probe: Probe) -> None:
        for step in steps:  # type: ignore[attr-defined]
            step.run(False)
        probe.deliver(Outcome(model.replays, refused="a kernel needs its own exec"))
        refused.append(model.replays)

    refused: list[int] = []
    monkeypatch.setattr("shadowgraph.graphs.host.graph.run_probed", refuse)
    with played(monkeypatch) as debugger:
        table, other = guarded(debugger, 64), guarded(debugger, 64)
        graph = broken_by_the_second(table, other)
        for _ in range(3):
            graph.replay()
        for _ in range(6):
            graph.replay()
        found = only(debugger.findings)
        assert refused == [3], "once"
        underflow(other, 1)  # host code: of no concern to the graph
        debugger.check()
        graph.replay()
        assert refused == [3]
        with_another = sg.HostGraph()
        with sg.host_graph(with_another):
            overflow(other, 1)
        for _ in range(3):
            with_another.replay()
        assert refused == [3, 3], "another graph, another try"
    assert (found.culprit.status, found.revision) == ("candidate", 1)
    said = [record.getMessage() for record in caplog.records if "no closer look" in record.getMessage()]
    assert said[0] == f"shadowgraph: replay 3 of {graph.model.name}: no closer look: a kernel needs its own exec"


def test_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    with played(monkeypatch, locate="off") as debugger:
        table, other = guarded(debugger, 64), guarded(debugger, 64)
        graph = broken_by_the_second(table, other)
        quiet = Looks(graph.model)
        for _ in range(5):
            graph.replay()
        found = only(debugger.findings)
    assert (found.culprit.status, found.revision) == ("candidate", 1)
    assert quiet.probes == []


def test_a_protected_buffer(monkeypatch: pytest.MonkeyPatch) -> None:
    with played(monkeypatch) as debugger:
        table = guarded(debugger, 8)
        debugger.protect(table)
        graph = sg.HostGraph()
        with sg.host_graph(graph):
            graph.call(lambda: poke(table, 4, 4, value=table[0].item() + 1), writes=())
            table[:1].add_(1)
        for _ in range(3):
            graph.replay()
        found, slack = sorted(debugger.findings, key=lambda finding: finding.code, reverse=True)
    assert (found.code, found.culprit.status, found.culprit.node) == ("SG102", "confirmed", 0)
    assert (slack.bytes.side, slack.culprit.status, slack.culprit.node) == ("slack", "confirmed", 0)
    assert [(one.node, one.status) for one in found.candidates] == [(1, "confirmed")]


def test_a_suppressed_finding_is_not_looked_for(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:  # type: ignore[no-untyped-def]
    known = tmp_path / "known.txt"
    with played(monkeypatch) as debugger:
        table, other = guarded(debugger, 64), guarded(debugger, 64)
        graph = broken_by_the_second(table, other)
        for _ in range(4):
            graph.replay()
        found = only(debugger.findings)
    assert found.culprit.status == "confirmed"
    known.write_text(f"{found.fingerprint} as reported after it was located\n")
    with played(monkeypatch, suppressions=str(known)) as debugger:
        table, other = guarded(debugger, 64), guarded(debugger, 64)
        graph = broken_by_the_second(table, other)
        quiet = Looks(graph.model)
        for _ in range(4):
            graph.replay()
        assert debugger.check() == ()
        assert debugger.report(quiet=True).facts.suppressed >= 2
    assert quiet.probes == []


@pytest.mark.parametrize("kernel", ["fill", "aten.mul_.Tensor"])
def test_a_rule_by_kernel_waits_for_the_culprit(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path, kernel: str
) -> None:
    """The first sighting has a candidate and others; the closer look shows that it was `fill`."""
    known = tmp_path / "known.txt"
    known.write_text(f"kernel={kernel}\n")
    with played(monkeypatch, suppressions=str(known)) as debugger:
        table, other = guarded(debugger, 64), guarded(debugger, 64)
        graph = broken_by_the_second(table, other)
        graph.replay()
        graph.replay()
        first = only(debugger.findings)
        assert (first.culprit.status, first.culprit.name) == ("candidate", "aten.mul_.Tensor")
        assert first.candidates, "precondition: it may have been another launch"
        for _ in range(3):
            graph.replay()
        found = debugger.check()
    facts = debugger.report(quiet=True).facts
    (count,) = facts.suppressions
    said = [record.getMessage() for record in caplog.records if record.name == "shadowgraph"][1:]
    if kernel == "fill":
        assert found == facts.findings == facts.notes == ()
        (hidden,) = facts.hidden
        assert (hidden.id, hidden.culprit.name, hidden.suppressed_by) == (first.id, "fill", f"{known}:1")
        assert (count.findings, count.sightings) == (1, facts.suppressed)
        assert count.sightings > first.occurrences
        assert said == [f"finding #{first.id} is suppressed by {known}:1: {hidden.message}"]
    else:
        assert only(found).culprit.name == "fill"
        assert (facts.hidden, facts.suppressed) == ((), 0)
        assert "seen in a closer look" in said[0]
        assert "stale, hid nothing in this run: kernel=aten.mul_.Tensor" in str(debugger.report(quiet=True))


def test_a_run_folder_knows_what_was_suppressed_late(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The finding is written as one, and withdrawn by its revision; the process may be killed after either."""
    known = tmp_path / "known.txt"
    known.write_text("kernel=fill\n")
    run = RunFolder(tmp_path / "run")
    run.begin(["python"], InjectionConfig(run.path), "0.1.0")
    with played(monkeypatch, suppressions=known) as debugger:
        log, errors = FindingsLog(run.path), list[int]()
        log.write("start", format=FORMAT, pid=os.getpid(), argv=["python"], born="start")
        recorder = FindingsLogger(log, debugger, 1, lambda: errors.append(1))
        table, other = guarded(debugger, 64), guarded(debugger, 64)
        graph = broken_by_the_second(table, other)
        graph.replay()
        debugger.check()
        before = read_run(run.path).merged()
        for _ in range(3):
            graph.replay()
        after = read_run(run.path).merged()
        debugger.check()
        recorder.summarise()
        at_the_end = read_run(run.path).merged()
    assert (len(before.findings), before.hidden, errors) == (1, (), [1])
    assert (after.findings, after.notes, len(after.hidden)) == ((), (), 1)
    (hidden,), (count,) = at_the_end.hidden, at_the_end.suppressions
    assert (hidden.culprit.name, hidden.occurrences) == ("fill", count.sightings)
    assert (at_the_end.suppressed, at_the_end.findings) == (count.sightings, ())


def test_a_fault_of_the_looking_reaches_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("ours")

    with played(monkeypatch) as debugger:
        table, other = guarded(debugger, 64), guarded(debugger, 64)
        graph = broken_by_the_second(table, other)
        graph.replay()
        graph.replay()
        monkeypatch.setattr(host_probe._Copies, "after", broken)
        graph.replay()
        assert other.tolist() == [3] * 64
        faults = debugger.report(quiet=True).facts.faults
    assert any("ours" in fault for fault in faults)


def test_a_replay_that_raises_is_looked_at_again(monkeypatch: pytest.MonkeyPatch) -> None:
    with played(monkeypatch) as debugger:
        table, switch = guarded(debugger, 64), guarded(debugger, 1)
        graph = sg.HostGraph()
        with sg.host_graph(graph):
            graph.call(lambda: 1 // (1 - switch.item()))
            overflow(table, 1)
            table.add_(1)
        graph.replay()
        graph.replay()
        switch.fill_(1)
        assert only(debugger.findings).revision == 1
        with pytest.raises(ZeroDivisionError):
            graph.replay()
        assert only(debugger.findings).culprit.status == "candidate"
        switch.fill_(0)
        graph.replay()
        found = only(debugger.findings)
    assert (found.culprit.status, found.culprit.node, found.culprit.seen_in) == ("confirmed", 1, 4)


class Looks:
    """Notes which replays of a graph were probed."""

    def __init__(self, model: Graph) -> None:
        self.probes: list[int] = []
        self._model, self._probe = model, None
        looks = self

        class Noting(Graph):
            @property
            def probe(self) -> Probe | None:
                return None

            @probe.setter
            def probe(self, probe: Probe | None) -> None:
                if probe is not None:
                    looks.probes.append(self.replays)

        model.__class__ = Noting
