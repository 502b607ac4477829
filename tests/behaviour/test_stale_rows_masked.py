"""SG103 where the graph selects rows by a mask: stale rows that the mask hides are no error, those that it lets through
are."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from playing import played
from programs import only

import shadowgraph as sg

pytest.importorskip("triton")

from support.masked_kernels import store_live

ROWS, SLOTS = 6, 80
Body = Callable[["Masked"], torch.Tensor]


@pytest.fixture(params=["isolate", "faithful"])
def debugger(request: pytest.FixtureRequest) -> Iterator[sg.Debugger]:
    with sg.debug(backend="host", layout=request.param) as made:
        yield made


class Masked:
    """A batch whose padded slots stay as they were; positions and lengths are padded, and the graph is told how many
    rows are live."""

    def __init__(self, debugger: sg.Debugger, body: Body, late: int = 0) -> None:
        with debugger.guard():
            self.slots, self.positions = (torch.zeros(ROWS, dtype=torch.int64) for _ in range(2))
            self.lens = torch.ones(ROWS, dtype=torch.int64)
            self.live = torch.zeros((), dtype=torch.int64)
            self.cache = torch.zeros(SLOTS)
        self.row, self.table = torch.arange(ROWS), torch.arange(50.0)
        self.late = late
        debugger.name("batch", self)
        self.graph = sg.HostGraph()
        with sg.host_graph(self.graph):
            self.total = body(self)

    def store(self, slots: torch.Tensor) -> torch.Tensor:
        self.cache[slots] = self.table[self.positions] + self.lens
        return self.cache[1:].sum()

    def step(self, count: int, at: int) -> None:
        self.live.fill_(count + self.late)
        for tensor, padding, first in ((self.positions, 1, 3), (self.lens, 1, 4)):
            tensor[:count].copy_(torch.arange(count) + at + first)
            tensor[count:].fill_(padding)
        self.slots[:count].copy_(torch.arange(count) * 5 + at + 1)
        self.graph.replay()
        self.total.item()

    def steps(self) -> None:
        for at, count in enumerate((6, 3, 5, 2)):
            self.step(count, at)


def where(batch: Masked) -> torch.Tensor:
    return batch.store(torch.where(batch.row < batch.live, batch.slots, 0))


def filled(batch: Masked) -> torch.Tensor:
    return batch.store(batch.slots.masked_fill(batch.row >= batch.live, 0))


def moved(batch: Masked) -> torch.Tensor:
    """The mask comes behind arithmetic, whose results outlast no replay."""
    return batch.store(torch.where(batch.row < batch.live, batch.slots * 1 + 1, 0))


def looked_up(batch: Masked) -> torch.Tensor:
    return (batch.table[batch.positions] + torch.where(batch.row < batch.live, batch.table[batch.slots], 0)).sum()


def kernel(batch: Masked) -> torch.Tensor:
    store_live[(ROWS,)](batch.cache, batch.slots, batch.lens, batch.live)
    return (batch.cache[1:] + 0).sum() + batch.positions.sum()


def stored_in(debugger: sg.Debugger) -> dict[tuple[str, str], str]:
    assert debugger.report(quiet=True).facts.faults == {}
    return {(found.buffer.name, found.severity): found.confidence for found in (*debugger.findings, *debugger.notes)}


BODIES = [where, filled, moved, looked_up, kernel]
NOTE = {("batch.slots", "note"): "medium"}
ERROR = {("batch.slots", "error"): "high"}


@pytest.mark.parametrize("lenient", [True, False])
@pytest.mark.parametrize("body", BODIES)
def test_the_graph_hides_them(debugger: sg.Debugger, body: Body, lenient: bool) -> None:
    batch = Masked(debugger, body)
    if lenient:
        debugger.runner.adjust(stale_rows="note")
    batch.steps()
    assert stored_in(debugger) == NOTE


@pytest.mark.parametrize("lenient", [True, False])
@pytest.mark.parametrize("body", [where, filled, moved, kernel])
def test_a_mask_that_is_off_by_one_lets_a_row_through(debugger: sg.Debugger, body: Body, lenient: bool) -> None:
    batch = Masked(debugger, body, late=1)
    if lenient:
        debugger.runner.adjust(stale_rows="note")
    batch.steps()
    found = only(debugger.findings)
    assert (found.code, found.buffer.name, found.confidence, found.replay) == ("SG103", "batch.slots", "high", 2)
    assert [(r.first, r.last) for r in found.detail.stale] == [(3, 5)]


def test_a_mask_that_lets_a_row_through_later(debugger: sg.Debugger) -> None:
    """A note becomes an error with the replay that shows it."""
    batch = Masked(debugger, where)
    batch.step(6, 0)
    batch.step(3, 1)
    assert stored_in(debugger) == NOTE
    batch.late = 1
    batch.step(2, 2)
    found = only(debugger.findings)
    assert (found.buffer.name, found.severity) == ("batch.slots", "error")


def test_a_mask_of_one_use_does_not_hide_another_use(debugger: sg.Debugger) -> None:
    batch = Masked(debugger, lambda batch: where(batch) + (batch.cache[batch.slots] * batch.slots).sum())
    batch.steps()
    assert stored_in(debugger) == ERROR


def test_a_result_that_the_program_holds_is_not_hidden(debugger: sg.Debugger) -> None:
    kept = []

    def body(batch: Masked) -> torch.Tensor:
        kept.append(batch.slots * 2)
        return batch.store(torch.where(batch.row < batch.live, kept[0], 0))

    Masked(debugger, body).steps()
    assert stored_in(debugger) == ERROR


def test_a_mask_that_is_made_from_the_rows_themselves(debugger: sg.Debugger) -> None:
    batch = Masked(debugger, lambda batch: batch.store(torch.where(batch.slots > 0, batch.slots, 0)))
    batch.steps()
    assert stored_in(debugger) == ERROR


def test_declared_rows_need_no_effect(debugger: sg.Debugger) -> None:
    batch = Masked(debugger, where)
    debugger.padding(batch.slots, "refresh")
    batch.steps()
    assert stored_in(debugger) == ERROR


def test_memory_is_as_without(debugger: sg.Debugger) -> None:
    runs = []
    for watched in (True, False):
        batch = Masked(debugger, where)
        if not watched:
            debugger.padding(batch.slots, "dont_care")
        batch.steps()
        runs.append((batch.cache.tolist(), batch.slots.tolist(), batch.total.item()))
    assert runs[0] == runs[1]


def test_it_is_tried_beside_an_experiment_of_another_kind() -> None:
    with sg.debug(backend="host", undefined=True) as debugger:
        batch = Masked(debugger, where)
        batch.steps()
        assert stored_in(debugger) == NOTE
        assert "SG107) was tried" in str(debugger.report(quiet=True))


def test_in_sync_mode_the_error_is_raised() -> None:
    with sg.debug(backend="host", sync=True) as debugger:
        batch = Masked(debugger, where, late=1)
        batch.step(6, 0)
        with pytest.raises(sg.FindingsError, match="SG103"):
            batch.step(3, 1)
        assert only(debugger.findings).code == "SG103"


@pytest.mark.parametrize("late", [0, 1])
def test_a_graph_that_cannot_run_twice(debugger: sg.Debugger, late: int) -> None:
    """Which rows the mask lets through is not known then."""

    def body(batch: Masked) -> torch.Tensor:
        batch_graph[0].call(lambda: None)
        return where(batch)

    batch_graph: list[sg.HostGraph] = []
    plain = sg.HostGraph.__init__

    class Noted(sg.HostGraph):
        def __init__(self) -> None:
            plain(self)
            batch_graph.append(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sg, "HostGraph", Noted)
        batch = Masked(debugger, body, late)
    batch.steps()
    assert stored_in(debugger) == NOTE


DEVICE = {where: NOTE, filled: NOTE, moved: NOTE, looked_up: NOTE, kernel: {}}


@pytest.mark.parametrize("body", BODIES)
def test_on_a_device_operators_tell(monkeypatch: pytest.MonkeyPatch, body: Body) -> None:
    """A kernel may store what it was given, so that nothing is said of its inputs."""
    with played(monkeypatch) as debugger:
        Masked(debugger, body).steps()
        debugger.check()
        assert stored_in(debugger) == DEVICE[body]


@pytest.mark.parametrize("what", ["used beside", "kept", "own mask", "mixed", "reordered", "spread"])
def test_on_a_device_only_a_mask_of_every_use_counts(monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    kept = []

    def body(batch: Masked) -> torch.Tensor:
        live = batch.row < batch.live
        if what == "used beside":
            return where(batch) + (batch.cache[batch.slots] * batch.slots).sum()
        if what == "kept":
            kept.append(batch.slots * 2)
            return batch.store(torch.where(live, kept[0], 0))
        if what == "own mask":
            return batch.store(torch.where(batch.slots > 0, batch.slots, 0))
        if what == "reordered":
            return batch.store(torch.where(live, batch.slots[batch.row.flip(0)], 0))
        if what == "spread":
            return torch.where(live[:, None], batch.slots[None] + batch.row[:, None], 0).sum() + batch.store(batch.row)
        return batch.store(torch.where(live, batch.slots.cumsum(0) % SLOTS, 0))

    with played(monkeypatch) as debugger:
        Masked(debugger, body).steps()
        debugger.check()
        assert stored_in(debugger) == ERROR
