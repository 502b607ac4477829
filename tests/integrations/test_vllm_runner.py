"""The adapter on vLLM's V1 model runner: names, padding, rules, graphs and batches of steps and of pieces, ends."""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
import vllm_runner as fakes

import shadowgraph as sg
from shadowgraph import session
from shadowgraph.common.errors import UsageError
from shadowgraph.common.internal_errors import internal_errors
from shadowgraph.integrations import notices
from shadowgraph.integrations.vllm import adapter as vllm_adapter
from shadowgraph.integrations.vllm.hooks import Hooks
from shadowgraph.model.findings import Batch
from shadowgraph.tracking import passing


@pytest.fixture
def attachment(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    for name, module in fakes.modules().items():
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


def served(debugger: sg.Debugger, measured: bool = False, **more: Any) -> Any:
    """A runner, set up as a worker does it."""
    cls = sys.modules[fakes.RUNNER].GPUModelRunner
    with debugger.guard():
        runner = cls(fakes.config(**more), torch.device("cpu"))
        if measured:
            runner.profile_cudagraph_memory()
        runner.initialize_kv_cache(fakes.cache_config())
    runner.capture_model()
    return runner


def full(runner: Any, size: int) -> Any:
    return runner.model.concrete_cudagraph_entries[fakes.BatchDescriptor(size, size, True)].cudagraph.model


def pieces(runner: Any, size: int) -> list[Any]:
    wrappers = runner.model.runnable.pieces
    return [each.concrete_cudagraph_entries[fakes.BatchDescriptor(size)].cudagraph.model for each in wrappers]


STEPS = ([5, 6, 7, 8], [9, 10, 11], [12], [6, 7], [9, 5, 6, 5])


def test_decode_steps_are_silent(debugger: sg.Debugger) -> None:
    runner = served(debugger)
    for lengths in STEPS:
        runner.step(lengths)
    assert full(runner, 4).replays == 3
    assert full(runner, 2).replays == 2
    assert debugger.findings == debugger.notes == ()
    assert debugger.coverage().written
    assert not debugger.monitor.preparing.anywhere
    assert debugger.facts().faults == {}


def test_mixed_steps_are_silent(debugger: sg.Debugger) -> None:
    runner = served(debugger)
    runner.step([3, 1], [3, 1])  # a prefill and a decode, in pieces
    runner.step([4, 2])
    runner.step([9], [9])  # larger than any graph
    runner.step([3], [3])
    runner.step([4])
    assert [each.replays for each in pieces(runner, 4)] == [2, 2]
    assert debugger.findings == debugger.notes == ()
    assert debugger.facts().faults == {}


def test_buffers_have_the_names_that_vllm_gives_them(debugger: sg.Debugger) -> None:
    runner = served(debugger)
    names = {owner.path for owner in debugger.names.living()}
    assert names >= {
        "runner.input_ids.gpu",
        "runner.input_ids.cpu",
        "runner.positions",
        "runner.query_start_loc.gpu",
        "runner.seq_lens",
        "runner.input_batch.block_table.block_tables[0].block_table.gpu",
        "runner.input_batch.block_table.block_tables[0].slot_mapping.gpu",
        BUILDER,
        "runner.kv_caches[0]",
    }
    assert not [name for name in names if ".model" in name or "vllm_config" in name]
    second = served(debugger)
    assert "runner#2.positions" in {owner.path for owner in debugger.names.living()}
    assert runner is not second


TABLE = "runner.input_batch.block_table.block_tables[0].block_table.gpu"
BUILDER = "runner.attn_groups[0][0].metadata_builders[0].scheduler_metadata"
SLOTS = "runner.input_batch.block_table.block_tables[0].slot_mapping.gpu"


def test_block_tables_of_padded_requests_that_keep_old_blocks(
    debugger: sg.Debugger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The class of bug of vLLM's pull requests 24002, 35969 and 43682."""
    runner = served(debugger)

    def forgetful(num_tokens: int, num_reqs: int, num_reqs_padded: int | None = None, slot_mappings: Any = None) -> Any:
        table = runner.input_batch.block_table[0].get_device_tensor(num_reqs_padded or num_reqs)
        seq_lens = runner.seq_lens[: table.shape[0]]
        scheduled = runner.attn_groups[0][0].metadata_builders[0].build(table.shape[0], seq_lens)
        facts = {"block_table": table, "slot_mapping": slot_mappings[0], "seq_lens": seq_lens}
        return SimpleNamespace(**facts, scheduler_metadata=scheduled), None

    monkeypatch.setattr(runner, "_build_attention_metadata", forgetful)
    runner.step([5, 6, 7, 8])
    assert debugger.findings == ()
    runner.step([9, 10, 11])
    assert runner.input_batch.block_table[0].block_table.gpu[3].any(), "invalid: the row was cleared"
    (found,) = debugger.findings
    assert (found.code, found.severity, found.buffer.name) == ("SG103", "error", TABLE)
    (rows,) = found.detail.stale
    assert (found.phase, found.graph, found.replay, rows.first, rows.last) == ("prepare", full(runner, 4).name, 2, 3, 3)
    ids = ("request-0", "request-1", "request-2")
    assert found.batch == Batch(3, 4, (9, 10, 11), ids, 3, 4)


def test_slots_of_padded_tokens_that_keep_old_slots(debugger: sg.Debugger, monkeypatch: pytest.MonkeyPatch) -> None:
    runner = served(debugger)
    table = runner.input_batch.block_table[0]

    def compute(num_reqs: int, query_start_loc: torch.Tensor, positions: torch.Tensor) -> None:
        blocks = table.block_table.gpu[torch.arange(num_reqs), positions // fakes.BLOCK].long()
        table.slot_mapping.gpu[:num_reqs] = blocks * fakes.BLOCK + positions % fakes.BLOCK

    monkeypatch.setattr(runner.input_batch.block_table, "compute_slot_mapping", compute)
    monkeypatch.setattr(runner, "_get_slot_mappings", lambda padded, *rest: ({0: table.slot_mapping.gpu[:padded]}, {}))
    runner.step([5, 6, 7, 8])
    runner.step([9, 10, 11])
    assert table.slot_mapping.gpu[3] > 0, "invalid: the slot was reset"
    assert ("SG103", "error", SLOTS) in {(f.code, f.severity, f.buffer.name) for f in debugger.findings}


@pytest.mark.parametrize(("block", "broken"), [(24, True), (-1, True), (23, False)])
def test_block_numbers_that_are_none(debugger: sg.Debugger, block: int, broken: bool) -> None:
    runner = served(debugger)
    runner.step([5, 6])
    assert debugger.findings == ()
    commit = runner.input_batch.block_table.commit_block_table

    def corrupted(num_reqs: int) -> None:
        commit(num_reqs)
        runner.input_batch.block_table[0].block_table.gpu[1, 3] = block  # beyond the blocks that the request has

    runner.input_batch.block_table.commit_block_table = corrupted
    runner.step([6, 7])
    rules = [found for found in debugger.check() if found.code == "SG109"]
    assert len(rules) == broken
    for found in rules:
        assert (found.severity, found.buffer.name, found.phase, found.replay) == ("error", TABLE, "prepare", 2)
        assert f"[11] = {block}" in str(found.detail), found.detail
        assert found.culprit.file.endswith("test_vllm_runner.py")


def test_slots_beyond_the_cache(debugger: sg.Debugger, monkeypatch: pytest.MonkeyPatch) -> None:
    runner = served(debugger)
    get = runner._get_slot_mappings

    def beyond(*sizes: int) -> Any:
        made = get(*sizes)
        made[0][0][0] = 24 * fakes.BLOCK
        return made

    runner.step([5, 6])
    monkeypatch.setattr(runner, "_get_slot_mappings", beyond)
    with pytest.raises(IndexError):  # the host's own check of indices
        runner.step([6, 7])
    assert ("SG109", SLOTS) in {(found.code, found.buffer.name) for found in debugger.findings}


@triton.jit
def schedule_kernel(lengths, out, count, BLOCK: tl.constexpr) -> None:
    at = tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(lengths + at, at < count, 0) + 1, at < count + 2)  # two elements too many


def test_an_overrun_in_the_preparation_of_a_step(debugger: sg.Debugger) -> None:
    runner = served(debugger)
    builder = runner.attn_groups[0][0].metadata_builders[0]
    real = builder.build

    def build(num_reqs: int, seq_lens: torch.Tensor) -> Any:
        made = real(num_reqs, seq_lens)
        schedule_kernel[(1,)](seq_lens, builder.scheduler_metadata, num_reqs, BLOCK=8)
        return made

    runner.step([5, 6, 7, 8])
    builder.build = build
    runner.step([9, 9])
    assert debugger.check() == (), "within the buffer"
    runner.step([6, 7, 8])
    (found,) = [found for found in debugger.check() if found.code == "SG101"]
    assert (found.buffer.name, found.past_end) == (BUILDER, 8)
    assert (found.phase, found.graph, found.replay) == ("prepare", full(runner, 4).name, 2)
    assert (found.culprit.name, found.batch.size) == ("schedule_kernel", 3)
    assert not debugger.monitor.preparing.anywhere


def test_a_builder_that_refreshes_other_memory_than_the_graph_reads(debugger: sg.Debugger) -> None:
    """The class of bug of vLLM's issues 33638 and 36492: metadata freshly allocated in each step."""
    runner = served(debugger)
    builder = runner.attn_groups[0][0].metadata_builders[0]
    for lengths in ([5, 6, 7, 8], [6, 7, 8, 9]):
        runner.step(lengths)
    assert debugger.findings == ()

    def build(num_reqs: int, seq_lens: torch.Tensor) -> Any:
        builder.scheduler_metadata = torch.zeros(4, dtype=torch.int32)
        builder.scheduler_metadata[:num_reqs] = (seq_lens + 1) // 2
        return builder.scheduler_metadata[:num_reqs]

    builder.build = build
    for lengths in ([7, 8, 9, 10], [9, 10, 11, 12]):
        runner.step(lengths)
    found = {finding.code: finding for finding in debugger.check()}
    assert "SG108" in found or "SG104" in found, found
    for finding in found.values():
        assert finding.buffer.name == BUILDER


# -- graphs and batches ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("lengths", "counts"), [([5, 6, 7], [1, 1, 1]), ([5, 3], [1, 2]), ([9], [9])])
def test_the_graph_that_comes_is_announced_between_its_choice_and_the_model(
    debugger: sg.Debugger, lengths: list[int], counts: list[int]
) -> None:
    runner = served(debugger)
    coming = {3: full(runner, 4), 2: pieces(runner, 4)[0], 1: None}[len(lengths)]
    seen: dict[str, tuple[Any, bool]] = {}
    preparing = debugger.adapter.preparing
    table, prep, forward = runner.input_batch.block_table, runner._preprocess, runner.model.runnable

    def commit(num_reqs: int) -> None:
        seen["inputs"] = preparing.graph, bool(preparing)
        type(table).commit_block_table(table, num_reqs)

    def preprocess(*args: Any) -> Any:
        seen["preprocess"] = preparing.graph, bool(preparing)
        return prep(*args)

    table.commit_block_table, runner._preprocess = commit, preprocess
    runner.step(lengths, counts)
    assert seen == {"inputs": (None, True), "preprocess": (coming, coming is not None)}
    assert not preparing.anywhere
    assert forward is runner.model.runnable


def test_a_dummy_run_prepares_no_step(debugger: sg.Debugger) -> None:
    runner = served(debugger)
    runner.step([5, 6])
    runner._dummy_run(2, fakes.CUDAGraphMode.FULL, uniform_decode=True)
    assert full(runner, 2).replays == 2
    batch_of = vllm_adapter.attach().hooks.batch_of  # type: ignore[union-attr]
    assert batch_of(full(runner, 2), 1) is not None
    assert batch_of(full(runner, 2), 2) is None
    assert debugger.findings == debugger.notes == ()


def test_pieces_have_the_batch_of_their_step(debugger: sg.Debugger, attachment: Any) -> None:
    runner = served(debugger)
    runner.step([3, 1], [3, 1])
    runner.step([5, 3], [1, 2])
    first, last = pieces(runner, 4)
    ids = ("request-0", "request-1")
    for piece in (first, last):
        assert attachment.hooks.batch_of(piece, 1) == Batch(2, 2, (3, 1), ids, 4, 4)
        assert attachment.hooks.batch_of(piece, 2) == Batch(2, 2, (5, 3), ids, 3, 4)


def test_a_wrapper_of_a_draft_model_is_in_no_step_of_the_target(debugger: sg.Debugger, attachment: Any) -> None:
    runner = served(debugger)
    runner.speculative_config = object()
    draft = fakes.CUDAGraphWrapper(lambda x: x + 1, fakes.config(), fakes.CUDAGraphMode.PIECEWISE)
    for size in (4, 2):
        fakes.ForwardContext.mode = fakes.CUDAGraphMode.PIECEWISE
        fakes.ForwardContext.descriptor = fakes.BatchDescriptor(size)
        draft(runner.positions[:size])
    fakes.ForwardContext.mode = fakes.CUDAGraphMode.NONE
    runner.step([3, 1], [3, 1])
    graph = draft.concrete_cudagraph_entries[fakes.BatchDescriptor(4)].cudagraph.model
    assert attachment.hooks.batch_of(graph, 1) is None
    assert attachment.hooks.batch_of(pieces(runner, 4)[0], 1) is not None


def test_pieces_of_a_part_of_a_model_have_a_copy_of_the_configuration(debugger: sg.Debugger, attachment: Any) -> None:
    runner = served(debugger)
    for piece in runner.model.runnable.pieces:  # as ``VllmConfig.with_hf_config`` makes it for a language model
        piece.vllm_config = SimpleNamespace(**vars(piece.vllm_config))
    runner.step([3, 1], [3, 1])
    assert attachment.hooks.batch_of(pieces(runner, 4)[1], 1) is not None


def test_a_split_step_has_a_graph_of_its_own(debugger: sg.Debugger, attachment: Any) -> None:
    """``UBatchWrapper`` holds the graphs of microbatches by tokens, and a wrapper for steps that are not split."""
    runner = served(debugger)
    graph = sg.HostGraph()
    with sg.host_graph(graph):
        runner.seq_lens + 1
    inner, descriptor = runner.model, fakes.BatchDescriptor(4, 4, True)
    runner.model = SimpleNamespace(cudagraph_wrapper=inner, cudagraphs={4: SimpleNamespace(cudagraph=graph)})
    coming = attachment.hooks.graphs
    whole, none = fakes.CUDAGraphMode.FULL, fakes.CUDAGraphMode.NONE
    assert coming.of(runner, whole, descriptor, True) is graph.model
    assert coming.of(runner, whole, descriptor, False) is inner.concrete_cudagraph_entries[descriptor].cudagraph.model
    assert coming.of(runner, none, descriptor, False) is None
    assert coming.of(runner, whole, fakes.BatchDescriptor(9), False) is None


def test_a_step_whose_mode_is_taken_back_has_no_graph(debugger: sg.Debugger, attachment: Any) -> None:
    runner = served(debugger)
    runner.calculate_kv_scales = True
    runner.step([5, 6])
    assert attachment.hooks.batch_of(full(runner, 2), 1) is None
    assert not debugger.monitor.preparing.anywhere


def test_graphs_that_measure_memory_are_not_kept(
    debugger: sg.Debugger, attachment: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[weakref.ref[Any]] = []
    clear = fakes.CUDAGraphWrapper.clear_graphs

    def look(wrapper: Any) -> None:
        seen.extend(weakref.ref(entry.cudagraph) for entry in wrapper.concrete_cudagraph_entries.values())
        clear(wrapper)

    for wrapper in list(fakes.CUDAGraphWrapper._all_instances):
        clear(wrapper)  # of other tests
    monkeypatch.setattr(fakes.CUDAGraphWrapper, "clear_graphs", look)
    runner = served(debugger, measured=True)
    gc.collect()
    assert len(seen) == 6
    assert [each() for each in seen] == [None] * 6
    assert {graph.serial for graph in debugger.graphs} == {
        *(full(runner, size).serial for size in (4, 2)),
        *(piece.serial for size in (4, 2) for piece in pieces(runner, size)),
    }
    for lengths in STEPS:
        runner.step(lengths)
    assert debugger.findings == debugger.notes == ()
    ranges = {i.rule.name for i in debugger.monitor.checks.find(_invariants()).invariants}
    assert ranges == {"index_range(0, 24)", "index_range(-1, 96)", "nondecreasing"}, "not those of the small cache"


def _invariants() -> Any:
    from shadowgraph.checks.invariants.check import Invariants

    return Invariants


def test_while_replays_pass_nothing_is_marked_and_batches_are_noted(debugger: sg.Debugger, attachment: Any) -> None:
    runner = served(debugger)
    runner.step([5, 6])
    serials = {graph.serial for graph in debugger.graphs}
    passing.let(100, serials)
    marked: list[bool] = []
    prep = runner._preprocess
    runner._preprocess = lambda *args: (marked.append(bool(debugger.adapter.preparing)), prep(*args))[1]
    try:
        runner.step([6, 7])
    finally:
        passing.let(0)
    assert marked == [False]
    assert attachment.hooks.batch_of(full(runner, 2), 2) == Batch(2, 2, (6, 7), ("request-0", "request-1"), 2, 2)


def test_a_step_larger_than_all_before_is_told_before_it_is_prepared(debugger: sg.Debugger) -> None:
    runner = served(debugger)
    told: list[tuple[Any, ...]] = []
    debugger.adapter.novelty.see = lambda *sizes: told.append(sizes)  # type: ignore[method-assign]
    prepared: list[int] = []
    commit = runner.input_batch.block_table.commit_block_table
    runner.input_batch.block_table.commit_block_table = lambda n: (prepared.append(len(told)), commit(n))
    runner.step([5, 6])
    assert prepared == [1]
    assert told[0][2:] == (2, 6, 11)
    assert "decode" in told[0][0]


# -- ends, faults ----------------------------------------------------------------------------------------------------


def test_a_step_that_raises_leaves_no_mark_and_is_joined(
    debugger: sg.Debugger, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = served(debugger)
    runner.step([5, 6])
    error = RuntimeError("CUDA error: device-side assert triggered")

    def fails(*args: Any) -> Any:
        raise error

    monkeypatch.setattr(runner, "_preprocess", fails)
    with pytest.raises(RuntimeError) as raised:
        runner.step([6, 7])
    assert raised.value is error
    assert not debugger.monitor.preparing.anywhere
    (failure,) = debugger.facts().failures
    assert (failure.kind, failure.where, failure.graph, failure.replay) == (
        *("device", "vLLM's model runner", full(runner, 2).name, 1),
    )
    assert failure.batch is not None


def test_an_output_that_raises_is_joined(debugger: sg.Debugger) -> None:
    runner = served(debugger)
    runner.step([5, 6])
    with pytest.raises(RuntimeError, match="illegal memory access"):
        sys.modules[fakes.RUNNER].AsyncGPUModelRunnerOutput().get_output()
    (failure,) = debugger.facts().failures
    assert (failure.kind, failure.where) == ("device", "vLLM's output")


def test_a_failure_of_ours_is_counted_and_vllm_goes_on(monkeypatch: pytest.MonkeyPatch, attachment: Any) -> None:
    def broken(*args: Any) -> None:
        raise UsageError("not even what users are meant to see")

    before = dict(internal_errors.counts)
    with sg.debug(backend="host") as debugger:
        runner = served(debugger)
        monkeypatch.setattr(Hooks, "_known", broken)
        runner.step([5, 6])
        assert full(runner, 2).replays == 1
    counts = {key: count - before.get(key, 0) for key, count in internal_errors.counts.items()}
    assert counts["vllm adapter: UsageError: not even what users are meant to see"] >= 1
    internal_errors.clear()
    for key, count in before.items():
        internal_errors._counts[key] = count


def test_no_runner_is_kept_alive(debugger: sg.Debugger) -> None:
    runner = served(debugger)
    runner.step([5, 6, 7, 8])
    gone = [weakref.ref(runner), weakref.ref(runner.positions), weakref.ref(runner.input_batch)]
    del runner
    gc.collect()
    assert [each() for each in gone] == [None, None, None]


def test_a_debugger_that_starts_later_is_told_all(debugger: sg.Debugger) -> None:
    runner = served(debugger)
    session._end(debugger)
    with sg.debug(backend="host") as later:
        runner.model.clear_graphs()
        runner.capture_model()
        runner.step([5, 6, 7, 8])
        assert "runner.positions" in {owner.path for owner in later.names.living()}
        rules = {i.rule.name for i in later.monitor.checks.find(_invariants()).invariants}
    assert "index_range(0, 24)" in rules
    assert later.findings == later.notes == ()


def test_without_a_debugger_nothing_is_noted(attachment: Any) -> None:
    cls = sys.modules[fakes.RUNNER].GPUModelRunner
    runner = cls(fakes.config(), torch.device("cpu"))
    runner.initialize_kv_cache(fakes.cache_config())
    runner.step([9], [9])
    assert len(runner.results) == 1
    assert not attachment.hooks._steps


def test_a_runner_without_an_attribute_is_left_alone(
    attachment: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    said: list[str] = []
    monkeypatch.setattr(notices, "_tell", said.append)
    cls = sys.modules[fakes.RUNNER].GPUModelRunner
    with sg.debug(backend="host"):
        runner = cls(fakes.config(), torch.device("cpu"))
        del runner.seq_lens
        runner.seq_lens_gpu = torch.zeros(4, dtype=torch.int32)
        attachment.hooks.runners._known.clear()
        for _ in range(2):
            attachment.hooks._introduce(runner)
        assert not attachment.hooks._known(runner)
    assert said == ["the vllm adapter does without a GPUModelRunner: it has no seq_lens; generic tracking goes on"]
