"""What vLLM's padded rows hold, and which rules its index buffers keep, as its source says: each fact with its line.

A step is padded to the tokens, and for full graphs to the requests, that a graph was captured for. Rows that are reset
are declared ``"judged"``, so that SG103 is an error for them under ``wrap`` too. Rows that keep old values on purpose,
since their results are cut off or masked by a slot of -1, are declared to need no refresh. What backends do differently
stands with their metadata builders, by the names of their buffers. Called in the thread that makes or captures.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch

from shadowgraph.adapter_interface import AdapterInterface, index_range, nondecreasing
from shadowgraph.common.errors import UnknownBufferError

_RUNNER = "vllm/v1/worker/gpu_model_runner.py"
_DRAFTER = "vllm/v1/spec_decode/llm_base_proposer.py"
_BACKENDS = "vllm/v1/attention/backends"
_V2 = "vllm/v1/worker/gpu"


@dataclass(frozen=True, slots=True)
class Fact:
    """What one buffer's padded rows hold.

    Attributes
    ----------
    name
        The attribute that holds the buffer.
    reset
        Whether padded rows are given values of their own in each step; else they keep old ones on purpose.
    source, line
        The file of vLLM, and the code in it that does so.
    """

    name: str
    reset: bool
    source: str
    line: str


OF_RUNNER = (
    Fact("input_ids", False, _RUNNER, "self.input_ids.copy_to_gpu(total_num_scheduled_tokens)"),
    Fact(
        "inputs_embeds",
        False,
        _RUNNER,
        "self.inputs_embeds.gpu[:num_scheduled_tokens].copy_(inputs_embeds_scheduled)",
    ),
    Fact("mrope_positions", False, _RUNNER, "self.mrope_positions.gpu[:, :total_num_scheduled_tokens].copy_("),
    Fact("xdrope_positions", False, _RUNNER, "self.xdrope_positions.gpu[:, :total_num_scheduled_tokens].copy_("),
    Fact("intermediate_tensors", False, _RUNNER, "self.intermediate_tensors[k][:"),
    Fact("positions", True, _RUNNER, "self.positions[num_scheduled_tokens:num_input_tokens].zero_()"),
    Fact("seq_lens", True, _RUNNER, "self.seq_lens[num_reqs:].fill_(0)"),
    Fact("query_start_loc", True, _RUNNER, "self.query_start_loc.np[num_reqs + 1 :].fill(cu_num_tokens[-1])"),
    Fact("dcp_local_seq_lens", True, _RUNNER, "self.dcp_local_seq_lens.cpu[num_reqs:].fill_(0)"),
    Fact("num_accepted_tokens", True, _RUNNER, "self.num_accepted_tokens.np[num_reqs:].fill(1)"),
)
OF_TABLE = (
    Fact("block_table", True, _RUNNER, "blk_table_tensor[num_reqs:num_reqs_padded].fill_(NULL_BLOCK_ID)"),
    Fact("slot_mapping", True, _RUNNER, "slot_mapping[num_tokens_unpadded:num_tokens_padded].fill_(-1)"),
)
OF_DRAFTER = (
    Fact("input_ids", False, _DRAFTER, "self.input_ids[:batch_size] = input_ids"),
    Fact("positions", False, _DRAFTER, "self.positions[:num_tokens] = positions"),
    Fact("mrope_positions", False, _DRAFTER, "self.mrope_positions[:, :num_tokens] = positions"),
    Fact("xdrope_positions", False, _DRAFTER, "self.xdrope_positions[:, :num_tokens] = positions"),
    Fact("hidden_states", False, _DRAFTER, "self.hidden_states[:batch_size] = hidden_states"),
    Fact("inputs_embeds", False, _DRAFTER, "self.inputs_embeds[:batch_size] = self.model.embed_input_ids(input_ids)"),
    Fact(
        "_slot_mapping_buffer",
        True,
        _DRAFTER,
        "self._slot_mapping_buffer[num_actual:num_tokens].fill_(PADDING_SLOT_ID)",
    ),
)
_GDN, _MAMBA = f"{_BACKENDS}/gdn_attn.py", f"{_BACKENDS}/mamba_attn.py"
OF_BUILDERS = (  # metadata builders of attention backends: the names tell them apart
    Fact(
        "scheduler_metadata",
        True,
        f"{_BACKENDS}/flash_attn.py",
        "self.scheduler_metadata[n:] = 0",
    ),
    Fact("softmax_segm_output", False, f"{_BACKENDS}/triton_attn.py", "self.softmax_segm_output = torch.empty("),
    Fact("softmax_segm_max", False, f"{_BACKENDS}/triton_attn.py", "self.softmax_segm_max = torch.empty("),
    Fact("softmax_segm_expsum", False, f"{_BACKENDS}/triton_attn.py", "self.softmax_segm_expsum = torch.empty("),
    Fact(
        "paged_kv_indices",
        False,
        f"{_BACKENDS}/flashinfer.py",
        "paged_kv_indices = self.paged_kv_indices.gpu[:num_actual_pages]",
    ),
    Fact("_workspace_buffer", False, f"{_BACKENDS}/flashinfer.py", "self._workspace_buffer = torch.zeros("),
    Fact("state_indices_tensor_d", True, _MAMBA, "state_indices_tensor_d[metadata.num_decodes :] = NULL_BLOCK_ID"),
    Fact("decode_num_accepted_tokens", True, _MAMBA, "num_accepted_tokens[metadata.num_decodes :] = ("),
    Fact(
        "spec_state_indices_tensor",
        True,
        _GDN,
        "spec_state_indices_tensor[num_spec_decodes:].fill_(NULL_BLOCK_ID)",
    ),
    Fact(
        "non_spec_state_indices_tensor",
        True,
        _GDN,
        "non_spec_state_indices_tensor[num_decodes:].fill_(NULL_BLOCK_ID)",
    ),
    Fact("spec_sequence_masks", True, _GDN, "spec_sequence_masks[num_spec_decodes:].fill_(False)"),
    Fact(
        "spec_query_start_loc",
        True,
        _GDN,
        "spec_query_start_loc[num_spec_decodes + 1 :].fill_(spec_num_query_tokens)",
    ),
    Fact(
        "non_spec_query_start_loc",
        True,
        _GDN,
        "non_spec_query_start_loc[num_decodes + 1 :].fill_(non_spec_num_query_tokens)",
    ),
    Fact("num_accepted_tokens", True, _GDN, "num_accepted_tokens[num_spec_decodes:].fill_(1)"),
    Fact("spec_token_indx", False, _GDN, "self.spec_token_indx[: spec_token_indx.size(0)].copy_("),
    Fact("non_spec_token_indx", False, _GDN, "self.non_spec_token_indx[: non_spec_token_indx.size(0)].copy_("),
)
# The V2 runner's kernels write padded rows themselves.
OF_INPUT_BUFFERS = (
    Fact("input_ids", False, f"{_V2}/model_runner.py", "self.input_buffers.input_ids[:num_tokens_after_padding]"),
    Fact("positions", False, f"{_V2}/model_runner.py", "self.input_buffers.positions[:num_tokens_after_padding]"),
    Fact("seq_lens", True, f"{_V2}/input_batch.py", "tl.store(seq_lens_ptr + block, 0, mask=mask)"),
    Fact("query_start_loc", True, f"{_V2}/model_runner.py", "query_start_loc_np[num_reqs + 1 :] = num_tokens"),
)
OF_BLOCK_TABLES = (
    Fact("input_block_tables", True, f"{_V2}/block_table.py", "# Zero out padded rows."),
    Fact("slot_mappings", True, f"{_V2}/block_table.py", "# Pad remaining slots to -1."),
)
FACTS = (*OF_RUNNER, *OF_TABLE, *OF_DRAFTER, *OF_BUILDERS, *OF_INPUT_BUFFERS, *OF_BLOCK_TABLES)


def declare_runner(adapter: AdapterInterface, runner: Any) -> None:
    """Declare the buffers of a V1 runner, as far as they exist: with its block tables, its drafter and the metadata
    builders of its attention backends."""
    _declare(adapter, runner, OF_RUNNER)
    for table in block_tables(runner):
        _declare(adapter, table, OF_TABLE)
    _declare(adapter, getattr(runner, "drafter", None), OF_DRAFTER)
    _declare_builders(adapter, runner)
    if getattr(getattr(runner, "parallel_config", None), "data_parallel_size", 0) == 1:
        # A rank without requests replays over its last step's values: it writes no tail.
        for tensor in tensors(getattr(runner, "query_start_loc", None)):
            _rule(adapter, tensor, nondecreasing)


def declare_runner_v2(adapter: AdapterInterface, runner: Any) -> None:
    """As `declare_runner`, of a V2 runner."""
    _declare(adapter, getattr(runner, "input_buffers", None), OF_INPUT_BUFFERS)
    _declare(adapter, getattr(runner, "block_tables", None), OF_BLOCK_TABLES)
    _declare_builders(adapter, runner)


def declare_rules(adapter: AdapterInterface, runner: Any) -> None:
    """Declare the ranges of a V1 runner's block numbers and slots, once its KV cache has its final size.

    The block numbers are those of the kernels: each block of the cache manager's is `blocks_per_kv_block` of them.
    """
    config = getattr(runner, "kv_cache_config", None)
    blocks = getattr(config, "num_blocks", None)
    if type(blocks) is not int or blocks <= 0:
        return
    keeps_tokens = _token_groups(config)
    for index, table in enumerate(block_tables(runner)):
        count = blocks * table.blocks_per_kv_block
        for tensor in tensors(table.block_table):
            _rule(adapter, tensor, index_range(0, count))
        if index in keeps_tokens:
            for tensor in tensors(table.slot_mapping):
                _rule(adapter, tensor, index_range(-1, count * table.block_size))


def declare_rules_v2(adapter: AdapterInterface, runner: Any) -> None:
    """As `declare_rules`, of a V2 runner, all of whose groups have their slots in one tensor."""
    config, tables = getattr(runner, "kv_cache_config", None), getattr(runner, "block_tables", None)
    blocks = getattr(config, "num_blocks", None)
    if type(blocks) is not int or blocks <= 0 or tables is None:
        return
    parts = getattr(tables, "blocks_per_kv_block", None) or [1] * len(tables.input_block_tables)  # from 0.22 on
    for tensor, count in zip(tables.input_block_tables, parts, strict=True):
        _rule(adapter, tensor, index_range(0, blocks * count))
    if len(_token_groups(config)) == len(tables.block_sizes):
        for tensor in tensors(tables.slot_mappings):
            _rule(adapter, tensor, index_range(-1, blocks * max(tables.block_sizes)))


def block_tables(runner: Any) -> list[Any]:
    """The block tables of a V1 runner's KV cache groups."""
    tables = getattr(getattr(runner, "input_batch", None), "block_table", None)
    return list(getattr(tables, "block_tables", ()))


def builders(runner: Any) -> Iterator[Any]:
    """The metadata builders of a runner's attention backends."""
    for groups in getattr(runner, "attn_groups", None) or ():
        for group in groups:
            yield from getattr(group, "metadata_builders", ())


def tensors(value: Any) -> Iterator[torch.Tensor]:
    """The device tensors of an attribute: a tensor, a ``CpuGpuBuffer``, ``IntermediateTensors``, or a list."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for each in value:
            yield from tensors(each)
    elif value is not None:
        held = vars(value) if hasattr(value, "__dict__") else {}
        inner = held.get("gpu", held.get("tensors"))
        yield from tensors(list(inner.values()) if isinstance(inner, dict) else inner)


def _token_groups(config: Any) -> set[int]:
    """Indices of the block tables of KV cache groups whose slots are tokens: not of states, as of Mamba, which look up
    no slot. Encoder-only groups have no block table."""
    kinds = [_kinds(group.kv_cache_spec) for group in config.kv_cache_groups]
    with_table = [kind for kind in kinds if "EncoderOnlyAttentionSpec" not in kind]
    return {index for index, kind in enumerate(with_table) if "MambaSpec" not in kind}


def _kinds(spec: Any) -> set[str]:
    """Names of the classes of a specification, and of those that it combines."""
    parts = getattr(spec, "kv_cache_specs", None)
    combined = list(parts.values()) if isinstance(parts, dict) else []
    return {base.__name__ for each in (spec, *combined) for base in type(each).__mro__}


def _declare_builders(adapter: AdapterInterface, runner: Any) -> None:
    for builder in builders(runner):
        _declare(adapter, builder, OF_BUILDERS)


def _declare(adapter: AdapterInterface, owner: Any, facts: tuple[Fact, ...]) -> None:
    held = vars(owner) if hasattr(owner, "__dict__") else {}
    for fact in facts:
        for tensor in tensors(held.get(fact.name)):
            if tensor.numel():
                with suppress(UnknownBufferError, ValueError):  # on another device
                    if fact.reset:
                        adapter.padding(tensor, "judged")
                    else:
                        adapter.keeps_rows(tensor)


def _rule(adapter: AdapterInterface, tensor: torch.Tensor, rule: Any) -> None:
    with suppress(UnknownBufferError, ValueError):
        adapter.rule(tensor, rule)
