"""sglang's steps while replays pass: the batch of each is noted, and one larger than all before is watched in full."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import sglang_runners as runners
import torch

import shadowgraph as sg
from shadowgraph import session
from shadowgraph.demos.sglang.host import SGLANG_VERSION, load, sglang_version
from shadowgraph.integrations.sglang.hooks import BATCH, Hooks
from shadowgraph.model.findings import Batch
from shadowgraph.model.launch_log_format import RowKind
from shadowgraph.model.launch_log_reader import LoggedEvent, contents_of
from shadowgraph.monitor.sampling import observation
from shadowgraph.tracking import launch_recording, passing

pytestmark = [
    pytest.mark.sglang,
    pytest.mark.skipif(sglang_version() != SGLANG_VERSION, reason=f"needs sglang {SGLANG_VERSION}"),
]


@pytest.fixture
def debugger(monkeypatch: pytest.MonkeyPatch) -> Iterator[sg.Debugger]:
    """One that lets replays pass after a few."""
    for name, value in (("QUIET", 3), ("WINDOW", 2), ("PERIOD", 4000), ("LOOKS_APART", (50, 60))):
        monkeypatch.setattr(observation, name, value)
    with sg.debug(backend="host", watch_eager="sampled") as made:
        made.monitor.observation.wanted = True
        yield made


@pytest.fixture
def hang(monkeypatch: pytest.MonkeyPatch, debugger: sg.Debugger) -> Iterator[Callable[[Any], Hooks]]:
    with runners.hanging(monkeypatch) as hang:
        yield hang


def drafted(debugger: sg.Debugger, hang: Callable[[Any], Hooks]) -> runners.Draft:
    """An EAGLE draft runner that has had short batches until replays pass."""
    draft = runners.Draft(debugger)
    hang(draft.capture)
    load(runners.DECODE).CudaGraphRunner.capture(draft.runner)
    for at in range(5):
        draft.step([4 + at % 3, 5], ids=["short", f"short-{at}"])
    assert passing.on, "precondition"
    return draft


def test_the_first_long_batch_is_found_with_kernel_replay_and_requests(
    debugger: sg.Debugger, hang: Callable[[Any], Hooks]
) -> None:
    draft = drafted(debugger, hang)
    draft.step([16, 13], ids=["long-a", "long-b"])
    (found,) = debugger.check()
    assert (found.code, found.buffer.name) == ("SG101", "draft.cuda_graph_kv_indices")
    assert (found.phase, found.replay, found.culprit.name) == ("prepare", 6, "generate_draft_decode_kv_indices")
    assert found.culprit.status == "confirmed"
    assert found.batch == Batch(2, 2, (16, 13), ("long-a", "long-b"))


def test_a_long_batch_that_fits_is_silent(debugger: sg.Debugger, hang: Callable[[Any], Hooks]) -> None:
    draft = drafted(debugger, hang)
    draft.step([10, 10])
    assert debugger.monitor.novelty.woken == 1, "precondition"
    assert not debugger.check()
    assert debugger.facts().faults == {}


def test_the_batches_of_replays_that_pass_are_known(debugger: sg.Debugger, hang: Callable[[Any], Hooks]) -> None:
    draft = drafted(debugger, hang)
    (graph,) = debugger.monitor.context.graphs.values()
    for at in range(5):
        assert debugger.monitor.batches.of(graph, at + 1) == Batch(2, 2, (4 + at % 3, 5), ("short", f"short-{at}"))
    assert passing.on, "precondition"
    assert not debugger.monitor.preparing.anywhere
    assert draft.runner.graphs
    log = launch_recording.current
    assert log is not None
    last = [
        row for row in contents_of(log.memory).since(0) if isinstance(row, LoggedEvent) and row.kind is RowKind.BATCH
    ][-1]
    assert (last.text, last.replay) == ("2 requests, padded to 2; 5, 5 tokens; ids short, short-4", 5)


def test_accepted_tokens_beyond_all_before_are_watched(debugger: sg.Debugger, hang: Callable[[Any], Hooks]) -> None:
    draft = drafted(debugger, hang)
    draft.step([4, 5], accepted=[1, 2])
    assert not passing.on
    for _ in range(4):
        draft.step([4, 5], accepted=[1, 2])
    assert passing.on
    draft.step([4, 5], accepted=[4, 1])
    assert not passing.on


@pytest.mark.parametrize("given", [torch.tensor([4, 1]), (4, 1), []])
def test_accepted_tokens_that_are_no_list_on_the_host_are_left_alone(
    debugger: sg.Debugger, hang: Callable[[Any], Hooks], given: Any
) -> None:
    """A tensor's truth would be a read, and of several numbers an error."""
    draft = drafted(debugger, hang)
    draft.step([4, 5], ids=["a"], accepted=given)
    assert passing.on
    assert debugger.monitor.batches.of(next(iter(debugger.monitor.context.graphs.values())), 6) is not None
    assert debugger.facts().faults == {}


def test_nothing_is_kept_of_the_launch_log_of_a_debugger_that_has_ended(
    monkeypatch: pytest.MonkeyPatch, hang: Callable[[Any], Hooks]
) -> None:
    draft = drafted(sg.current(), hang)
    hooks = next(each for each in session.observers if isinstance(each, Hooks))
    log = launch_recording.current
    assert [said.where[0] for said in hooks.batches._latest.texts.values()] == [log]
    sg.uninstall()
    assert hooks.batches._latest.texts == {}
    draft.step([4, 5])


def test_lengths_on_a_device_are_not_read(debugger: sg.Debugger, hang: Callable[[Any], Hooks]) -> None:
    """A read would wait for the device; on "meta" it raises."""
    decode = runners.Decode()
    hooks = hang(runners.capture)
    decode.runner.capture()
    batch = runners.forward_batch([2, 5], seq_lens_cpu=torch.ones(2, dtype=torch.int64, device="meta"), rids=["a"])
    block = hooks._begin(decode.runner, batch)
    assert block is not None
    block.end()
    (graph,) = (each for each in debugger.monitor.context.graphs.values() if each is block.graph)
    assert hooks.batches.of(graph, 1) == Batch(2, 2, (), ("a",))
    assert debugger.monitor.novelty._limits[BATCH][graph.serial][0] == 2
    assert debugger.facts().faults == {}


def test_after_another_capture_the_new_graph_is_meant(debugger: sg.Debugger, hang: Callable[[Any], Hooks]) -> None:
    decode = runners.Decode()
    hooks = hang(runners.capture)
    decode.runner.capture()
    decode.step([2, 5])
    old = decode.runner.graphs[2]
    decode.runner.capture()
    block = hooks._begin(decode.runner, runners.forward_batch([2, 5]))
    assert block is not None
    block.end()
    assert block.graph is decode.runner.graphs[2].model
    assert block.graph is not old.model


def test_a_runner_that_is_gone_is_not_kept(debugger: sg.Debugger, hang: Callable[[Any], Hooks]) -> None:
    decode = runners.Decode()
    hooks = hang(runners.capture)
    decode.runner.capture()
    decode.step([2, 5])
    assert hooks._coming
    gone = weakref.ref(decode.runner)
    graph = weakref.ref(decode.runner.graphs[2])
    del decode
    gc.collect()
    assert (gone(), graph()) == (None, None)
