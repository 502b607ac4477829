"""Where a replay cannot be probed, the first nodes alone are run from one state until one node is left."""

from __future__ import annotations

import math

import pytest
import torch
from playing import played
from programs import guarded, only, overflow

import shadowgraph as sg
from shadowgraph.checks.verdicts import looked
from shadowgraph.graphs.host import probe as host_probe

LAYOUTS = pytest.mark.parametrize("layout", ["isolate", "faithful"])


@pytest.fixture(autouse=True)
def unprobed(monkeypatch: pytest.MonkeyPatch) -> None:
    """No graph can be probed."""

    def refuse(*_: object) -> None:
        raise MemoryError("none left, for a test")

    monkeypatch.setattr(host_probe, "_Copies", refuse)


def chain(table: torch.Tensor, others: list[torch.Tensor], guilty: int, extra: int = 2) -> sg.HostGraph:
    """A node for each of the others, and among them one that writes past the table's end."""
    graph = sg.HostGraph()
    with sg.host_graph(graph):
        for place, other in enumerate(others):
            if place == guilty:
                overflow(table, extra)
            other.add_(1)
        table.add_(1)
    return graph


@LAYOUTS
@pytest.mark.parametrize("guilty", [0, 1, 20, 39])
def test_the_node_is_found(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, layout: str, guilty: int
) -> None:
    with played(monkeypatch, layout=layout) as debugger:
        table, others = guarded(debugger, 64), [guarded(debugger, 8) for _ in range(40)]
        debugger.name("table", table)
        graph = chain(table, others, guilty)
        graph.replay()
        graph.replay()
        first = only(debugger.findings)
        assert first.culprit.status == "candidate"
        graph.replay()
        found = only(debugger.findings)
        graph.replay()
        assert all("none left" in fault for fault in debugger.report(quiet=True).facts.faults)
    assert [int(other[0]) for other in others] == [4] * 40, "only the replays count"
    assert table.tolist() == [place + 2 for place in range(64)]
    assert (found.id, found.revision, found.fingerprint) == (first.id, 2, first.fingerprint)
    culprit = found.culprit
    assert (culprit.status, culprit.name, culprit.node, culprit.seen_in) == ("confirmed", "fill", guilty, 3)
    assert culprit.stack[0].function == "overflow"
    assert culprit.led_by is not None
    assert culprit.led_by.buffer == "table"
    assert culprit.search is not None
    assert (culprit.search.nodes, culprit.search.how) == (42, "removed")
    assert 2 <= culprit.search.runs <= 1 + math.ceil(math.log2(42))
    said = [record.getMessage() for record in caplog.records if record.name == "shadowgraph"]
    assert sum("looked at by running its first nodes only: no memory for copies" in line for line in said) == 1
    assert f"replay 3 by prefixes, {culprit.search.runs} runs of 42 nodes at programs.py" in said[-1]
    assert f"seen in    replay 3, {looked(culprit.search)}" in str(debugger.report(quiet=True))


def test_two_findings_in_one_search(monkeypatch: pytest.MonkeyPatch) -> None:
    with played(monkeypatch) as debugger:
        one, two = guarded(debugger, 64), guarded(debugger, 32)
        others = [guarded(debugger, 8) for _ in range(6)]
        graph = sg.HostGraph()
        with sg.host_graph(graph):
            for place, other in enumerate(others):
                if place in (1, 4):
                    overflow((one, two)[place == 4], 3)
                other.add_(1)
            one.add_(1)
            two.add_(1)
        for _ in range(4):
            graph.replay()
        found = debugger.findings
    assert [(f.culprit.node, f.culprit.status, f.culprit.search.nodes) for f in found] == [
        (1, "confirmed", 10),
        (5, "confirmed", 10),
    ]


def test_the_fixed_twin_is_never_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    with played(monkeypatch) as debugger:
        table, others = guarded(debugger, 64), [guarded(debugger, 8) for _ in range(4)]
        graph = chain(table, others, 2, extra=0)
        for _ in range(4):
            graph.replay()
        assert debugger.check() == ()
        assert debugger.report(quiet=True).facts.faults == {}


def test_damage_that_does_not_happen_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The index that led there is another by the third replay."""
    import triton
    import triton.language as tl

    @triton.jit
    def store(target, place):  # type: ignore[no-untyped-def]
        tl.store(target + tl.load(place), 5)

    with played(monkeypatch) as debugger:
        table, place = guarded(debugger, 64), guarded(debugger, 1)
        graph = sg.HostGraph()
        with sg.host_graph(graph):
            store[(1,)](table, place)
            table.add_(1)
        place.fill_(64)
        graph.replay()
        place.zero_()
        graph.replay()
        assert only(debugger.findings).culprit.status == "candidate"
        graph.replay()
        found = only(debugger.findings)
    assert (found.culprit.status, found.culprit.seen_in, found.revision) == ("not_reproduced", 3, 2)


def test_random_numbers_are_drawn_once(monkeypatch: pytest.MonkeyPatch) -> None:
    results = []
    for locate in ("off", "auto"):
        torch.manual_seed(5)
        with played(monkeypatch, locate=locate) as debugger:
            table = guarded(debugger, 64)
            graph = sg.HostGraph()
            with sg.host_graph(graph):
                noise = torch.rand(16) * torch.rand(16)  # what it is made of is gone when the capture ends
                overflow(table, 1)
                total = noise.cumsum(0)
                table.add_(1)
            seen = []
            for _ in range(5):
                graph.replay()
                seen.append((noise.tolist(), total.tolist(), table.tolist()))
            found = only(debugger.findings)
            assert (found.culprit.status == "confirmed") == (locate == "auto")
        results.append(seen)
    assert results[0] == results[1]


@pytest.mark.parametrize("what", ["host code", "no room", "moving guards"])
def test_what_must_not_run_again_keeps_its_candidates(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, what: str
) -> None:
    options = {"host code": {}, "no room": {"locate_memory": 4096}, "moving guards": {"layout": "faithful"}}[what]
    ran: list[int] = []
    with played(monkeypatch, **options) as debugger:
        table, large = guarded(debugger, 64), guarded(debugger, 4096)
        graph = sg.HostGraph()
        with sg.host_graph(graph):
            if what == "host code":
                graph.call(lambda: ran.append(1))
            if what == "moving guards":
                first = large + 1
                large.copy_(first)
                del first
                large.copy_(large * 2)
            large.add_(1)
            overflow(table, 1)
            table.add_(1)
        for _ in range(6):
            graph.replay()
        found = only(debugger.findings)
    assert (found.culprit.status, found.revision) == ("candidate", 1)
    assert len(ran) == (6 if what == "host code" else 0)
    said = next(r.getMessage() for r in caplog.records if "no closer look" in r.getMessage())
    why = {
        "host code": "node 0 runs host code, which must not run twice",
        "no room": "there is no room for copies of the ",
        "moving guards": "tensors of it take each other's memory, so that guards move while it runs",
    }[what]
    assert f"no memory for copies; {why}" in said


def test_write_sets_need_a_look_behind_every_node(monkeypatch: pytest.MonkeyPatch) -> None:
    with played(monkeypatch) as debugger:
        table, others = guarded(debugger, 64), [guarded(debugger, 8) for _ in range(4)]
        graph = chain(table, others, 2)
        graph.replay()
        graph.replay()
        handle = debugger.locate(graph)
        graph.replay()
        found = only(debugger.findings)
    assert found.culprit.node == 2
    assert handle.done
    assert handle.write_sets is None
    assert handle.outcome is not None
    assert (handle.outcome.refused, handle.outcome.search) == ("no memory for copies", found.culprit.search)
