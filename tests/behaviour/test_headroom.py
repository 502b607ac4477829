"""SG113: buffers that grow toward their end, and the high-water marks of all that graphs read."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest
import torch
from captures import graph_over, silent
from programs import guarded, only

import shadowgraph as sg
from shadowgraph.demos.kernels import fill
from shadowgraph.model.findings import Batch
from shadowgraph.model.high_water import HighWaterMark
from shadowgraph.monitor.sampling import observation
from shadowgraph.tracking import passing

MAX_BS, TOPK, CTX, STEPS = 2, 4, 48, 3


class Draft:
    """After EAGLE's draft: a row of indices for each draft step, whose writer has a factor that its size may lack.

    Parameters
    ----------
    knows
        Whether something tells the batch of each replay, and the limits.
    """

    def __init__(self, debugger: sg.Debugger, fixed: bool = False, knows: bool = True, kernel: bool = True) -> None:
        self.debugger, self.kernel = debugger, kernel
        self.width = MAX_BS * CTX * (TOPK if fixed else 1)
        self.kv_indices = guarded(debugger, STEPS, self.width)
        debugger.name("draft", self)
        self.graph = graph_over(lambda: [row.sum() for row in self.kv_indices])
        self.batches: dict[int, Batch] = {}
        if knows:
            batches = self.batches  # a source is held as long as the debugger, which this object holds
            debugger.adapter.provide_batches(lambda graph, replay: batches.get(replay))
            debugger.adapter.limit_batches(requests=MAX_BS, longest=CTX)

    def needs(self, step: int, lens: Sequence[int]) -> int:
        return TOPK * (sum(lens) + len(lens) * (step + 1))

    def step(self, *lens: int) -> None:
        self.batches[self.graph.model.replays + 1] = Batch(len(lens), MAX_BS, lens)
        with self.debugger.prepare(self.graph):
            for step in range(STEPS):
                count = self.needs(step, lens)
                if self.kernel:
                    fill[(1,)](self.kv_indices, step * self.width, count, 1, BLOCK=1024)
                else:
                    self.kv_indices[step, :count].copy_(torch.arange(count))
        self.graph.replay()


def marks(debugger: sg.Debugger) -> dict[str, HighWaterMark]:
    return {mark.buffer: mark for mark in debugger.report(quiet=True).facts.high_water}


# -- what grows, and where that leads --------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", ["isolate", "faithful"])
def test_the_length_at_which_it_overflows_is_told_before_it_does(layout: str) -> None:
    with sg.debug(layout=layout) as debugger:
        draft = Draft(debugger)
        length = 2
        while not debugger.notes:
            length += 1
            draft.step(length, 1)
            assert draft.needs(2, (length, 1)) <= draft.width, "invalid: it has overflowed without a note"
        found: Any = only(debugger.notes)
        assert not debugger.findings
        while draft.needs(2, (length + 1, 1)) <= draft.width:
            length += 1
            draft.step(length, 1)
        assert not debugger.findings
        draft.step(length + 1, 1)
        overrun: Any = only(debugger.findings)
        assert only(debugger.notes).occurrences == 1
    assert (overrun.code, overrun.phase) == ("SG101", "prepare")
    assert (found.code, found.severity, found.phase, found.confidence) == ("SG113", "note", "prepare", "high")
    assert (found.graph, found.replay, found.detected_at) == (draft.graph.model.name, 7, "replay_begin")
    detail = found.detail
    assert (found.buffer.name, found.buffer.nbytes, detail.row) == ("draft.kv_indices", draft.width * 4, 2)
    assert found.buffer.address == draft.kv_indices[2].data_ptr()
    assert found.bytes is None
    assert (found.culprit.name, found.culprit.status) == ("fill", "confirmed")
    assert (found.culprit.stack[0].function, found.batch.lengths) == ("step", (9, 1))
    assert (detail.used, detail.capacity, detail.by_row) == (draft.needs(2, (9, 1)), draft.width, False)
    leads = detail.forecast
    assert (leads.driver, leads.now, leads.exact) == ("sum of lengths", 10, True)
    assert leads.overflows_at == sum(overrun.batch.lengths) == length + 2
    assert (leads.limit, leads.at_limit) == (MAX_BS * CTX, TOPK * (MAX_BS * CTX + MAX_BS * 3))
    assert leads.points[-1] == (10, detail.used)
    assert found.message == (
        "SG113 headroom: draft.kv_indices[2] (int32[96]) will overflow at a sum of lengths of 19, of the 96 that "
        f"the limits allow; it held 64 of 96 entries while preparing replay 7 of {found.graph}"
    )


@pytest.mark.parametrize("kernel", [True, False])
def test_its_fixed_twin_has_room_for_the_limits(kernel: bool) -> None:
    with sg.debug() as debugger:
        draft = Draft(debugger, fixed=True, kernel=kernel)
        for length in range(1, CTX - STEPS):
            draft.step(length, length)
        assert silent(debugger)
        last = marks(debugger)["draft.kv_indices[2]"]
    assert last.used == draft.needs(2, (CTX - STEPS - 1,) * 2) > draft.width / 2
    assert last.batch is not None
    assert (last.batch.size, last.batch.padded_to, last.batch.longest, last.batch.tokens) == (
        2,
        2,
        CTX - 4,
        2 * CTX - 8,
    )
    assert (last.steps, last.replay, last.source) == (CTX - STEPS - 2, CTX - STEPS - 1, "prepare")


def test_requests_that_join_are_part_of_the_relation() -> None:
    """Each request adds entries of its own, beside those of its tokens."""
    with sg.debug() as debugger:
        draft = Draft(debugger, kernel=False)
        for length in (2, 3, 4, 5):
            draft.step(length)
        draft.step(3, 3)
        draft.step(4, 3)
        assert silent(debugger)
        draft.step(4, 4)
        draft.step(5, 4)
        found: Any = only(debugger.notes)
    leads = found.detail.forecast
    assert (leads.driver, leads.exact, leads.limit) == ("sum of lengths", True, MAX_BS * CTX)
    assert found.detail.row == 2
    assert draft.needs(2, (leads.overflows_at, 0)) > draft.width >= draft.needs(2, (leads.overflows_at - 1, 0))


def grow(debugger: sg.Debugger, capacity: int, uses: Iterable[int], *more: int) -> torch.Tensor:
    """A graph over a flat buffer, of which each step writes so many entries."""
    indices = guarded(debugger, capacity, *more)
    owner = type("Owner", (), {})()
    owner.indices = indices
    debugger.name("attn", owner)
    graph = graph_over(lambda: indices * 2)
    for use in uses:
        indices[:use].copy_(torch.arange(use).reshape(-1, *[1] * len(more)))
        graph.replay()
    indices.owner = owner  # type: ignore[attr-defined]
    return indices


def test_without_a_batch_there_are_marks_and_no_note() -> None:
    """Ten steps of steady growth: whether the program stops where the buffer ends is not known."""
    with sg.debug() as debugger:
        kept = grow(debugger, 100, range(6, 85, 6))
        assert silent(debugger)
        assert (marks(debugger)["attn.indices"].used, kept.numel()) == (84, 100)


def test_a_table_fills_by_the_width_of_its_rows() -> None:
    """A page table: rows for requests, which the longest one fills."""
    with sg.debug() as debugger:
        table = guarded(debugger, 4, 40)
        graph = graph_over(lambda: table.sum(1))
        batches: dict[int, Batch] = {}
        debugger.adapter.provide_batches(lambda graph, replay: batches.get(replay))
        debugger.adapter.limit_batches(requests=4, longest=64)
        for step, pages in enumerate(range(2, 36, 3), 1):
            batches[step] = Batch(3, 4, (pages,) * 3)
            table[:3, :pages].copy_(torch.ones(3, pages))
            graph.replay()
        found: Any = only(debugger.notes)
        (mark,) = debugger.report(quiet=True).facts.high_water
    assert (found.detail.by_row, found.detail.capacity) == (True, 40)
    assert (mark.used, mark.capacity, mark.by_row, mark.least) == (35, 40, True, 5)


def test_what_the_graph_itself_stores() -> None:
    """A kernel of the graph fills a workspace; how much is in the memory that it reads."""
    with sg.debug() as debugger:
        work = guarded(debugger, 64)
        graph = sg.HostGraph()
        with sg.host_graph(graph):
            fill[(1,)](work, 0, 24, 1, BLOCK=64)
        for _ in range(4):
            graph.replay()
        assert silent(debugger)
        (mark,) = debugger.report(quiet=True).facts.high_water
    assert (mark.used, mark.capacity, mark.source) == (24, 64, "graph")


# -- silence ---------------------------------------------------------------------------------------------------------


def lengths_below(limit: int) -> list[int]:
    chance = random.Random(3)
    return [chance.randrange(1, limit) for _ in range(200)]


STEADY: dict[str, Callable[[], Sequence[int]]] = {
    "always the same": lambda: [50] * 40,
    "random": lambda: lengths_below(64),
    "written whole": lambda: [64] * 40,
    "shrinks": lambda: range(64, 0, -2),
    "grows and stops": lambda: [*range(4, 28, 4), *[24] * 20],
    "grows in turns": lambda: [*range(4, 28, 4)] * 6,
    "far from the end": lambda: range(1, 20),
    "grows by jumps": lambda: [1, 2, 3, 4, 5, 6, 7, 40, 41, 42, 43],
}


@pytest.mark.parametrize("uses", STEADY)
def test_steps_that_lead_nowhere(uses: str) -> None:
    with sg.debug() as debugger:
        kept = grow(debugger, 64, STEADY[uses]())
        assert silent(debugger)
        told = marks(debugger)
        assert kept.numel() == 64
    if uses == "written whole":
        assert not told
    else:
        assert told["attn.indices"].used == max(list(STEADY[uses]())[1:])


@pytest.mark.parametrize("size", [1, 4])
def test_a_ring_is_filled_elsewhere_in_each_step(size: int) -> None:
    with sg.debug() as debugger:
        ring = guarded(debugger, 64)
        graph = graph_over(lambda: ring * 2)
        for step in range(40):
            at = step * size % 64
            ring[at : at + size].copy_(torch.arange(size))
            graph.replay()
        assert silent(debugger)


def test_one_that_is_sized_for_the_limits_is_filled_to_its_end() -> None:
    """Lengths go up to the longest that the configuration allows, and the buffer with them."""
    with sg.debug() as debugger:
        indices = guarded(debugger, MAX_BS * CTX)
        graph = graph_over(lambda: indices * 2)
        batches: dict[int, Batch] = {}
        debugger.adapter.provide_batches(lambda graph, replay: batches.get(replay))
        debugger.adapter.limit_batches(requests=MAX_BS, longest=CTX)
        for length in range(1, CTX + 1):
            batches[length] = Batch(MAX_BS, MAX_BS, (length,) * MAX_BS)
            indices[: MAX_BS * length].copy_(torch.arange(MAX_BS * length))
            graph.replay()
        assert silent(debugger)
        (mark,) = debugger.report(quiet=True).facts.high_water
    assert mark.used == mark.capacity == MAX_BS * CTX


def test_inputs_with_an_entry_for_each_request_are_bounded_by_the_batch() -> None:
    with sg.debug() as debugger:
        ids, positions = guarded(debugger, 24), guarded(debugger, 24)
        graph = graph_over(lambda: ids + positions)
        for size in range(1, 25):
            ids[:size].copy_(torch.arange(size))
            positions[:size].copy_(torch.arange(size))
            graph.replay()
        assert silent(debugger)


def test_batch_sizes_that_an_adapter_knows() -> None:
    with sg.debug() as debugger:
        ids = guarded(debugger, 24)
        graph = graph_over(lambda: ids * 2)
        debugger.adapter.provide_batches(lambda graph, replay: Batch(replay, 24, (7,) * replay))
        for size in range(1, 25):
            ids[:size].copy_(torch.arange(size))
            graph.replay()
        assert silent(debugger)


def test_a_fill_with_one_value_is_padding() -> None:
    with sg.debug() as debugger:
        indices = guarded(debugger, 64)
        graph = graph_over(lambda: indices * 2)
        for use in (10, 12, 11):
            indices.zero_()
            indices[:use].copy_(torch.arange(use))
            graph.replay()
        (mark,) = debugger.report(quiet=True).facts.high_water
    assert (mark.used, mark.least, mark.latest, mark.steps) == (12, 11, 11, 2)


def test_parts_of_one_tensor_are_buffers_of_their_own() -> None:
    with sg.debug() as debugger:
        flat = guarded(debugger, 96)
        parts = flat[:32], flat[32:64], flat[64:]
        graph = graph_over(lambda: [part.sum() for part in parts])
        for step in range(1, 12):
            for place, part in enumerate(parts):
                part[: step + place].copy_(torch.arange(step + place))
            graph.replay()
        assert silent(debugger)
        told = debugger.report(quiet=True).facts.high_water
    assert sorted((mark.used, mark.capacity) for mark in told) == [(11, 32), (12, 32), (13, 32)]


def test_a_cache_that_the_graph_appends_to_has_no_mark() -> None:
    with sg.debug() as debugger:
        cache, slot = guarded(debugger, 64), guarded(debugger, 1, dtype=torch.int64)
        graph = graph_over(lambda: cache.index_copy_(0, slot, torch.ones(1, dtype=torch.int32)))
        for step in range(1, 30):
            cache[:step].copy_(torch.arange(step))
            slot.fill_(step)
            graph.replay()
        assert silent(debugger)
        assert not any(mark.capacity == 64 for mark in debugger.report(quiet=True).facts.high_water)


def test_marks_are_of_observed_replays(monkeypatch: pytest.MonkeyPatch) -> None:
    """While replays pass, writes are not seen: a step of which some are missing is none."""
    for name, value in (("QUIET", 6), ("WINDOW", 4), ("PERIOD", 30), ("LONGEST", 1), ("LOOKS_APART", (50, 60))):
        monkeypatch.setattr(observation, name, value)
    with sg.debug(backend="host", watch_eager="sampled") as debugger:
        debugger.monitor.observation.wanted = True
        inputs = guarded(debugger, 64)
        graph = graph_over(lambda: inputs * 2)
        passed = 0
        for step in range(100):
            count = 60 if passing.on else 10 + step % 3
            passed += passing.on
            inputs[:count].copy_(torch.arange(count))
            graph.replay()
        assert 30 < passed < 95, "precondition: most pass, and there are windows"
        assert silent(debugger)
        (mark,) = debugger.report(quiet=True).facts.high_water
        assert debugger.facts().faults == {}
    assert (mark.used, mark.least) == (12, 10)
    assert 6 < mark.steps < 100 - passed


# -- the report ------------------------------------------------------------------------------------------------------


def test_the_report_has_the_fullest_few_and_the_document_all() -> None:
    with sg.debug() as debugger:
        buffers = [guarded(debugger, 20) for _ in range(6)]
        graph = graph_over(lambda: [buffer.sum() for buffer in buffers])
        for step in (1, 2, 3):
            for place, buffer in enumerate(buffers):
                buffer[: step + place].copy_(torch.arange(step + place))
            graph.replay()
        report = debugger.report(quiet=True)
    said = [line for line in str(report).splitlines() if " entries, replay " in line]
    assert len(said) == 4
    assert said[0].startswith("   40 %  ")
    rest = "at least 7, in 2 observed replays, written before the replay"
    assert f"8 of 20 entries, replay 3 of {graph.model.name}; {rest}" in said[0]
    assert "high-water marks of static buffers, in observed replays, 4 of 6 (report --marks lists all)" in str(report)
    document = json.loads(report.to_json())
    assert [mark["used"] for mark in document["high_water"]] == [8, 7, 6, 5, 4, 3]
    assert document["high_water"][0]["source"] == "prepare"


def test_marks_of_memory_that_is_gone_stay() -> None:
    with sg.debug() as debugger:
        kept = grow(debugger, 20, (3, 4, 5))
        assert marks(debugger)["attn.indices"].used == 5
        del kept
        again = grow(debugger, 30, (7, 8, 9))
        told = debugger.report(quiet=True).facts.high_water
        assert again.numel() == 30
    assert sorted((mark.used, mark.capacity) for mark in told) == [(5, 20), (9, 30)]
