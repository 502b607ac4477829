"""The adapter on vLLM's V2 model runner: the graph of a step is known before its inputs are made."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import vllm_runner as fakes
import vllm_runner_v2 as second

import shadowgraph as sg
from shadowgraph.checks.invariants.check import Invariants
from shadowgraph.common.internal_errors import internal_errors
from shadowgraph.integrations import notices
from shadowgraph.integrations.vllm import adapter as vllm_adapter
from shadowgraph.model.findings import Batch


@pytest.fixture
def attachment(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    for name, module in second.modules().items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(vllm_adapter, "installed", lambda: "0.21.0")
    monkeypatch.setattr(vllm_adapter, "_off", False)
    monkeypatch.setattr(vllm_adapter, "_attached", None)
    monkeypatch.setattr(notices, "_told", set())
    made = vllm_adapter.attach()
    assert made is not None
    before = internal_errors.total
    yield made
    assert internal_errors.total == before, internal_errors.counts
    made.take_down()


@pytest.fixture(params=["isolate", "faithful"])
def debugger(request: pytest.FixtureRequest, attachment: Any) -> Iterator[sg.Debugger]:
    with sg.debug(backend="host", layout=request.param) as made:
        made.runner.adjust(stale_rows="note")  # as under `wrap`
        yield made


def served(debugger: sg.Debugger) -> Any:
    cls = sys.modules[second.RUNNER].GPUModelRunner
    with debugger.guard():
        runner = cls(fakes.config(), torch.device("cpu"))
        runner.initialize_kv_cache(fakes.cache_config())
    runner.capture_model()
    return runner


def full(runner: Any, size: int) -> Any:
    return runner.cudagraph_manager.graphs[
        second.BatchExecutionDescriptor(fakes.CUDAGraphMode.FULL, size, size, 1)
    ].model


def test_steps_are_silent_and_have_their_batches(debugger: sg.Debugger, attachment: Any) -> None:
    runner = served(debugger)
    for lengths in ([5, 6, 7, 8], [9, 10, 11], [12], [6, 7], [9, 5, 6, 5]):
        runner.step(lengths)
    runner.step([9], [9])
    assert (full(runner, 4).replays, full(runner, 2).replays) == (3, 2)
    assert debugger.check() == debugger.notes == ()
    assert not debugger.monitor.preparing.anywhere
    ids = ("request-0", "request-1", "request-2")
    assert attachment.hooks.batch_of(full(runner, 4), 2) == Batch(3, 4, (9, 10, 11), ids, 3, 4)
    names = {owner.path for owner in debugger.names.living()}
    assert names >= {
        "runner.input_buffers.seq_lens",
        "runner.block_tables.input_block_tables[0]",
        "runner.kv_caches[0]",
    }
    rules = {each.rule.name for each in debugger.monitor.checks[Invariants].invariants}
    assert rules == {"index_range(0, 24)", "index_range(-1, 96)"}
    assert debugger.facts().faults == {}


def test_all_of_the_preparation_is_for_the_graph(debugger: sg.Debugger) -> None:
    runner = served(debugger)
    seen: list[Any] = []
    tables, manager = runner.block_tables, runner.cudagraph_manager
    gather = tables.gather_block_tables

    def look(*args: Any) -> Any:
        seen.append(debugger.adapter.preparing.graph)
        return gather(*args)

    tables.gather_block_tables = look
    replay = full(runner, 4)
    runner.step([5, 6, 7])
    assert seen == [replay]
    runner.step([9], [9])
    assert seen == [replay, None]
    assert manager is runner.cudagraph_manager
    assert not debugger.monitor.preparing.anywhere


def test_lengths_of_padded_requests_that_are_kept(debugger: sg.Debugger) -> None:
    """A note: its kernels write rows of requests and padded rows in one launch, which is no proof of padding."""
    runner = served(debugger)
    runner.step([5, 6, 7, 8])
    runner.forgets = True
    runner.step([9, 10, 11])
    assert debugger.check() == ()
    (found,) = debugger.notes
    (rows,) = found.detail.stale
    assert (found.code, found.buffer.name) == ("SG103", "runner.input_buffers.seq_lens")
    assert (found.graph, found.replay, rows.first, rows.last) == (full(runner, 4).name, 2, 3, 3)
    assert found.batch.requests == ("request-0", "request-1", "request-2")


@pytest.mark.parametrize(("block", "broken"), [(24, True), (-1, True), (23, False)])
def test_block_numbers_that_are_none(debugger: sg.Debugger, block: int, broken: bool) -> None:
    runner = served(debugger)
    runner.step([5, 6])
    gather = runner.block_tables.gather_block_tables

    def corrupted(*sizes: int) -> Any:
        made = gather(*sizes)
        made[0][0, 3] = block
        return made

    runner.block_tables.gather_block_tables = corrupted
    runner.step([6, 7])
    rules = [found for found in debugger.check() if found.code == "SG109"]
    assert len(rules) == broken
    for found in rules:
        assert (found.buffer.name, found.severity) == ("runner.block_tables.input_block_tables[0]", "error")
        assert (found.phase, found.graph, found.replay) == ("prepare", full(runner, 2).name, 2)
