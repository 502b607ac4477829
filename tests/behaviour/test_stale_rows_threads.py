"""SG103 where threads of the program may write to what a graph writes: it is not run again then, which would undo their
writes."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from programs import only
from test_stale_rows_masked import ERROR, NOTE, SLOTS, Body, Masked, filled, kernel, moved, stored_in, where

import shadowgraph as sg
from shadowgraph.graphs.host.reruns import HostReruns

AT = SLOTS - 1  # a slot that no row of the program goes to


class Planner(threading.Thread):
    """Counts up in a slot of the cache, where no operator is seen, whenever the graph is about to run."""

    def __init__(self, cache: torch.Tensor, daemon: bool) -> None:
        super().__init__(name="planner", daemon=daemon)
        self.values, self.count, self.lost = cache.numpy(), 0, 0
        self.turn, self.done, self.over = threading.Semaphore(0), threading.Semaphore(0), False

    def run(self) -> None:
        while True:
            self.turn.acquire()
            if self.over:
                return
            self.lost += int(self.values[AT]) != self.count
            self.count += 1
            self.values[AT] = self.count
            self.done.release()

    def write(self) -> None:
        """Let it write, as if it had been its turn."""
        self.turn.release()
        assert self.done.acquire(timeout=10)


@contextmanager
def planning(batch: Masked, monkeypatch: pytest.MonkeyPatch, daemon: bool = True) -> Iterator[Planner]:
    planner, run = Planner(batch.cache, daemon), HostReruns.run

    def run_beside(reruns: HostReruns, *args: Any) -> None:
        planner.write()
        run(reruns, *args)

    monkeypatch.setattr(HostReruns, "run", run_beside)
    planner.start()
    try:
        yield planner
        planner.write()
    finally:
        planner.over = True
        planner.turn.release()
        planner.join(10)
    assert planner.values[AT] == planner.count


def used_beside(batch: Masked) -> torch.Tensor:
    return where(batch) + (batch.cache[batch.slots] * batch.slots).sum()


@pytest.mark.parametrize("daemon", [True, False])
@pytest.mark.parametrize("lenient", [True, False])
@pytest.mark.parametrize("body", [where, filled, moved])
def test_writes_of_a_thread_stay(monkeypatch: pytest.MonkeyPatch, body: Body, lenient: bool, daemon: bool) -> None:
    with sg.debug(backend="host") as debugger:
        batch = Masked(debugger, body)
        if lenient:
            debugger.runner.adjust(stale_rows="note")
        with planning(batch, monkeypatch, daemon) as planner:
            for at, count in enumerate((6, 3, 5, 2)):
                planner.write()
                batch.step(count, at)
        assert planner.lost == 0
        assert planner.count == 5, "invalid: the graph was run again"
        assert stored_in(debugger) == NOTE


def test_what_no_mask_hides_is_an_error_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    with sg.debug(backend="host") as debugger:
        batch = Masked(debugger, used_beside)
        with planning(batch, monkeypatch) as planner:
            batch.steps()
        assert planner.lost == 0
        assert stored_in(debugger) == ERROR
        found = only(debugger.findings)
    assert (found.code, found.replay) == ("SG103", 2)
    assert [(rows.first, rows.last) for rows in found.detail.stale] == [(3, 5)]


def test_its_fixed_twin(monkeypatch: pytest.MonkeyPatch) -> None:
    class Padded(Masked):
        def step(self, count: int, at: int) -> None:
            self.slots.zero_()
            super().step(count, at)

    with sg.debug(backend="host") as debugger:
        batch = Padded(debugger, used_beside)
        with planning(batch, monkeypatch) as planner:
            batch.steps()
        assert (planner.lost, stored_in(debugger)) == (0, {})


def test_what_a_mask_lets_through_is_not_known_beside_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    with sg.debug(backend="host") as debugger:
        batch = Masked(debugger, where, late=1)
        with planning(batch, monkeypatch):
            batch.steps()
        assert stored_in(debugger) == NOTE


def test_what_a_kernel_hides_is_not_known_beside_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    with sg.debug(backend="host") as debugger:
        batch = Masked(debugger, kernel)
        with planning(batch, monkeypatch) as planner:
            batch.steps()
        assert planner.lost == 0
        assert stored_in(debugger) == NOTE


def test_the_graph_is_run_again_when_the_thread_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    with sg.debug(backend="host") as debugger:
        batch = Masked(debugger, where, late=1)
        with planning(batch, monkeypatch) as planner:
            batch.step(6, 0)
            batch.step(3, 1)
            assert stored_in(debugger) == NOTE
        monkeypatch.undo()
        assert not planner.is_alive()
        batch.step(2, 2)
        found = only(debugger.findings)
    assert (found.buffer.name, found.severity, found.replay) == ("batch.slots", "error", 3)


def test_it_is_run_again_beside_threads_where_that_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    with sg.debug(backend="host", locate="all") as debugger:
        batch, go = Masked(debugger, where, late=1), threading.Event()
        thread = threading.Thread(target=go.wait)
        thread.start()
        batch.steps()
        go.set()
        thread.join(10)
        assert stored_in(debugger) == ERROR
