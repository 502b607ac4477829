"""The adapter on the code of vLLM's own V1 runner: silent as it is, and with one line left out, named."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from support import vllm_source as source

import shadowgraph as sg
from shadowgraph.common.internal_errors import internal_errors
from shadowgraph.integrations import notices
from shadowgraph.integrations.vllm import adapter as vllm_adapter
from shadowgraph.model.findings import Batch

pytestmark = pytest.mark.skipif(source.root() is None, reason="needs vLLM's source: VLLM_SOURCE says where it is")
if source.root() is not None:
    import vllm_originals as originals

TABLE = "runner.input_batch.block_table.block_tables[0].block_table.gpu"
DECODES = ([5, 6, 7, 8], [9, 10, 11], [12], [6, 7], [9, 5, 6, 5])


@pytest.fixture
def serving(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Any]]:
    attached: list[Any] = []

    @contextmanager
    def serve(
        mode: str, without: str = "", measured: bool = False, sizes: Any = (4, 2)
    ) -> Iterator[tuple[sg.Debugger, Any]]:
        made = originals.Originals(without)
        for name, module in made.modules().items():
            monkeypatch.setitem(sys.modules, name, module)
        monkeypatch.setattr(vllm_adapter, "installed", lambda: "0.21.0")
        monkeypatch.setattr(vllm_adapter, "_off", False)
        monkeypatch.setattr(vllm_adapter, "_attached", None)
        monkeypatch.setattr(notices, "_told", set())
        attached.append(vllm_adapter.attach())
        with sg.debug(backend="host", layout="faithful") as debugger:
            debugger.runner.adjust(stale_rows="note")  # as under `wrap`
            with debugger.guard():
                runner = made.runners.GPUModelRunner(made.config(mode, sizes), torch.device("cpu"))
                if measured:
                    runner.profile_cudagraph_memory()
                runner.initialize_kv_cache(originals.cache())
            runner.capture_model()
            yield debugger, runner

    before = internal_errors.total
    yield serve
    for attachment in attached:
        attachment.take_down()
    assert internal_errors.total == before, internal_errors.counts


def graph_of(runner: Any, tokens: int, requests: int | None = None) -> Any:
    wrapper = runner.model if requests else runner.model.runnable.pieces[0]
    for descriptor, entry in wrapper.concrete_cudagraph_entries.items():
        if (descriptor.num_tokens, descriptor.num_reqs) == (tokens, requests):
            return entry.cudagraph.model
    raise AssertionError(f"invalid: no graph for {tokens} tokens of {requests} requests")


@pytest.mark.parametrize("mode", ["FULL", "FULL_DECODE_ONLY", "FULL_AND_PIECEWISE", "PIECEWISE"])
@pytest.mark.parametrize("measured", [False, True])
def test_the_original_is_silent(serving: Callable[..., Any], mode: str, measured: bool) -> None:
    with serving(mode, measured=measured) as (debugger, runner):
        for lengths in DECODES:
            originals.step(runner, lengths)
        for lengths, counts in (
            ([3, 1], [3, 1]),
            ([9, 2], [9, 1]),
            ([4, 2], [1, 1]),
            ([7, 3], [3, 1]),
            ([5, 4], [1, 1]),
        ):
            originals.step(runner, lengths, counts)
        replays = sum(graph.replays for graph in debugger.graphs)
        assert replays >= len(DECODES), "invalid: nothing was replayed"
        assert debugger.check() == debugger.notes == ()
        assert not debugger.monitor.preparing.anywhere
        assert debugger.facts().faults == {}


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("mode", ["FULL", "FULL_AND_PIECEWISE", "PIECEWISE"])
def test_continuous_batching_is_silent(serving: Callable[..., Any], mode: str, seed: int) -> None:
    """Requests come and go; prefills are cut into chunks, some of which are larger than any graph."""
    chance = random.Random(seed)
    with serving(mode, measured=True, sizes=(1, 2, 4, 8)) as (debugger, runner):
        requests: list[list[int]] = []  # length, prompt, end
        for _ in range(200):
            requests = [each for each in requests if each[0] < each[2]]
            while len(requests) < 4 and (not requests or chance.random() < 0.4):
                requests.append([0, chance.randint(1, 12), chance.randint(14, 31)])
            counts, left = [], 16
            for at, each in enumerate(requests):
                prefill = each[1] - each[0]
                count = 1 if prefill <= 0 else min(prefill, chance.choice([2, 4, 12]), left - (len(requests) - at - 1))
                counts.append(max(1, count))
                left -= counts[-1]
                each[0] += counts[-1]
            originals.step(runner, [each[0] for each in requests], counts)
        assert sum(graph.replays for graph in debugger.graphs) > 100, "invalid: little was replayed"
        assert debugger.check() == debugger.notes == ()
        assert debugger.facts().faults == {}


LINES = {
    TABLE: "blk_table_tensor[num_reqs:num_reqs_padded].fill_(NULL_BLOCK_ID)",
    "runner.seq_lens": "self.seq_lens[num_reqs:].fill_(0)",
    "runner.positions": "self.positions[num_scheduled_tokens:num_input_tokens].zero_()",
}


@pytest.mark.parametrize("name", LINES)
@pytest.mark.parametrize("mode", ["FULL", "FULL_DECODE_ONLY", "FULL_AND_PIECEWISE"])
def test_without_a_line_that_resets_padded_rows(serving: Callable[..., Any], name: str, mode: str) -> None:
    with serving(mode, without=LINES[name]) as (debugger, runner):
        originals.step(runner, [5, 6, 7, 8])
        assert debugger.findings == ()
        originals.step(runner, [9, 10, 11])
        (found,) = debugger.check()
    graph = graph_of(runner, 4, 4)
    (rows,) = found.detail.stale
    assert (found.code, found.severity, found.buffer.name) == ("SG103", "error", name)
    assert (found.phase, found.graph, found.replay, rows.first, rows.last) == ("prepare", graph.name, 2, 3, 3)
    ids = ("request-0", "request-1", "request-2")
    assert found.batch == Batch(3, 4, (9, 10, 11), ids, 3, 4)
    assert found.culprit.file.endswith(("gpu_model_runner.py", "utils.py")), (
        "the line of vLLM's that refreshed the others"
    )


@pytest.mark.parametrize("mode", ["FULL", "FULL_AND_PIECEWISE"])
def test_without_the_line_that_keeps_the_starts_of_queries_in_order(serving: Callable[..., Any], mode: str) -> None:
    line = "self.query_start_loc.np[num_reqs + 1:].fill(cu_num_tokens[-1])"
    with serving(mode, without=line) as (debugger, runner):
        runner.query_start_loc.np[:] = 0
        originals.step(runner, [12])
        assert runner.query_start_loc.gpu[:3].tolist() == [0, 1, 0], "invalid: it is in order"
        found = {each.code: each for each in debugger.check()}["SG109"]
    assert (found.severity, found.buffer.name) == ("error", "runner.query_start_loc.gpu")
    assert (found.phase, found.graph, found.replay) == ("prepare", graph_of(runner, 2, 2).name, 1)
    assert found.batch.size == 1


def test_pieces_have_the_batch_of_their_step(serving: Callable[..., Any]) -> None:
    with serving("PIECEWISE") as (_, runner):
        batch_of = vllm_adapter.attach().hooks.batch_of  # type: ignore[union-attr]
        originals.step(runner, [5, 3], [1, 2])
        assert batch_of(graph_of(runner, 4), 1) == Batch(2, 2, (5, 3), ("request-0", "request-1"), 3, 4)
