"""vLLM's V2 model runner on host graphs: its classes, attributes and order of calls, without a model.

As in vLLM 0.21.0: ``v1/worker/gpu/{model_runner,cudagraph_utils,input_batch,block_table}.py``. Its Triton kernels are
torch operators here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import torch
import vllm_runner as fakes

import shadowgraph as sg

RUNNER, MANAGER = "vllm.v1.worker.gpu.model_runner", "vllm.v1.worker.gpu.cudagraph_utils"
Mode = fakes.CUDAGraphMode


@dataclass(frozen=True)
class BatchExecutionDescriptor:
    cg_mode: Mode
    num_tokens: int
    num_reqs: int | None
    uniform_token_count: int | None = None


class InputBuffers:
    def __init__(self, max_num_reqs: int, max_num_tokens: int) -> None:
        self.input_ids = torch.zeros(max_num_tokens, dtype=torch.int32)
        self.positions = torch.zeros(max_num_tokens, dtype=torch.int64)
        self.query_start_loc = torch.zeros(max_num_reqs + 1, dtype=torch.int32)
        self.seq_lens = torch.zeros(max_num_reqs, dtype=torch.int32)


class BlockTables:
    def __init__(self, max_num_reqs: int, max_num_batched_tokens: int, max_num_blocks: int) -> None:
        self.block_sizes = [fakes.BLOCK]
        self.own = torch.zeros(max_num_reqs, max_num_blocks, dtype=torch.int32)
        self.input_block_tables = [torch.zeros_like(self.own)]
        self.slot_mappings = torch.zeros(1, max_num_batched_tokens, dtype=torch.int64)

    def gather_block_tables(self, num_reqs: int, num_reqs_padded: int) -> tuple[torch.Tensor, ...]:
        into = self.input_block_tables[0]
        into[:num_reqs_padded] = torch.where(
            torch.arange(num_reqs_padded)[:, None] < num_reqs, self.own[:num_reqs_padded], 0
        )
        return (into[:num_reqs_padded],)

    def compute_slot_mappings(
        self, positions: torch.Tensor, rows: torch.Tensor, num_tokens_padded: int
    ) -> torch.Tensor:
        slots = torch.full_like(self.slot_mappings, -1)
        blocks = self.own[rows, positions // fakes.BLOCK].long()
        slots[0, : len(rows)] = blocks * fakes.BLOCK + positions % fakes.BLOCK
        self.slot_mappings.copy_(slots)
        return self.slot_mappings[:, :num_tokens_padded]


class CudaGraphManager:
    def __init__(self) -> None:
        self.graphs: dict[BatchExecutionDescriptor, Any] = {}

    def run_fullgraph(self, desc: BatchExecutionDescriptor) -> None:
        self.graphs[desc].replay()


class GPUModelRunner:
    def __init__(self, vllm_config: Any, device: torch.device) -> None:
        self.vllm_config, self.device, self.lora_config = vllm_config, device, None
        self.compilation_config, self.parallel_config = vllm_config.compilation_config, vllm_config.parallel_config
        self.max_model_len, self.max_num_tokens, self.max_num_reqs = 32, 16, 4
        self.uniform_decode_query_len = 1
        self.req_states = SimpleNamespace()
        self.input_buffers = InputBuffers(self.max_num_reqs, self.max_num_tokens)
        self.attn_groups: list[Any] = []
        self.forgets = False

    def initialize_kv_cache(self, kv_cache_config: Any) -> None:
        self.kv_cache_config = kv_cache_config
        self.block_tables = BlockTables(self.max_num_reqs, self.max_num_tokens, self.max_model_len // fakes.BLOCK)
        self.cudagraph_manager = CudaGraphManager()
        self.kv_caches = [torch.zeros(kv_cache_config.num_blocks * fakes.BLOCK, dtype=torch.int64)]
        self.pieces = fakes.CUDAGraphWrapper(self.model, self.vllm_config, Mode.PIECEWISE)

    def model(self, size: int, reqs: int) -> torch.Tensor:
        buffers, tables = self.input_buffers, self.block_tables
        hidden = buffers.input_ids[:size] * 3 + buffers.positions[:size]
        slots = tables.slot_mappings[0, :size]
        self.kv_caches[0].index_put_((torch.where(slots < 0, 0, slots),), hidden)
        table = tables.input_block_tables[0][:reqs]
        rows = torch.index_select(self.kv_caches[0], 0, table[:, 0] * fakes.BLOCK) + table.sum(1) * 0
        return rows + buffers.seq_lens[:reqs]

    def capture_model(self) -> int:
        for size in (4, 2):
            graph = sg.HostGraph()
            with sg.host_graph(graph):
                out = self.model(size, size)
            self.cudagraph_manager.graphs[BatchExecutionDescriptor(Mode.FULL, size, size, 1)] = graph
            self.out = out
        return 0

    def prepare_inputs(self, scheduler_output: Any, batch_desc: BatchExecutionDescriptor) -> Any:
        counts = np.array(list(scheduler_output.num_scheduled_tokens.values()), dtype=np.int32)
        num_reqs, num_tokens = len(counts), int(counts.sum())
        padded = batch_desc.num_reqs or num_reqs
        lengths = np.array(scheduler_output.lengths, dtype=np.int32)
        buffers = self.input_buffers
        starts = np.full(self.max_num_reqs + 1, num_tokens, dtype=np.int32)
        starts[0] = 0
        np.cumsum(counts, out=starts[1 : num_reqs + 1])
        buffers.query_start_loc.copy_(torch.from_numpy(starts))
        rows = np.repeat(np.arange(num_reqs), counts)
        positions = torch.from_numpy((lengths - counts)[rows] + np.arange(num_tokens) - starts[rows])
        buffers.positions[:num_tokens] = positions
        seq_lens = torch.zeros(self.max_num_reqs, dtype=torch.int32)
        seq_lens[:num_reqs] = torch.from_numpy(lengths)
        if self.forgets:
            buffers.seq_lens[:num_reqs] = seq_lens[:num_reqs]
        else:
            buffers.seq_lens.copy_(seq_lens)
        buffers.input_ids[:num_tokens] = positions.int() + 100
        bound = np.zeros(padded, dtype=np.int32)
        bound[:num_reqs] = lengths
        return SimpleNamespace(
            req_ids=list(scheduler_output.num_scheduled_tokens),
            num_reqs=num_reqs,
            num_reqs_after_padding=padded,
            num_tokens=num_tokens,
            num_tokens_after_padding=batch_desc.num_tokens,
            seq_lens_cpu_upper_bound=torch.from_numpy(bound),
            rows=torch.from_numpy(rows),
            positions=positions,
        )

    def prepare_attn(self, input_batch: Any) -> Any:
        block_tables = self.block_tables.gather_block_tables(input_batch.num_reqs, input_batch.num_reqs_after_padding)
        slots = self.block_tables.compute_slot_mappings(
            input_batch.positions, input_batch.rows, input_batch.num_tokens_after_padding
        )
        return block_tables, slots

    def execute_model(self, scheduler_output: Any, intermediate_tensors: Any = None, dummy_run: bool = False) -> Any:
        num_tokens = scheduler_output.total_num_scheduled_tokens
        num_reqs = len(scheduler_output.num_scheduled_tokens)
        size = next((size for size in (2, 4) if size >= num_tokens), None)
        desc = BatchExecutionDescriptor(Mode.NONE, num_tokens, None)
        if size is not None and num_tokens == num_reqs:
            desc = BatchExecutionDescriptor(Mode.FULL, size, size, 1)
        input_batch = self.prepare_inputs(scheduler_output, desc)
        self.prepare_attn(input_batch)
        if desc.cg_mode is Mode.FULL:
            self.cudagraph_manager.run_fullgraph(desc)

    def sample_tokens(self, grammar_output: Any) -> Any:
        return None

    def step(self, lengths: Sequence[int], counts: Sequence[int] | None = None) -> None:
        """One step of requests that have these lengths behind it."""
        counts = counts or [1] * len(lengths)
        for index, length in enumerate(lengths):
            blocks = torch.arange(-(-length // fakes.BLOCK), dtype=torch.int32)
            self.block_tables.own[index, : len(blocks)] = blocks + 1 + index * 5
        scheduled = {f"request-{index}": count for index, count in enumerate(counts)}
        self.execute_model(
            SimpleNamespace(num_scheduled_tokens=scheduled, total_num_scheduled_tokens=sum(counts), lengths=lengths)
        )


def modules() -> dict[str, ModuleType]:
    """The modules, by their names in vLLM, with those of the first runner."""
    made = {name: ModuleType(name) for name in (RUNNER, MANAGER)}
    vars(made[RUNNER])["GPUModelRunner"] = fakes.copied(GPUModelRunner)
    vars(made[MANAGER])["CudaGraphManager"] = CudaGraphManager
    return fakes.modules() | made
