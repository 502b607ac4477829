"""A device answers late: the graph that a finding is about may have ended by then."""

from __future__ import annotations

import pytest
from playing import played
from programs import guarded, only, overflow, reader_of


def test_what_was_done_in_prepare_is_prepare_still(monkeypatch: pytest.MonkeyPatch) -> None:
    with played(monkeypatch) as debugger:
        table = guarded(debugger, 64)
        debugger.name("table", table)
        graph, _kept = reader_of(table)
        name = debugger.graph(graph).name
        overflow(table, 2)
        graph.replay()
        assert not debugger.supervisor.book.findings, "nothing has arrived yet"
        graph.reset()
        assert not debugger.graphs, "the graph has ended"
        found = only(debugger.check())
    assert (found.code, found.past_end, found.phase, found.replay) == ("SG101", 8, "prepare", 1)
    assert found.graph == name
