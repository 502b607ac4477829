"""A device that is lost while a launch of ours is refused: what had reached the host before is judged all the same."""

from __future__ import annotations

from typing import Any

import pytest
from playing import played
from programs import guarded, only, overflow, reader_of


def test_what_arrived_before_a_refused_launch_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with played(monkeypatch) as debugger:
        table = guarded(debugger, 64)
        debugger.name("table", table)
        graph, _kept = reader_of(table)
        engine, asked = debugger.monitor.context.engine, []
        check = engine.check

        def refuses(tag: Any, *args: Any, **kwargs: Any) -> None:
            asked.append(tag.at)
            if tag.at == "replay_end":
                raise RuntimeError("CUDA error: an illegal memory access was encountered")
            check(tag, *args, **kwargs)

        monkeypatch.setattr(engine, "check", refuses)
        overflow(table, 2)
        graph.replay()
        assert asked[-2:] == ["replay_begin", "replay_end"], "the device was lost when the replay had begun"
        assert debugger.monitor.lost is not None
        found = only(debugger.findings)
    assert (found.code, found.past_end, found.phase, found.replay) == ("SG101", 8, "prepare", 1)
