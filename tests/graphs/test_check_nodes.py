"""Check nodes beside the device: what a debugger's start and a forked child do with graphs of before."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import pytest

from shadowgraph.common.errors import DeviceLostError
from shadowgraph.graphs.cuda.check_nodes import CheckNodes


def made(live: int = 0, listed: Any = None) -> CheckNodes:
    watches: Any = SimpleNamespace(live=live, counts=lambda: {7: (12, 12)})
    return CheckNodes(watches, listed)


@pytest.mark.parametrize(("live", "waits"), [(0, 0), (3, 1)])
def test_a_start_waits_for_replays_of_known_graphs_only(live: int, waits: int) -> None:
    waited: list[None] = []
    made(live).begin(lambda: waited.append(None))
    assert len(waited) == waits


def test_a_forked_child_that_collects_a_graph_makes_no_call_of_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    listed = SimpleNamespace(halt=lambda: calls.append("halt"), go_on=lambda: calls.append("go on"))
    checks = made(listed=listed)
    checks.halt()
    checks.go_on()
    assert calls == ["halt", "go on"]
    monkeypatch.setattr(os, "getpid", lambda: -1)
    checks.halt()
    checks.go_on()
    assert calls == ["halt", "go on"]


def test_a_lost_device_has_nothing_to_halt() -> None:
    def lost() -> None:
        raise DeviceLostError("the device is lost")

    checks = made(listed=SimpleNamespace(halt=lost, go_on=lost))
    checks.halt()
    checks.go_on()
