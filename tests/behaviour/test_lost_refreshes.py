"""SG108 with nothing declared: host code refreshes a twin of the memory that a graph reads, and no code reads it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from captures import graph_over
from playing import played
from programs import guarded, only

import shadowgraph as sg

SLOTS = torch.arange(64.0)
Pair = tuple[torch.Tensor, torch.Tensor]  # what host code refreshes, and what the graph reads


def numbers(step: int) -> torch.Tensor:
    return torch.arange(4) * (step + 1) + step


class Wrapper:
    """An attention wrapper that keeps a clone of the indices that it is given."""

    def __init__(self, indices: torch.Tensor) -> None:
        self.kept = indices.clone()

    def run(self) -> torch.Tensor:
        return SLOTS[self.kept]


def refresh(indices: torch.Tensor, step: int) -> None:
    indices.copy_(numbers(step))


@pytest.mark.parametrize("fixed", [False, True])
@pytest.mark.parametrize("layout", ["isolate", "faithful"])
def test_prepare_refreshes_a_buffer_and_the_graph_reads_its_clone(layout: str, fixed: bool) -> None:
    """The shape of sglang 37975."""
    with sg.debug(layout=layout) as debugger:
        with debugger.guard():
            indices = torch.zeros(4, dtype=torch.int64)
            wrapper = Wrapper(indices)
        debugger.name("indices", [indices])
        debugger.name("wrapper", wrapper)
        graph = graph_over(wrapper.run)
        for step in range(1, 4):
            with debugger.prepare(graph):
                refresh(wrapper.kept if fixed else indices, step)
            graph.replay()
        assert (wrapper.kept.tolist() == numbers(3).tolist()) is fixed, "invalid: the clone is not as it should be"
        if fixed:
            assert debugger.findings == ()
            return
        found: Any = only(debugger.findings)
    assert (found.code, found.severity, found.phase, found.replay) == ("SG108", "error", "prepare", 2)
    assert (found.graph, found.occurrences, found.confidence) == (graph.model.name, 2, "medium")
    assert (found.buffer.name, found.bytes.count) == ("wrapper.kept", 32)
    assert (found.culprit.name, found.culprit.stack[0].function) == ("aten.copy_.default", "refresh")
    assert (found.detail.evidence, found.detail.moved, found.detail.refreshes) == ("copy", False, 2)
    assert (found.detail.now.name, found.detail.now.address) == ("indices[0]", indices.data_ptr())
    assert found.reader.name == "aten.index.Tensor"


def by_clone() -> Pair:
    refreshed = torch.zeros(4, dtype=torch.int64)
    return refreshed, refreshed.clone()


def of_the_graphs_memory() -> Pair:
    read = torch.zeros(4, dtype=torch.int64)
    return read.clone(), read


def by_a_copy_in_place() -> Pair:
    refreshed, read = torch.zeros(4, dtype=torch.int64), torch.empty(4, dtype=torch.int64)
    read.copy_(refreshed)
    return refreshed, read


def by_copying_an_object() -> Pair:
    refreshed = torch.zeros(4, dtype=torch.int64)
    return refreshed, copy.deepcopy({"ids": refreshed})["ids"]


def by_a_conversion() -> Pair:
    refreshed = torch.zeros(4, dtype=torch.int64)
    return refreshed, refreshed.to(torch.int32)


@pytest.mark.parametrize(
    "make", [by_clone, of_the_graphs_memory, by_a_copy_in_place, by_copying_an_object, by_a_conversion]
)
def test_memory_that_no_code_tracks(make: Callable[[], Pair]) -> None:
    with sg.debug() as debugger:
        refreshed, read = make()
        graph = graph_over(lambda: SLOTS[read.long()])
        for step in range(1, 4):
            refreshed[:] = numbers(step)
            graph.replay()
        assert not read.any(), "invalid: the graph's memory was refreshed"
        found: Any = only(debugger.findings)
    assert (found.code, found.replay, found.detail.evidence) == ("SG108", 2, "copy")
    assert found.detail.now.address == refreshed.data_ptr()


@pytest.mark.parametrize("device", [False, True])
def test_a_kernel_refreshes_it(device: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a device the checks meet a graph at its first replay."""
    from shadowgraph.demos.kernels import fill

    with played(monkeypatch) if device else sg.debug() as debugger:
        refreshed = guarded(debugger, 4)
        with debugger.guard():
            read = refreshed.clone()
        graph = graph_over(lambda: read * 2)
        for step in range(1, 4):
            fill[(1,)](refreshed, 0, 4, step, BLOCK=256)
            graph.replay()
        found: Any = only(debugger.check())
        assert not read.any(), "invalid: the graph's memory was refreshed"
    assert (found.code, found.replay, found.culprit.name) == ("SG108", 2 + device, "fill")
    assert found.confidence == "medium", "it is inferred"


@pytest.mark.parametrize(
    "refresh_some",
    [
        lambda memory, step: memory.index_copy_(0, torch.tensor([0, 2]), numbers(step)[:2]),
        lambda memory, step: memory.__setitem__(torch.tensor([1, 3]), numbers(step)[2:]),
        lambda memory, step: memory[1:3].fill_(step),
        lambda memory, step: torch.cumsum(torch.full((3,), step), 0, out=memory[1:]),
    ],
)
def test_elements_that_are_refreshed(refresh_some: Callable[[torch.Tensor, int], Any]) -> None:
    with sg.debug() as debugger:
        refreshed, read = by_clone()
        graph = graph_over(lambda: SLOTS[read])
        for step in range(1, 4):
            refresh_some(refreshed, step)
            graph.replay()
        assert refreshed.any(), "invalid: nothing was refreshed"
        assert only(debugger.findings).detail.evidence == "copy"


def test_a_part_of_a_joined_input() -> None:
    """The rest of it is refreshed where the graph reads it."""
    with sg.debug() as debugger:
        prefix, suffix = torch.zeros(4, dtype=torch.int64), torch.zeros(4, dtype=torch.int64)
        read = torch.cat([prefix, suffix])
        graph = graph_over(lambda: SLOTS[read])
        for step in range(1, 4):
            read[:4].copy_(numbers(step))
            suffix.copy_(numbers(step))
            graph.replay()
        assert not read[4:].any(), "invalid: the graph's memory was refreshed"
        found: Any = only(debugger.findings)
    assert (found.buffer.address, found.buffer.nbytes) == (read[4:].data_ptr(), 32)
    assert (found.detail.evidence, found.detail.now.address) == ("copy", suffix.data_ptr())


# -- windows -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [4, 3])
def test_the_front_is_refreshed_and_the_tail_is_read(rows: int) -> None:
    with sg.debug() as debugger:
        buffer = guarded(debugger, 8, dtype=torch.int64)
        debugger.name("ids", [buffer])
        graph = graph_over(lambda: SLOTS[buffer[4:]])
        for step in range(1, 4):
            buffer[:rows].copy_(numbers(step)[:rows])
            graph.replay()
        assert not buffer[4:].any(), "invalid: the tail was refreshed"
        found: Any = only(debugger.findings)
    assert (found.code, found.replay, found.detail.evidence) == ("SG108", 2, "window")
    assert (found.buffer.address, found.buffer.nbytes) == (buffer[4:].data_ptr(), 32)
    assert (found.bytes.first, found.bytes.last) == (0, 8 * rows - 1)
    assert (found.detail.now.name, found.detail.now.nbytes) == ("bytes 0 to 31 of ids[0]", 32)
    assert found.culprit.name == "aten.copy_.default"


def test_another_row_of_a_table_is_refreshed() -> None:
    with sg.debug() as debugger:
        table = guarded(debugger, 3, 4, dtype=torch.int64)
        graph = graph_over(lambda: SLOTS[table[2]])
        for step in range(1, 4):
            table[0] = numbers(step)
            graph.replay()
        found: Any = only(debugger.findings)
    assert (found.code, found.detail.evidence, found.detail.now.address) == ("SG108", "window", table.data_ptr())


def test_a_refresh_of_what_the_graph_reads_takes_back_what_was_seen() -> None:
    """Two sightings more are needed then."""
    with sg.debug() as debugger:
        refreshed, read = by_clone()
        graph = graph_over(lambda: SLOTS[read])
        for step in range(1, 8):
            refreshed.copy_(numbers(step))
            if step == 2:
                read.fill_(1)
            graph.replay()
        found: Any = only(debugger.findings)
    assert (found.replay, found.detail.evidence) == (5, "copy")


# -- lags on purpose ---------------------------------------------------------------------------------------------------


def test_weights_that_lag_behind_are_a_note() -> None:
    """A target network, which follows at the fifth step."""
    with sg.debug() as debugger:
        online = torch.ones(4, 3)
        target = online.clone()
        graph = graph_over(lambda: target * 2)
        for step in range(1, 5):
            online.fill_(step + 1)
            graph.replay()
        note: Any = only(debugger.notes)
        assert (note.code, note.replay, note.detail.refreshes, note.detail.lags) == ("SG108", 2, 2, False)
        assert "was not refreshed" in note.message
        target.copy_(online)
        graph.replay()
        note = only(debugger.notes)
    assert debugger.findings == ()
    assert (note.replay, note.detail.refreshes, note.detail.lags) == (2, 4, True)
    assert "lags behind" in note.message


def test_a_number_for_each_request_is_an_error() -> None:
    """The sampler has a copy of the temperatures."""
    with sg.debug() as debugger:
        temperatures, logits = torch.ones(3), torch.zeros(3, 7)
        copied = temperatures.clone()
        graph = graph_over(lambda: (logits / copied[:, None]).softmax(-1))
        for step in range(4):
            logits.fill_(step)
            temperatures.copy_(torch.tensor([0.5, 1.0, 1.5]) + step)
            graph.replay()
        found: Any = only(debugger.findings)
    assert (found.code, found.replay, found.detail.evidence) == ("SG108", 2, "copy")


def test_an_error_is_withdrawn_once_the_graphs_memory_follows() -> None:
    with sg.debug() as debugger:
        refreshed, read = by_clone()
        graph = graph_over(lambda: SLOTS[read])
        for step in range(1, 4):
            refreshed.copy_(numbers(step))
            graph.replay()
        error = only(debugger.findings)
        read.copy_(refreshed)
        graph.replay()
        assert debugger.findings == ()
        note: Any = only(debugger.notes)
        assert (note.id, note.detail.lags, note.replay) == (error.id, True, 2)
        assert note.revision > error.revision
        for step in range(4, 8):
            refreshed.copy_(numbers(step))
            graph.replay()
        assert debugger.findings == ()
        assert only(debugger.notes).id == error.id, "the pair is given up"


@pytest.mark.parametrize("read_too", [False, True])
def test_an_error_stays_where_the_graphs_memory_gets_other_values(read_too: bool) -> None:
    with sg.debug() as debugger:
        refreshed, read = by_clone()
        graph = graph_over(lambda: SLOTS[read])
        for step in range(1, 4):
            refreshed.copy_(numbers(step))
            graph.replay()
        if read_too:
            assert refreshed.clone().any()
        read.copy_(numbers(7))
        graph.replay()
        assert only(debugger.findings).code == "SG108"
