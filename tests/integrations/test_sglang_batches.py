"""What is kept of a batch: copies of sizes, lengths and ids, for as many replays as a check may be late."""

from __future__ import annotations

import gc
import weakref
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


NO_LENGTHS = None, torch.ones(2), torch.ones(2, 2, dtype=torch.int64), [1, 2], torch.ones(2, device="meta").long()


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
