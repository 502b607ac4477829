"""What the tests of SG107 share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import shadowgraph as sg


def tried(debugger: sg.Debugger) -> bool:
    return "SG107) was tried" in str(debugger.report(quiet=True))


def step(graph: sg.HostGraph, read: Callable[[], Any], times: int = 4) -> None:
    """Replay a graph and read, some times."""
    for _ in range(times):
        graph.replay()
        read()
