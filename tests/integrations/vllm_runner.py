"""vLLM's V1 model runner on host graphs: its classes, attributes and order of calls, without a model.

As in vLLM 0.21.0: ``v1/worker/gpu_model_runner.py``, ``v1/worker/block_table.py``, ``v1/utils.py``,
``compilation/cuda_graph.py`` and ``v1/cudagraph_dispatcher.py``; `test_vllm_source` compares names and order with the
original where that is there. The model reads all inputs; its attention looks blocks up in a KV cache.
"""

from __future__ import annotations

import enum
import sys
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import torch

import shadowgraph as sg

RUNNER = "vllm.v1.worker.gpu_model_runner"
WRAPPER = "vllm.compilation.cuda_graph"
BLOCK = 4  # tokens of a block


class CUDAGraphMode(enum.Enum):
    NONE = 0
    PIECEWISE = 1
    FULL = 2


@dataclass(frozen=True)
class BatchDescriptor:
    num_tokens: int
    num_reqs: int | None = None
    uniform: bool = False
    has_lora: bool = False
    num_active_loras: int = 0


class ForwardContext:
    """What ``set_forward_context`` sets for the wrappers."""

    mode = CUDAGraphMode.NONE
    descriptor: BatchDescriptor | None = None
    metadata: Any = None


class CpuGpuBuffer:
    def __init__(self, *size: int, dtype: torch.dtype) -> None:
        self.cpu = torch.zeros(*size, dtype=dtype)
        self.gpu = torch.zeros_like(self.cpu)
        self.np = self.cpu.numpy()

    def copy_to_gpu(self, n: int | None = None) -> torch.Tensor:
        if n is None:
            return self.gpu.copy_(self.cpu)
        return self.gpu[:n].copy_(self.cpu[:n])


class BlockTable:
    def __init__(self, max_num_reqs: int, max_num_blocks_per_req: int, max_num_batched_tokens: int) -> None:
        self.block_size, self.blocks_per_kv_block = BLOCK, 1
        self.block_table = CpuGpuBuffer(max_num_reqs, max_num_blocks_per_req, dtype=torch.int32)
        self.slot_mapping = CpuGpuBuffer(max_num_batched_tokens, dtype=torch.int64)

    def compute_slot_mapping(self, num_reqs: int, query_start_loc: torch.Tensor, positions: torch.Tensor) -> None:
        """One Triton kernel in vLLM: slots of the tokens, and -1 for all behind them."""
        counts = query_start_loc[1:] - query_start_loc[:-1]
        rows = torch.repeat_interleave(torch.arange(num_reqs), counts)
        blocks = self.block_table.gpu[rows, positions // BLOCK].long()
        slots = torch.full_like(self.slot_mapping.gpu, -1)
        slots[: positions.shape[0]] = blocks * BLOCK + positions % BLOCK
        self.slot_mapping.gpu.copy_(slots)

    def commit_block_table(self, num_reqs: int) -> None:
        self.block_table.copy_to_gpu(num_reqs)

    def get_device_tensor(self, num_reqs: int) -> torch.Tensor:
        return self.block_table.gpu[:num_reqs]


class MultiGroupBlockTable:
    def __init__(self, *sizes: int) -> None:
        self.block_tables = [BlockTable(*sizes)]

    def compute_slot_mapping(self, *given: Any) -> None:
        for table in self.block_tables:
            table.compute_slot_mapping(*given)

    def commit_block_table(self, num_reqs: int) -> None:
        for table in self.block_tables:
            table.commit_block_table(num_reqs)

    def __getitem__(self, idx: int) -> BlockTable:
        return self.block_tables[idx]


class InputBatch:
    def __init__(self, max_num_reqs: int, max_num_batched_tokens: int, max_model_len: int) -> None:
        self._req_ids: list[str] = []
        self.num_computed_tokens_cpu_tensor = torch.zeros(max_num_reqs, dtype=torch.int32)
        self.num_computed_tokens_cpu = self.num_computed_tokens_cpu_tensor.numpy()
        self.block_table = MultiGroupBlockTable(max_num_reqs, max_model_len // BLOCK, max_num_batched_tokens)

    @property
    def req_ids(self) -> list[str]:
        return self._req_ids

    @property
    def num_reqs(self) -> int:
        return len(self._req_ids)


@dataclass
class CUDAGraphEntry:
    batch_descriptor: BatchDescriptor
    cudagraph: Any = None
    output: Any = None


class CUDAGraphWrapper:
    _all_instances: ClassVar[weakref.WeakSet[CUDAGraphWrapper]] = weakref.WeakSet()

    @classmethod
    def clear_all_graphs(cls) -> None:
        for instance in list(cls._all_instances):
            instance.clear_graphs()

    def __init__(self, runnable: Callable[..., Any], vllm_config: Any, runtime_mode: CUDAGraphMode) -> None:
        self.runnable, self.vllm_config, self.runtime_mode = runnable, vllm_config, runtime_mode
        self.concrete_cudagraph_entries: dict[BatchDescriptor, CUDAGraphEntry] = {}
        CUDAGraphWrapper._all_instances.add(self)

    def __getattr__(self, key: str) -> Any:
        return getattr(self.runnable, key)

    def clear_graphs(self) -> None:
        self.concrete_cudagraph_entries.clear()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        descriptor = ForwardContext.descriptor
        if ForwardContext.mode is CUDAGraphMode.NONE or ForwardContext.mode is not self.runtime_mode:
            return self.runnable(*args, **kwargs)
        assert descriptor is not None
        entry = self.concrete_cudagraph_entries.setdefault(descriptor, CUDAGraphEntry(descriptor))
        if entry.cudagraph is None:
            graph = sg.HostGraph()
            with sg.host_graph(graph):
                entry.output = self.runnable(*args, **kwargs)
            entry.cudagraph = graph
            return entry.output
        entry.cudagraph.replay()
        return entry.output


class CudagraphDispatcher:
    """Full graphs for steps of one token a request, pieces for others; as ``FULL_AND_PIECEWISE``."""

    def __init__(self, sizes: Sequence[int]) -> None:
        self.sizes = sorted(sizes)
        self.cudagraph_keys = {
            CUDAGraphMode.PIECEWISE: {BatchDescriptor(size) for size in sizes},
            CUDAGraphMode.FULL: {BatchDescriptor(size, size, True) for size in sizes},
        }

    def dispatch(self, num_tokens: int, uniform_decode: bool = False) -> tuple[CUDAGraphMode, BatchDescriptor]:
        size = next((size for size in self.sizes if size >= num_tokens), None)
        if size is None:
            return CUDAGraphMode.NONE, BatchDescriptor(num_tokens)
        if uniform_decode:
            return CUDAGraphMode.FULL, BatchDescriptor(size, size, True)
        return CUDAGraphMode.PIECEWISE, BatchDescriptor(size)

    def get_capture_descs(self) -> list[tuple[CUDAGraphMode, list[BatchDescriptor]]]:
        def largest_first(mode: CUDAGraphMode) -> list[BatchDescriptor]:
            return sorted(self.cudagraph_keys[mode], key=lambda each: each.num_tokens, reverse=True)

        return [(mode, largest_first(mode)) for mode in (CUDAGraphMode.PIECEWISE, CUDAGraphMode.FULL)]


class FullAttentionSpec:
    block_size = BLOCK


@dataclass
class AttentionGroup:
    metadata_builders: list[Any]


class MetadataBuilder:
    """One that keeps a buffer for graphs, as FlashAttention's."""

    def __init__(self, max_num_reqs: int) -> None:
        self.scheduler_metadata = torch.zeros(max_num_reqs, dtype=torch.int32)

    def build(self, num_reqs: int, seq_lens: torch.Tensor) -> torch.Tensor:
        made = (seq_lens + 1) // 2  # a fresh tensor
        self.scheduler_metadata[:num_reqs] = made
        self.scheduler_metadata[num_reqs:] = 0
        return self.scheduler_metadata[:num_reqs]


@dataclass
class SchedulerOutput:
    num_scheduled_tokens: dict[str, int]
    scheduled_spec_decode_tokens: dict[str, Any] = field(default_factory=dict)

    @property
    def total_num_scheduled_tokens(self) -> int:
        return sum(self.num_scheduled_tokens.values())


def config(sizes: Sequence[int] = (4, 2), **more: Any) -> SimpleNamespace:
    """A ``VllmConfig``."""
    facts = {
        "model_config": SimpleNamespace(max_model_len=32),
        "compilation_config": SimpleNamespace(cudagraph_capture_sizes=sizes, max_cudagraph_capture_size=max(sizes)),
        "scheduler_config": SimpleNamespace(max_num_seqs=4, max_num_batched_tokens=16),
        "parallel_config": SimpleNamespace(data_parallel_size=1, data_parallel_index=0, world_size=1),
    }
    return SimpleNamespace(**(facts | more))


def cache_config(num_blocks: int = 24) -> SimpleNamespace:
    """A ``KVCacheConfig`` with one group."""
    return SimpleNamespace(num_blocks=num_blocks, kv_cache_groups=[SimpleNamespace(kv_cache_spec=FullAttentionSpec())])


class Model:
    """Two pieces with attention between them, each piece wrapped."""

    def __init__(self, vllm_config: Any) -> None:
        self.runner: Any = None
        wrap = CUDAGraphMode.PIECEWISE
        self.pieces = [CUDAGraphWrapper(piece, vllm_config, wrap) for piece in (self.first, self.last)]

    def first(self, input_ids: torch.Tensor, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = input_ids * 3 + positions
        return hidden, torch.zeros_like(hidden)  # attention writes into memory of the piece before it

    def last(self, attended: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        return attended * 2 + positions

    def attention(self, hidden: torch.Tensor, output: torch.Tensor, metadata: Any) -> torch.Tensor:
        if metadata is None:
            return output.copy_(hidden)
        cache = self.runner.kv_caches[0]
        count = min(len(metadata.slot_mapping), len(hidden))
        slots = metadata.slot_mapping[:count]
        cache.index_put_((torch.where(slots < 0, 0, slots),), hidden[:count])
        rows = torch.index_select(cache, 0, metadata.block_table[:, 0] * BLOCK)
        whole = metadata.block_table.sum(1) * 0  # a kernel is given whole rows
        seen = rows + whole + metadata.seq_lens + metadata.scheduler_metadata
        return output.copy_(hidden + (seen if len(seen) == len(hidden) else seen.sum()))

    def __call__(self, input_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        hidden, output = self.pieces[0](input_ids, positions)
        attended = self.attention(hidden, output, ForwardContext.metadata)
        return self.pieces[1](attended, positions)


class GPUModelRunner:
    def __init__(self, vllm_config: Any, device: torch.device) -> None:
        self.vllm_config, self.device = vllm_config, device
        self.compilation_config, self.parallel_config = vllm_config.compilation_config, vllm_config.parallel_config
        self.max_model_len = vllm_config.model_config.max_model_len
        self.max_num_tokens = vllm_config.scheduler_config.max_num_batched_tokens
        self.max_num_reqs = vllm_config.scheduler_config.max_num_seqs
        self.calculate_kv_scales = False
        self.kv_caches: list[torch.Tensor] = []
        self.attn_groups: list[list[AttentionGroup]] = []
        self.input_batch = InputBatch(self.max_num_reqs, self.max_num_tokens, self.max_model_len)
        self.input_ids = self._make_buffer(self.max_num_tokens, dtype=torch.int32)
        self.positions = torch.zeros(self.max_num_tokens, dtype=torch.int64)
        self.query_start_loc = self._make_buffer(self.max_num_reqs + 1, dtype=torch.int32)
        self.seq_lens = torch.zeros(self.max_num_reqs, dtype=torch.int32)
        self.optimistic_seq_lens_cpu = torch.zeros(self.max_num_reqs, dtype=torch.int32)
        self.uniform_decode_query_len = 1
        self.cudagraph_dispatcher = CudagraphDispatcher(self.compilation_config.cudagraph_capture_sizes)
        self.model: Any = Model(vllm_config)
        self.model.runner = self
        self.model = CUDAGraphWrapper(self.model, vllm_config, CUDAGraphMode.FULL)  # in `load_model`
        self.results: list[torch.Tensor] = []

    def _make_buffer(self, *size: int, dtype: torch.dtype) -> CpuGpuBuffer:
        return CpuGpuBuffer(*size, dtype=dtype)

    # -- set-up

    def initialize_kv_cache(self, kv_cache_config: Any, is_profiling: bool = False) -> None:
        self.kv_cache_config = kv_cache_config
        self.attn_groups = [[AttentionGroup([MetadataBuilder(self.max_num_reqs)])]]
        self.input_batch = InputBatch(self.max_num_reqs, self.max_num_tokens, self.max_model_len)
        self.kv_caches.append(torch.zeros(kv_cache_config.num_blocks * BLOCK, dtype=torch.int64))

    def _cleanup_profiling_kv_cache(self) -> None:
        self.kv_caches.clear()
        self.attn_groups.clear()
        del self.kv_cache_config

    def profile_cudagraph_memory(self) -> int:
        self.initialize_kv_cache(cache_config(4), is_profiling=True)
        for mode, descs in self.cudagraph_dispatcher.get_capture_descs():
            for desc in descs[:2]:
                self._warmup_and_capture(desc, cudagraph_runtime_mode=mode)
        CUDAGraphWrapper.clear_all_graphs()
        ForwardContext.metadata = None
        self._cleanup_profiling_kv_cache()
        return 1 << 20

    def capture_model(self) -> int:
        for mode, descs in self.cudagraph_dispatcher.get_capture_descs():
            for desc in descs:
                self._warmup_and_capture(desc, cudagraph_runtime_mode=mode)
        return 1 << 20

    def _warmup_and_capture(self, desc: BatchDescriptor, cudagraph_runtime_mode: CUDAGraphMode) -> None:
        self._dummy_run(desc.num_tokens, CUDAGraphMode.NONE, uniform_decode=desc.uniform)
        self._dummy_run(desc.num_tokens, cudagraph_runtime_mode, uniform_decode=desc.uniform)

    def _dummy_run(self, num_tokens: int, cudagraph_runtime_mode: CUDAGraphMode, uniform_decode: bool) -> None:
        num_reqs = min(num_tokens, self.max_num_reqs)
        counts = np.full(num_reqs, num_tokens // num_reqs, dtype=np.int32)
        _, batch_desc, _, _, _ = self._determine_batch_execution_and_padding(
            num_tokens=num_tokens,
            num_reqs=num_reqs,
            num_scheduled_tokens_np=counts,
            max_num_scheduled_tokens=1 if uniform_decode else num_tokens,
            use_cascade_attn=False,
            force_uniform_decode=uniform_decode,
        )
        slot_mappings, _ = self._get_slot_mappings(batch_desc.num_tokens, num_reqs, num_tokens)
        for mapping in slot_mappings.values():
            mapping.fill_(-1)
        ForwardContext.metadata = None
        if cudagraph_runtime_mode is CUDAGraphMode.FULL:
            self.seq_lens.copy_(self.optimistic_seq_lens_cpu)
            ForwardContext.metadata, _ = self._build_attention_metadata(
                num_tokens, num_reqs, slot_mappings=slot_mappings
            )
        self._forward(cudagraph_runtime_mode, batch_desc, self.model, batch_desc.num_tokens)

    def _forward(self, mode: CUDAGraphMode, desc: BatchDescriptor, model: Any, num_tokens: int) -> torch.Tensor:
        ForwardContext.mode, ForwardContext.descriptor = mode, desc
        try:
            out: torch.Tensor = model(
                input_ids=self.input_ids.gpu[:num_tokens],
                positions=self.positions[:num_tokens],
            )
        finally:
            ForwardContext.mode, ForwardContext.descriptor = CUDAGraphMode.NONE, None
        return out

    def post_kv_cache_wake_up(self) -> None:
        """Zeroes the KV cache where it is quantized, which it is not here."""

    # -- a step

    def _prepare_inputs(self, scheduler_output: SchedulerOutput, num_scheduled_tokens: np.ndarray[Any, Any]) -> Any:
        total = scheduler_output.total_num_scheduled_tokens
        num_reqs = self.input_batch.num_reqs
        self.input_batch.block_table.commit_block_table(num_reqs)
        rows = np.repeat(np.arange(num_reqs), num_scheduled_tokens)
        ends = np.cumsum(num_scheduled_tokens)
        within = np.arange(total) - np.repeat(ends - num_scheduled_tokens, num_scheduled_tokens)
        positions = self.input_batch.num_computed_tokens_cpu[rows] + within
        self.input_ids.np[:total] = 100 + positions
        self.query_start_loc.np[0] = 0
        self.query_start_loc.np[1 : num_reqs + 1] = ends
        self.query_start_loc.np[num_reqs + 1 :].fill(ends[-1])
        self.query_start_loc.copy_to_gpu()
        lengths = torch.from_numpy(self.input_batch.num_computed_tokens_cpu[:num_reqs] + num_scheduled_tokens)
        self.optimistic_seq_lens_cpu[:num_reqs] = lengths
        self.optimistic_seq_lens_cpu[num_reqs:].fill_(0)
        self.positions[:total] = torch.from_numpy(positions)
        self.seq_lens[:num_reqs] = lengths
        self.seq_lens[num_reqs:].fill_(0)
        self.input_batch.block_table.compute_slot_mapping(
            num_reqs, self.query_start_loc.gpu[: num_reqs + 1], self.positions[:total]
        )
        self.input_ids.copy_to_gpu(total)
        return self.query_start_loc.gpu[1 : num_reqs + 1] - 1, None

    def _determine_batch_execution_and_padding(
        self,
        num_tokens: int,
        num_reqs: int,
        num_scheduled_tokens_np: np.ndarray[Any, Any],
        max_num_scheduled_tokens: int,
        use_cascade_attn: bool,
        force_uniform_decode: bool | None = None,
    ) -> Any:
        uniform = max_num_scheduled_tokens == self.uniform_decode_query_len and num_tokens == num_reqs
        if force_uniform_decode is not None:
            uniform = force_uniform_decode
        mode, desc = self.cudagraph_dispatcher.dispatch(num_tokens, uniform_decode=uniform)
        return mode, desc, False, None, None

    def _get_slot_mappings(self, num_tokens_padded: int, num_reqs_padded: int, num_tokens_unpadded: int) -> Any:
        slot_mapping = self.input_batch.block_table[0].slot_mapping.gpu[:num_tokens_padded]
        slot_mapping[num_tokens_unpadded:num_tokens_padded].fill_(-1)
        return {0: slot_mapping}, {}

    def _build_attention_metadata(
        self, num_tokens: int, num_reqs: int, num_reqs_padded: int | None = None, slot_mappings: Any = None
    ) -> Any:
        padded = num_reqs_padded or num_reqs
        table = self.input_batch.block_table[0].get_device_tensor(padded)
        table[num_reqs:padded].fill_(0)
        seq_lens = self.seq_lens[:padded]
        builder = self.attn_groups[0][0].metadata_builders[0]
        scheduled = builder.build(padded, seq_lens)
        metadata = SimpleNamespace(
            block_table=table, slot_mapping=slot_mappings[0], seq_lens=seq_lens, scheduler_metadata=scheduled
        )
        return metadata, None

    def _preprocess(self, scheduler_output: SchedulerOutput, num_input_tokens: int) -> Any:
        total = scheduler_output.total_num_scheduled_tokens
        if num_input_tokens > total:
            self.positions[total:num_input_tokens].zero_()
        return self.input_ids.gpu[:num_input_tokens], self.positions[:num_input_tokens]

    def _model_forward(
        self, input_ids: torch.Tensor | None = None, positions: torch.Tensor | None = None, **model_kwargs: Any
    ) -> Any:
        return self.model(input_ids=input_ids, positions=positions, **model_kwargs)

    def execute_model(self, scheduler_output: SchedulerOutput, intermediate_tensors: Any = None) -> Any:
        num_reqs, req_ids = self.input_batch.num_reqs, self.input_batch.req_ids
        counts = np.array([scheduler_output.num_scheduled_tokens[each] for each in req_ids], dtype=np.int32)
        total = scheduler_output.total_num_scheduled_tokens
        self._prepare_inputs(scheduler_output, counts)
        mode, desc, _, _, _ = self._determine_batch_execution_and_padding(
            num_tokens=total,
            num_reqs=num_reqs,
            num_scheduled_tokens_np=counts,
            max_num_scheduled_tokens=int(counts.max()),
            use_cascade_attn=False,
        )
        padded = desc.num_reqs if desc.num_reqs is not None else num_reqs
        full = mode is CUDAGraphMode.FULL
        mappings, _ = self._get_slot_mappings(desc.num_tokens, padded, total)
        ForwardContext.metadata, _ = self._build_attention_metadata(
            num_tokens=total,
            num_reqs=num_reqs,
            num_reqs_padded=padded if full else None,
            slot_mappings=mappings,
        )
        input_ids, positions = self._preprocess(scheduler_output, desc.num_tokens)
        ForwardContext.mode, ForwardContext.descriptor = mode, desc
        try:
            self.results.append(self._model_forward(input_ids=input_ids, positions=positions))
        finally:
            ForwardContext.mode, ForwardContext.descriptor = CUDAGraphMode.NONE, None

    def sample_tokens(self, grammar_output: Any) -> Any:
        return self.results[-1].tolist()

    # -- what the scheduler does

    def step(self, lengths: Sequence[int], counts: Sequence[int] | None = None) -> None:
        """One step of requests that have these lengths behind it, of one new token each, or of so many."""
        counts = counts or [1] * len(lengths)
        ids = [f"request-{index}" for index in range(len(lengths))]
        batch = self.input_batch
        batch._req_ids[:] = ids
        for index, (length, count) in enumerate(zip(lengths, counts, strict=True)):
            batch.num_computed_tokens_cpu[index] = length - count
            blocks = np.arange(-(-length // BLOCK)) + 1 + index * 5
            batch.block_table[0].block_table.np[index, : len(blocks)] = blocks
        self.execute_model(SchedulerOutput(dict(zip(ids, counts, strict=True))))


class AsyncGPUModelRunnerOutput:
    def get_output(self) -> Any:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")


class AsyncGPUPoolingModelRunnerOutput(AsyncGPUModelRunnerOutput):
    def get_output(self) -> Any:
        return None


def copied(kind: type) -> type:
    """A class of its own for each test, which has the methods itself, as patches expect."""
    made: type = type(
        kind.__name__, (kind,), {n: v for n, v in vars(kind).items() if n not in ("__dict__", "__weakref__")}
    )
    return made


def modules() -> dict[str, ModuleType]:
    """The modules, by their names in vLLM."""
    runner, wrapper = ModuleType(RUNNER), ModuleType(WRAPPER)
    vars(runner).update(
        GPUModelRunner=copied(GPUModelRunner),
        AsyncGPUModelRunnerOutput=AsyncGPUModelRunnerOutput,
        AsyncGPUPoolingModelRunnerOutput=AsyncGPUPoolingModelRunnerOutput,
    )
    vars(wrapper).update(CUDAGraphWrapper=CUDAGraphWrapper)
    return {RUNNER: runner, WRAPPER: wrapper, "vllm": sys.modules.get("vllm") or ModuleType("vllm")}
