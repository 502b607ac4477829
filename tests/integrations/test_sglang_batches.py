"""What is kept of a batch: copies of sizes, lengths and ids, for as many replays as a check may be late."""

from __future__ import annotations

import gc
import weakref
from collections import deque
from types import SimpleNamespace

import msgspec
import pytest
import torch

import shadowgraph as sg
from shadowgraph.dumps.redaction import redacted
from shadowgraph.integrations.sglang.batches import Batches
from shadowgraph.model.findings import Batch
from shadowgraph.model.graphs import Graph
from shadowgraph.model.launch_log import LaunchLog
from shadowgraph.model.launch_log_reader import LoggedEvent, contents_of
from shadowgraph.render.text.batch_text import batch_said
from shadowgraph.tracking import launch_recording


def test_a_batch_is_found_by_the_replay_that_it_was_prepared_for() -> None:
    batches, graph = Batches(), Graph(7, "graph#7")
    for size in (1, 2, 3):
        lengths = torch.arange(size, dtype=torch.int32 if size % 2 else torch.int64)
        batches.note(graph, 4, SimpleNamespace(batch_size=size, seq_lens_cpu=lengths, rids=[f"r{size}"]))
        graph.replays += 1
    assert [batches.of(graph, replay) for replay in (1, 2, 3, 4)] == [
        Batch(1, 4, (0,), ("r1",)),
        Batch(2, 4, (0, 1), ("r2",)),
        Batch(3, 4, (0, 1, 2), ("r3",)),
        None,
    ]
    assert batches.of(Graph(8, "graph#8"), 1) is None


NO_LENGTHS = (
    *(None, torch.ones(2), torch.ones(2) > 0, torch.ones(2, 2, dtype=torch.int64), torch.tensor(3)),
    *([1, 2], torch.ones(0, dtype=torch.int64), torch.ones(2, device="meta").long()),
)


@pytest.mark.parametrize("lengths", NO_LENGTHS)
def test_lengths_that_cannot_be_read_are_left_out(lengths: object) -> None:
    batches, graph = Batches(), Graph(1, "graph#1")
    batches.note(graph, 2, SimpleNamespace(batch_size=2, seq_lens_cpu=lengths))
    assert batches.of(graph, 1) == Batch(2, 2)


@pytest.mark.parametrize("redact", [False, True])
def test_the_launch_log_has_the_batch_before_its_replay_is_prepared(
    redact: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = LaunchLog.anonymous(redact)
    monkeypatch.setattr(launch_recording, "current", log)
    graph = Graph(7, "graph#7")
    graph.replays = 17
    lengths = torch.tensor([103, 9], dtype=torch.int64)
    Batches().note(graph, 4, SimpleNamespace(batch_size=2, seq_lens_cpu=lengths, rids=["a", "b"]))
    (row,) = contents_of(log.memory).since(0)
    assert isinstance(row, LoggedEvent)
    assert (row.graph, row.replay) == (7, 18)
    assert row.text == "2 requests, padded to 4" + ("" if redact else "; 103, 9 tokens; ids a, b")


def noted(log: LaunchLog) -> list[str]:
    return [row.text for row in contents_of(log.memory).since(0) if isinstance(row, LoggedEvent)]


def test_steps_share_their_text_until_the_ids_change(monkeypatch: pytest.MonkeyPatch) -> None:
    log = LaunchLog.anonymous()
    monkeypatch.setattr(launch_recording, "current", log)
    batches, graph, ids = Batches(), Graph(7, "graph#7"), ["a", "b"]
    for at in range(3):
        for padded_to in (2, 4):  # two runners
            lengths = torch.tensor([at, 9])
            batches.note(graph, padded_to, SimpleNamespace(batch_size=2, seq_lens_cpu=lengths, rids=list(ids)))
    assert noted(log)[-2:] == [f"2 requests, padded to {size}; 2, 9 tokens; ids a, b" for size in (2, 4)]
    assert log._newest_slot == 2
    batch = SimpleNamespace(batch_size=2, seq_lens_cpu=torch.tensor([3, 1]), rids=ids)
    for ids[1] in ("c", "d\0e"):  # the program's own list, changed in place
        batches.note(graph, 2, batch)
        graph.replays += 1
    batches.note(graph, 2, SimpleNamespace(batch_size=2, seq_lens_cpu=None, rids=[]))
    assert noted(log)[-3:] == [
        "2 requests, padded to 2; 3, 1 tokens; ids a, c",
        "2 requests, padded to 2; 3, 1 tokens; ids a, d e",
        "2 requests, padded to 2",
    ]
    assert [batches.of(graph, at) for at in (1, 2)] == [
        Batch(2, 2, (3, 1), ("a", "c")),
        Batch(2, 2, (3, 1), ("a", "d\0e")),
    ]


class _OwnList(list[str]):
    pass


def test_ids_of_any_kind_are_copied() -> None:
    batches, graph = Batches(), Graph(7, "graph#7")
    for made in (_OwnList, deque, tuple):
        for last in ("b", "c"):
            given = made(["a", "b"])
            batch = SimpleNamespace(batch_size=2, rids=given)
            batches.note(graph, 2, batch)
            if made is not tuple:
                given[1] = last
                batches.note(graph, 2, batch)
                assert batches.of(graph, 1) == Batch(2, 2, (), ("a", last))
        if made is not tuple:
            gone = weakref.ref(given)
            del given, batch
            gc.collect()
            assert gone() is None


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("step", [1, 2], ids=["contiguous", "strided"])
@pytest.mark.parametrize("size", [8, 9, 65, 300])
def test_lengths_of_any_number_are_copied(
    dtype: torch.dtype, step: int, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = LaunchLog.anonymous()
    monkeypatch.setattr(launch_recording, "current", log)
    batches, graph = Batches(), Graph(7, "graph#7")
    lengths = torch.arange(10_000_000, 10_000_000 + size * step, dtype=dtype)[::step]
    expected = tuple(lengths.tolist())
    batch = SimpleNamespace(batch_size=size, seq_lens_cpu=lengths, seq_lens_sum=None, rids=None)
    assert batches.note(graph, 512, batch) == (max(expected), sum(expected))
    batch.seq_lens_sum = 5
    assert batches.note(graph, 512, batch) == (max(expected), 5)
    lengths.zero_()
    found = batches.of(graph, 1)
    assert found == Batch(size, 512, expected)
    assert {type(length) for length in found.lengths} == {int}
    assert noted(log)[0] == f"{size} requests, padded to 512; {', '.join(map(str, expected[:8]))} tokens"


def test_nothing_grows_and_no_tensor_is_kept() -> None:
    batches, graph = Batches(), Graph(1, "graph#1")
    lengths = torch.ones(2, dtype=torch.int64)
    gone = weakref.ref(lengths)
    for graph.replays in range(1000):
        batches.note(graph, 2, SimpleNamespace(batch_size=2, seq_lens_cpu=lengths))
    del lengths
    gc.collect()
    assert gone() is None
    assert [batches.of(graph, replay) is not None for replay in (1, 744, 745, 1000)] == [False, False, True, True]


def test_reading_lengths_is_no_read_by_the_program() -> None:
    """A host read of what a graph changed would be counted."""
    with sg.debug(backend="host") as debugger:
        with debugger.guard():
            lengths = torch.tensor([5, 6, 7])
        graph = sg.HostGraph()
        with sg.host_graph(graph):
            lengths.copy_(lengths * lengths)
        assert lengths.tolist() == [5, 6, 7]
        graph.replay()
        batches = Batches()
        batches.note(graph.model, 4, SimpleNamespace(batch_size=3, seq_lens_cpu=lengths))
        assert batches.of(graph.model, 2) == Batch(3, 4, (25, 36, 49))
        assert debugger.findings == debugger.notes == debugger.inferred == ()
        assert lengths.tolist() == [25, 36, 49]
        assert [read.code for read in debugger.inferred] == ["SG102"], "this one is a read"


def test_a_batch_in_words() -> None:
    assert batch_said(Batch(1, 1)) == "1 request"
    assert batch_said(Batch(2, 4, (16, 1300), ("a", "b"))) == "2 requests, padded to 4; 16, 1,300 tokens; ids a, b"
    assert batch_said(Batch(9, 9, tuple(range(10)))) == "9 requests; 0, 1, 2, 3, 4, 5, 6, 7 and 2 more tokens"


def test_redacted_only_sizes_stay() -> None:
    with sg.debug(backend="host") as debugger:
        debugger.adapter.provide_batches(lambda graph, replay: Batch(1, 2, (9,), (f"{graph.name} {replay}",)))
        with debugger.guard():
            table = torch.zeros(8, dtype=torch.int32)
        debugger.protect(table)
        graph = sg.HostGraph()
        with sg.host_graph(graph):
            table.add_(1)
        graph.replay()
        (found,) = debugger.findings
    assert found.batch == Batch(1, 2, (9,), (f"{graph.model.name} 1",))
    assert redacted(found).batch == Batch(1, 2)
    assert msgspec.json.decode(msgspec.json.encode(found), type=type(found)) == found
