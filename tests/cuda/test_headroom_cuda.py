"""SG113 in real CUDA graphs: what operators wrote of a static input before each replay, and where that leads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
from helpers_cuda import BLOCK, capture, guarded, name_of, only, warm_kernels

import shadowgraph as sg
from shadowgraph.model.findings import Batch

pytestmark = pytest.mark.gpu

MAX_BS, TOPK, CTX = 2, 4, 64


@pytest.fixture(autouse=True)
def warm() -> None:
    warm_kernels()


@pytest.fixture(params=["isolate", "faithful"])
def watching(request: Any) -> Iterator[Any]:
    with sg.debug(backend="cuda", layout=request.param) as debugger:
        yield debugger
        assert debugger.facts().faults == {}


class Indices:
    """An index buffer that a graph reads, which steps fill by `TOPK` entries a token."""

    def __init__(self, debugger: Any, fixed: bool = False, knows: bool = True) -> None:
        self.debugger = debugger
        self.kv_indices = guarded(debugger, MAX_BS * CTX * (TOPK if fixed else 1))
        self.source = torch.arange(MAX_BS * CTX * TOPK, dtype=torch.int32, device="cuda")
        debugger.name("draft", self)
        self.graph, self.out = capture(lambda: self.kv_indices * 2)
        self.batches: dict[int, Batch] = {}
        self.steps = 0
        if knows:
            batches = self.batches  # a source is held as long as the debugger, which this object holds
            debugger.adapter.provide_batches(lambda graph, replay: batches.get(replay))
            debugger.adapter.limit_batches(requests=MAX_BS, longest=CTX)

    def step(self, lens: Sequence[int]) -> None:
        self.steps += 1
        self.batches[self.steps] = Batch(len(lens), MAX_BS, tuple(lens))
        count = TOPK * sum(lens)
        assert count <= self.kv_indices.numel(), "invalid: the operator would refuse"
        with self.debugger.prepare(self.graph):
            self.kv_indices[:count].copy_(self.source[:count])
        self.graph.replay()


def test_the_length_at_which_it_overflows(watching: Any) -> None:
    indices = Indices(watching)
    for length in range(2, 14):
        indices.step([length, length])
    assert watching.check() == ()
    found = only(watching.notes)
    assert (found.code, found.severity, found.phase, found.confidence) == ("SG113", "note", "prepare", "high")
    assert (found.graph, found.buffer.name) == (name_of(indices.graph), "draft.kv_indices")
    assert found.buffer.address == indices.kv_indices.data_ptr()
    assert (found.culprit.name, found.culprit.stack[0].function) == ("aten.copy_.default", "step")
    leads = found.detail.forecast
    assert (leads.driver, leads.exact, leads.overflows_at) == ("sum of lengths", True, MAX_BS * CTX // TOPK + 1)
    assert leads.limit == MAX_BS * CTX
    (mark,) = [mark for mark in watching.facts().high_water if mark.buffer == "draft.kv_indices"]
    assert (mark.used, mark.capacity, mark.replay) == (TOPK * 26, MAX_BS * CTX, 12)
    assert (mark.batch.longest, mark.batch.tokens) == (13, 26)


def test_its_fixed_twin_is_filled_to_its_end(watching: Any) -> None:
    indices = Indices(watching, fixed=True)
    for length in range(2, CTX + 1):
        indices.step([length, length])
    assert watching.check() == ()
    assert watching.notes == ()
    (mark,) = [mark for mark in watching.facts().high_water if mark.buffer == "draft.kv_indices"]
    assert mark.used == mark.capacity == TOPK * MAX_BS * CTX


def test_without_a_batch_there_are_marks_and_no_note(watching: Any) -> None:
    indices = Indices(watching, knows=False)
    for length in range(2, 14):
        indices.step([length, length])
    assert watching.check() == ()
    assert watching.notes == ()
    (mark,) = [mark for mark in watching.facts().high_water if mark.buffer == "draft.kv_indices"]
    assert (mark.used, mark.replay) == (TOPK * 26, 12)


def test_what_a_kernel_writes_is_not_known(watching: Any) -> None:
    from kernels_cuda import put

    indices = guarded(watching, 64)
    watching.name("indices", indices)
    graph, out = capture(lambda: indices * 2)
    for count in range(3, 60, 4):
        put[(1,)](indices, 0, count, BLOCK=BLOCK)
        graph.replay()
    assert watching.check() == ()
    assert watching.notes == ()
    assert out.tolist()[:59] == [2 * at for at in range(59)], "invalid: it was not written"
    assert not [mark for mark in watching.facts().high_water if mark.buffer == "indices"]


@pytest.mark.parametrize("size", [1, 8])
def test_rings_and_random_lengths_are_silent(watching: Any, size: int) -> None:
    ring, inputs = guarded(watching, 64), guarded(watching, 64)
    graph, _ = capture(lambda: (ring * 2, inputs + 1))
    chance = torch.Generator().manual_seed(2)
    for step in range(60):
        at, count = step * size % 64, int(torch.randint(1, 65, (), generator=chance))
        ring[at : at + size].copy_(torch.arange(size, device="cuda"))
        inputs[:count].copy_(torch.arange(count, device="cuda"))
        graph.replay()
    assert watching.check() == ()
    assert "SG113" not in [note.code for note in watching.notes]
