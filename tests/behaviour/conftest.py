"""Fixtures of the tests of overruns."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
from overrunning import Open
from playing import played
from steady_state import sampled

import shadowgraph as sg
from shadowgraph.tracking.allocator import host_allocator


@pytest.fixture
def blocks_in_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks follow each other by address: none takes the place of one that an earlier test has given back."""
    gc.collect()  # what an exception of an earlier test holds
    allocator = host_allocator()
    for pool in (allocator.arena, allocator.static_pool):
        monkeypatch.setattr(pool, "_free", {})


@pytest.fixture(params=["stores known", "device", "steady"])
def knowing(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Open:
    """A debugger that knows every store; one that knows launches alone; one of which the steady state has begun."""
    made: dict[str, Open] = {
        "stores known": sg.debug,
        "device": lambda: played(monkeypatch),
        "steady": lambda: sampled(monkeypatch, (100, 200), 4000),
    }
    return made[request.param]


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[sg.Debugger]:
    with played(monkeypatch) as debugger:
        yield debugger
