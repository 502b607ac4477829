"""SG103 on the host: what looks like forgotten padding and is none, and what nobody can know, stays silent."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator

import pytest
import torch
from padding import Batch, told
from programs import only

import shadowgraph as sg

LAYOUTS = ["isolate", "faithful"]


@pytest.fixture(params=LAYOUTS)
def debugger(request: pytest.FixtureRequest) -> Iterator[sg.Debugger]:
    with sg.debug(backend="host", layout=request.param) as made:
        yield made


# -- what looks like it and is none ----------------------------------------------------------------------------------


def test_zeros_and_fills_are_padding_whenever_they_were_written(debugger: sg.Debugger) -> None:
    """Padded once when the batch shrank, and rightly left alone since; in one copy with its rows, or by a fill."""
    batch = Batch(debugger)
    batch.slots[:4].copy_(torch.tensor([7, 0, 0, 0]))
    batch.replay()
    batch.step([6])
    batch.slots.fill_(5)
    batch.step([6])
    batch.step([6])
    assert told(debugger) == []


def test_of_stale_rows_only_those_that_hold_something_are_told(debugger: sg.Debugger) -> None:
    batch = Batch(debugger)
    batch.step([2, 0, 5, 0])
    batch.step([6])
    found = only(debugger.findings)
    assert [(r.first, r.last) for r in found.detail.stale] == [(2, 2)]
    assert found.bytes.count == 8


def test_batch_eight_then_two_then_eight(debugger: sg.Debugger) -> None:
    batch = Batch(debugger, 8, 2)
    for values in (range(1, 9), [6, 5], range(11, 19), [1, 2]):
        batch.step(list(values), padded_to=len(values))
    assert told(debugger) == []


def test_rows_refreshed_one_by_one(debugger: sg.Debugger) -> None:
    """A persistent batch: only the request that changed is written, the rest stays right."""
    batch = Batch(debugger)
    batch.step([2, 3, 5, 7])
    for row in (1, 3, 0):
        batch.lens.fill_(1)
        batch.lens[:4].copy_(torch.tensor([9, 9, 9, 9]))
        batch.slots[row].fill_(8)
        batch.replay()
    assert told(debugger) == []


def test_lengths_of_two_index_buffers(debugger: sg.Debugger) -> None:
    """Packed indices are as long as they need to be; what lies behind is old and nobody's."""
    with debugger.guard():
        wide, narrow = torch.zeros(64, dtype=torch.int32), torch.zeros(64, dtype=torch.int32)
    debugger.name("attn", {"wide": wide, "narrow": narrow})
    graph = sg.HostGraph()
    with sg.host_graph(graph):
        out = wide + narrow
    for longer, shorter in ((60, 60), (50, 20), (10, 5), (63, 1)):
        for buffer, length in ((wide, longer), (narrow, shorter)):
            for first in range(0, length, 5):
                buffer[first : min(first + 5, length)].copy_(torch.arange(1, min(5, length - first) + 1))
        graph.replay()
    assert told(debugger) == []
    del out


def test_what_a_graph_writes_is_not_judged(debugger: sg.Debugger) -> None:
    """Positions that a graph counts up, and ids that another one feeds back."""
    batch = Batch(debugger)
    feed = sg.HostGraph()
    with sg.host_graph(feed):
        batch.slots[:4].add_(1)
    for values in ([2, 3, 5, 7], [6], [1, 2]):
        batch.step(values)
        feed.replay()
    assert told(debugger) == []


def test_what_a_kernel_of_a_graph_stores_is_not_judged(debugger: sg.Debugger) -> None:
    from shadowgraph.demos.kernels import fill

    batch = Batch(debugger, dtype=torch.int32)
    feed = sg.HostGraph()
    with sg.host_graph(feed):
        fill[(1,)](batch.slots, 0, 4, 3, BLOCK=8)
    for values in ([2, 3, 5, 7], [6], [1, 2]):
        batch.step(values)
        feed.replay()
    assert told(debugger) == []


def test_graphs_that_share_inputs_within_a_step(debugger: sg.Debugger) -> None:
    """What was written for the first of a step's graphs is not written again for the second."""
    batch = Batch(debugger)
    second = batch.capture(4)
    for values in ([2, 3, 5, 7], [6], [1, 2]):
        batch.step(values, zero=True)
        second.replay()
    assert told(debugger) == []


def test_written_before_the_first_replay_is_set_up(debugger: sg.Debugger) -> None:
    batch = Batch(debugger)
    batch.slots.copy_(torch.arange(8))
    batch.step([6])
    batch.step([5, 4])
    assert [(r.first, r.last, r.replay) for r in only(debugger.findings).detail.stale] == [(2, 3, 1)], (
        "copied after the capture, for the first replay, and given out with it"
    )


def test_what_was_there_at_the_capture_is_constant(debugger: sg.Debugger) -> None:
    with debugger.guard():
        lens, slots = torch.ones(4, dtype=torch.int64), torch.tensor([9, 9, 9, 9])
    graph = sg.HostGraph()
    with sg.host_graph(graph):
        out = lens + slots
    for count in (2, 1, 2):
        lens.fill_(1)
        lens[:count].copy_(torch.arange(count) + 5)
        slots[:2].copy_(torch.tensor([3, 4]))
        graph.replay()
    assert told(debugger) == []
    del out


# -- writes that nobody saw ------------------------------------------------------------------------------------------


def test_a_write_that_nobody_saw_is_told_by_its_values(debugger: sg.Debugger) -> None:
    batch = Batch(debugger)
    batch.step([2, 3, 5, 7])
    batch.lens.fill_(1)
    batch.lens[:2].copy_(torch.tensor([4, 4]))
    batch.slots[:2].copy_(torch.tensor([6, 6]))
    (ctypes.c_int64 * 2).from_address(batch.slots.data_ptr() + 16)[:] = [1, 1]
    batch.replay()
    assert told(debugger) == []
    batch.step([5])
    assert [(r.first, r.last) for r in only(debugger.findings).detail.stale] == [(1, 1)], "rows 2 and 3: nobody knows"


def test_operators_that_may_leave_rows_alone(debugger: sg.Debugger) -> None:
    batch = Batch(debugger)
    batch.step([2, 3, 5, 7])
    batch.lens.fill_(1)
    batch.lens[:2].copy_(torch.tensor([4, 4]))
    batch.slots.index_copy_(0, torch.tensor([0, 1]), torch.tensor([6, 6]))
    batch.replay()
    batch.step([5])
    assert told(debugger) == [], "which rows it wrote, nobody knows"


def test_nothing_is_known_after_a_pause(debugger: sg.Debugger) -> None:
    batch = Batch(debugger)
    batch.step([2, 3, 5, 7])
    debugger.pause()
    batch.slots[1:4].copy_(torch.tensor([1, 1, 1]))
    debugger.resume()
    batch.step([6])
    assert told(debugger) == []


MASKS = {
    "bool": (torch.bool, True, False),
    "integers": (torch.int64, 1, 0),
    "floats": (torch.float32, 1.0, 0.0),
    "of the padding": (torch.int32, 0, 1),
    "added": (torch.float32, 0.0, float("-inf")),
    "half": (torch.bfloat16, 0.0, -1e9),
}


def masked(debugger: sg.Debugger, kind: str, width: int, whole: bool, lens: bool) -> None:
    """Ids and positions whose padded rows are left as they were, and a mask that says which rows count."""
    dtype, on, off = MASKS[kind]
    shape = (4, width) if width else (4,)
    with debugger.guard():
        ids, positions = torch.zeros(4, dtype=torch.int64), torch.zeros(4, dtype=torch.int64)
        mask, lengths = torch.full(shape, off, dtype=dtype), torch.ones(4, dtype=torch.int64)
    debugger.name("batch", {"ids": ids, "positions": positions, "mask": mask, "lengths": lengths})
    graph = sg.HostGraph()
    with sg.host_graph(graph):
        rows = mask.reshape(4, -1)[:, :1].float()
        out = (ids * 3 + positions)[:, None] * rows + (lengths[:, None] if lens else 0)
    for count in (4, 2, 3):
        fresh = torch.full(shape, off, dtype=dtype)
        fresh[:count] = on
        if width:
            fresh[:count, width - 1] = off
        if whole:
            mask.copy_(fresh)
        else:
            mask[:count].copy_(fresh[:count])
            mask[count:].fill_(off)
        if lens:
            lengths.fill_(1)
            lengths[:count].copy_(torch.arange(count) + 2)
        ids[:count].copy_(torch.arange(count) + 5)
        positions[:count].copy_(torch.arange(count) + 7)
        graph.replay()
    del out


@pytest.mark.parametrize("whole", [True, False], ids=["in full", "by parts"])
@pytest.mark.parametrize("width", [0, 3])
@pytest.mark.parametrize("kind", MASKS)
def test_a_mask_is_no_witness(debugger: sg.Debugger, kind: str, width: int, whole: bool) -> None:
    masked(debugger, kind, width, whole, lens=False)
    assert told(debugger) == []


def test_beside_a_mask_other_witnesses_are_heard(debugger: sg.Debugger) -> None:
    masked(debugger, "integers", 0, whole=False, lens=True)
    assert {name for _, name in told(debugger)} == {'batch["ids"]', 'batch["positions"]'}
    assert {found.detail.padded for found in debugger.findings} == {('batch["lengths"]',)}


def test_flags_of_the_real_rows_are_no_mask(debugger: sg.Debugger) -> None:
    """Ones and zeros among the real rows: what is left in the padded rows of the ids is told."""
    with debugger.guard():
        ids, flags = torch.zeros(4, dtype=torch.int64), torch.zeros(4, dtype=torch.int64)
    debugger.name("batch", {"ids": ids, "flags": flags})
    graph = sg.HostGraph()
    with sg.host_graph(graph):
        out = ids + flags
    for count in (4, 3):
        flags[:count].copy_(torch.tensor([1, 0, 1, 1])[:count])
        flags[count:].fill_(0)
        ids[:count].copy_(torch.arange(count) + 5)
        graph.replay()
    assert told(debugger) == [("SG103", 'batch["ids"]')]
    del out


def test_slots_that_are_padded_with_minus_one_are_a_mask(debugger: sg.Debugger) -> None:
    """As vLLM pads: rows without a slot are stored nowhere, and their tokens may stay."""
    with debugger.guard():
        ids, slots = torch.zeros(4, dtype=torch.int64), torch.full((4,), -1)
        table, cache = torch.arange(64.0).view(32, 2), torch.zeros(33, 2)
    graph = sg.HostGraph()
    with sg.host_graph(graph):
        cache.index_copy_(0, torch.where(slots < 0, 32, slots), torch.nn.functional.embedding(ids, table))
    for count in (4, 2):
        ids[:count].copy_(torch.arange(1, count + 1))
        slots[:count].copy_(torch.arange(count))
        slots[count:].fill_(-1)
        graph.replay()
    assert told(debugger) == []
