"""What is declared of vLLM's buffers: by the names of the runner, its tables, drafter and metadata builders."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
import vllm_runner as fakes

import shadowgraph as sg
from shadowgraph.common.errors import UnknownBufferError
from shadowgraph.integrations.vllm import padding
from shadowgraph.integrations.vllm.padding import declare_rules, declare_runner, declare_runner_v2


class Taker:
    """An adapter interface that notes what it is told."""

    def __init__(self) -> None:
        self.told: dict[int, str] = {}

    def padding(self, tensor: torch.Tensor, policy: str) -> None:
        self._take(tensor, policy)

    def keeps_rows(self, tensor: torch.Tensor) -> None:
        self._take(tensor, "kept")

    def rule(self, tensor: torch.Tensor, rule: Any) -> None:
        self._take(tensor, rule.name)

    def _take(self, tensor: torch.Tensor, said: str) -> None:
        if tensor.is_meta:
            raise UnknownBufferError("on another device")
        self.told[tensor.data_ptr()] = said


def taken(declare: Any, owner: Any) -> Any:
    """What is declared of an owner, as a function of a tensor."""
    taker = Taker()
    declare(taker, owner)
    return lambda tensor: taker.told.get(tensor.data_ptr())


def ints() -> torch.Tensor:
    return torch.ones(4, dtype=torch.int32)


def buffer() -> fakes.CpuGpuBuffer:
    made = fakes.CpuGpuBuffer(4, dtype=torch.int32)
    assert made.cpu.data_ptr() != made.gpu.data_ptr()
    return made


def runner(**more: Any) -> SimpleNamespace:
    table = SimpleNamespace(block_table=buffer(), slot_mapping=buffer(), block_size=4, blocks_per_kv_block=2)
    batch = SimpleNamespace(block_table=SimpleNamespace(block_tables=[table]))
    return SimpleNamespace(input_batch=batch, parallel_config=SimpleNamespace(data_parallel_size=1), **more)


def test_inputs_of_the_runner() -> None:
    hidden = torch.ones(4, 2)
    made = runner(
        input_ids=buffer(),
        inputs_embeds=buffer(),
        positions=ints(),
        seq_lens=ints(),
        query_start_loc=buffer(),
        mrope_positions=buffer(),
        intermediate_tensors=SimpleNamespace(tensors={"hidden_states": hidden}),
        num_computed_tokens=ints(),
        prev_positions=None,
    )
    said = taken(declare_runner, made)
    assert [said(each.gpu) for each in (made.input_ids, made.inputs_embeds, made.mrope_positions)] == ["kept"] * 3
    assert said(hidden) == "kept"
    assert (said(made.positions), said(made.seq_lens)) == ("judged", "judged")
    assert said(made.query_start_loc.gpu) == "nondecreasing", "after its padding"
    (table,) = made.input_batch.block_table.block_tables
    assert (said(table.block_table.gpu), said(table.slot_mapping.gpu)) == ("judged", "judged")
    assert said(made.num_computed_tokens) is None
    assert said(made.input_ids.cpu) is None
    assert said(made.query_start_loc.cpu) is None


def test_ranks_without_requests_keep_a_tail() -> None:
    made = runner(query_start_loc=buffer())
    made.parallel_config.data_parallel_size = 2
    assert taken(declare_runner, made)(made.query_start_loc.gpu) == "judged"


def test_inputs_of_a_drafter() -> None:
    kept = {name: ints() for name in ("input_ids", "positions", "hidden_states", "inputs_embeds")}
    drafter = SimpleNamespace(**kept, _slot_mapping_buffer=ints(), arange=ints(), model=None)
    said = taken(declare_runner, runner(drafter=drafter))
    assert {said(each) for each in kept.values()} == {"kept"}
    assert said(drafter._slot_mapping_buffer) == "judged"
    assert said(drafter.arange) is None


def test_buffers_of_metadata_builders() -> None:
    mamba = SimpleNamespace(state_indices_tensor_d=ints(), block_idx_last_computed_token=ints())
    flash = SimpleNamespace(scheduler_metadata=ints())
    triton = SimpleNamespace(softmax_segm_output=torch.ones(4, 2), elsewhere=ints())
    infer = SimpleNamespace(paged_kv_indices=buffer(), paged_kv_indptr=buffer(), _workspace_buffer=None)
    meta = SimpleNamespace(scheduler_metadata=torch.ones(4, device="meta"))
    groups = [
        [SimpleNamespace(metadata_builders=[mamba, flash])],
        [SimpleNamespace(metadata_builders=[triton, infer, meta])],
    ]
    said = taken(declare_runner, runner(attn_groups=groups))
    assert said(mamba.state_indices_tensor_d) == said(flash.scheduler_metadata) == "judged"
    assert said(triton.softmax_segm_output) == said(infer.paged_kv_indices.gpu) == "kept"
    assert (
        said(mamba.block_idx_last_computed_token) is said(infer.paged_kv_indptr.gpu) is said(triton.elsewhere) is None
    )


class MambaSpec:
    pass


class FullAttentionSpec:
    pass


class EncoderOnlyAttentionSpec:
    pass


def combined(*specs: Any) -> Any:
    return SimpleNamespace(kv_cache_specs={str(at): each for at, each in enumerate(specs)})


@pytest.mark.parametrize(
    ("spec", "slots"),
    [
        (FullAttentionSpec(), "index_range(-1, 80)"),
        (MambaSpec(), None),
        (combined(FullAttentionSpec()), "index_range(-1, 80)"),
        (combined(MambaSpec(), MambaSpec()), None),
    ],
)
def test_rules_of_a_group(spec: Any, slots: str | None) -> None:
    group = SimpleNamespace(kv_cache_spec=spec)
    encoder = SimpleNamespace(kv_cache_spec=EncoderOnlyAttentionSpec())
    made = runner(kv_cache_config=SimpleNamespace(num_blocks=10, kv_cache_groups=[group, encoder]))
    (table,) = made.input_batch.block_table.block_tables
    said = taken(declare_rules, made)
    assert said(table.block_table.gpu) == "index_range(0, 20)", "each block is two of the kernels'"
    assert said(table.slot_mapping.gpu) == slots


def test_without_a_cache_there_are_no_rules() -> None:
    for config in (None, SimpleNamespace(num_blocks=None), SimpleNamespace(num_blocks=0)):
        made = runner(kv_cache_config=config)
        (table,) = made.input_batch.block_table.block_tables
        assert taken(declare_rules, made)(table.block_table.gpu) is None


def test_inputs_of_the_second_runner() -> None:
    buffers = SimpleNamespace(input_ids=ints(), positions=ints(), seq_lens=ints(), query_start_loc=ints())
    tables = SimpleNamespace(input_block_tables=[ints(), ints()], slot_mappings=ints())
    said = taken(declare_runner_v2, SimpleNamespace(input_buffers=buffers, block_tables=tables))
    assert (said(buffers.input_ids), said(buffers.positions)) == ("kept", "kept")
    assert {said(each) for each in (buffers.seq_lens, *tables.input_block_tables, tables.slot_mappings)} == {"judged"}


def test_each_fact_has_its_line() -> None:
    assert all(fact.line and fact.source.startswith("vllm/") for fact in padding.FACTS)


def test_a_kept_row_is_no_finding_and_its_values_still_count() -> None:
    """Other than with ``padding(tensor, "dont_care")`` nothing is said of the rows that hold requests."""
    with sg.debug(backend="host", undefined=True) as debugger:
        with debugger.guard():
            ids, lens, lengths = torch.zeros(4, dtype=torch.int64), torch.ones(4, dtype=torch.int64), torch.ones(4)
        debugger.adapter.keeps_rows(ids)
        graph = sg.HostGraph()
        with sg.host_graph(graph):
            out = ids + lens
        for rows in ([2, 5, 4, 7], [3]):
            lens.fill_(1)
            lens[: len(rows)].copy_(torch.tensor(rows))
            ids[: len(rows)].copy_(torch.tensor(rows))
            graph.replay()
        assert debugger.check() == debugger.notes == ()
    assert out.tolist() == [6, 6, 5, 8]
    assert lengths is not None


def test_a_later_range_replaces_an_earlier_one() -> None:
    with sg.debug(backend="host") as debugger:
        with debugger.guard():
            table = torch.zeros(4, dtype=torch.int32)
        for most in (4, 8):
            debugger.adapter.rule(table, sg.index_range(0, most))
        graph = sg.HostGraph()
        with sg.host_graph(graph):
            out = table + 1
        for value in (6, 8):
            table.fill_(value)
            graph.replay()
        (found,) = debugger.check()
    assert (found.code, found.severity, found.replay) == ("SG109", "error", 2)
    assert "index_range(0, 8)" in str(found.detail)
    assert out is not None
