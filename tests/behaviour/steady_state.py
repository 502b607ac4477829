"""What the tests of the steady state share: short periods, a graph to replay, a seen kernel, a count of reads."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from playing import played
from torch.utils._python_dispatch import _get_current_dispatch_mode

import shadowgraph as sg
from shadowgraph.graphs.dispatch.observer_mode import ObserverMode
from shadowgraph.graphs.events import Listener, listeners
from shadowgraph.monitor.sampling import observation

QUIET, WINDOW, PERIOD = 6, 4, 10


@contextmanager
def sampled(
    monkeypatch: pytest.MonkeyPatch, apart: tuple[int, int] = (1, 1), asleep: int = PERIOD, **options: Any
) -> Iterator[sg.Debugger]:
    """A debugger that is steady after a few replays, and then looks at each replay unless looks lie further apart."""
    lengths = (("QUIET", QUIET), ("WINDOW", WINDOW), ("PERIOD", asleep), ("LONGEST", 1), ("LOOKS_APART", apart))
    for name, value in lengths:
        monkeypatch.setattr(observation, name, value)
    with played(monkeypatch, watch_eager="sampled", **options) as made:
        yield made


def is_watched() -> bool:
    """Whether a mode of ours is on this thread's stack."""
    return isinstance(_get_current_dispatch_mode(), ObserverMode)


def reader(table: torch.Tensor) -> sg.HostGraph:
    graph = sg.HostGraph()
    with sg.host_graph(graph):
        table.add_(0)
    return graph


def until_steady(debugger: sg.Debugger, table: torch.Tensor) -> sg.HostGraph:
    """A graph that has replayed until the steady state began in this thread."""
    graph = reader(table)
    for _ in range(QUIET):
        graph.replay()
    assert debugger.monitor.observation.unobserved
    return graph


def touch(table: torch.Tensor) -> None:
    from shadowgraph.demos.kernels import fill

    fill[(1,)](table, 0, 8, 7, BLOCK=8)


def end(table: torch.Tensor) -> int:
    """The address right behind a buffer."""
    return table.data_ptr() + table.nbytes


def breaks(address: int, table: torch.Tensor, switch: list[bool]) -> sg.HostGraph:
    """A graph that is given a buffer, and writes four bytes at an address while it is told to."""
    graph = sg.HostGraph()
    with sg.host_graph(graph):
        table.add_(0)
        graph.call(lambda: ctypes.memset(address, 1, 4) if switch[0] else None, writes=(table,))
    return graph


class Reads(Listener):
    """Counts what is told of reads."""

    def __init__(self) -> None:
        self.count = 0

    def host_read(self, *_: object) -> None:
        self.count += 1


@contextmanager
def heard() -> Iterator[Reads]:
    """Who listens to reads by the host."""
    listener = Reads()
    listeners.append(listener)
    yield listener
    listeners.remove(listener)
