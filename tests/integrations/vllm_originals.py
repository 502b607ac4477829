"""vLLM's own V1 runner, wrapper, dispatcher and block tables, executed from their source, without vLLM's packages.

Set-up is made here: sizes, one layer with its metadata builder, the requests of a step. Steps, dummy runs, captures,
dispatch and the slot mapping kernel are vLLM's. What the source refers to beyond that does nothing.
"""

from __future__ import annotations

import ast
import builtins
import copy
import dataclasses
import enum
import gc
import itertools
import threading
import time
import weakref
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar, NamedTuple
from unittest.mock import MagicMock, patch

import numpy as np
import torch
import triton
import triton.language as tl
from support import vllm_source as source

import shadowgraph as sg

RUNNER, WRAPPER = "vllm.v1.worker.gpu_model_runner", "vllm.compilation.cuda_graph"
_BREAKABLE = "vllm.compilation.breakable_cudagraph"
BLOCK = 4
_CLASSES = (  # that ``isinstance`` is asked for
    *("EncoderOnlyAttentionSpec", "UniformTypeKVCacheSpecs", "CrossAttentionSpec", "IntermediateTensors"),
    *("Mamba2AttentionMetadataBuilder", "GDNAttentionMetadataBuilder", "UBatchWrapper"),
)


class _Accelerator:
    def __getattr__(self, name: str) -> Any:
        return lambda *args, **kwargs: None


class HostTorch:
    """torch where a CUDA graph is a host graph."""

    accelerator = _Accelerator()
    cuda = SimpleNamespace(
        CUDAGraph=sg.HostGraph,
        graph=lambda graph, pool=None, stream=None: sg.host_graph(graph),
        mem_get_info=lambda: (1 << 34, 1 << 35),
    )

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


@contextmanager
def set_forward_context(attn_metadata: Any, vllm_config: Any, **given: Any) -> Iterator[None]:
    before = _context[:]
    mode, descriptor = given["cudagraph_runtime_mode"], given["batch_descriptor"]
    _context[:] = [SimpleNamespace(metadata=attn_metadata, cudagraph_runtime_mode=mode, batch_descriptor=descriptor)]
    try:
        yield
    finally:
        _context[:] = before


_context: list[Any] = []
_GIVEN = {
    "np": np,
    "triton": triton,
    "tl": tl,
    "gc": gc,
    "time": time,
    "weakref": weakref,
    "enum": enum,
    "Any": Any,
    "dataclasses": dataclasses,
    "dataclass": dataclasses.dataclass,
    "replace": dataclasses.replace,
    "patch": patch,
    "ClassVar": ClassVar,
    "NamedTuple": NamedTuple,
    "Counter": Counter,
    "itertools": itertools,
    "copy": copy.copy,
    "contextmanager": contextmanager,
    "nullcontext": nullcontext,
    "ExitStack": ExitStack,
    "threading": threading,
    "defaultdict": defaultdict,
    "deepcopy": copy.deepcopy,
    "product": itertools.product,
    "AbstractSet": set,
    "set_forward_context": set_forward_context,
    "get_forward_context": lambda: _context[-1],
    "is_forward_context_available": lambda: bool(_context),
    "weak_ref_tensors": lambda value: value,
    "record_function_or_nullcontext": lambda name: nullcontext(),
    "instrument": lambda **_: lambda function: function,
    "cdiv": lambda a, b: -(-a // b),
    "maybe_create_ubatch_slices": lambda *_: (None, None),
    "is_global_first_rank": lambda: False,
    "get_pp_group": lambda: SimpleNamespace(is_first_rank=True, is_last_rank=True),
    "get_pcp_group": lambda: SimpleNamespace(world_size=1, rank_in_group=0),
    "get_dcp_group": lambda: SimpleNamespace(world_size=1, rank_in_group=0),
    "has_kv_transfer_group": lambda: False,
    "has_ec_transfer": lambda: False,
    "CommonAttentionMetadata": SimpleNamespace,
    "set_current_vllm_config": lambda config: nullcontext(),
    "envs": SimpleNamespace(
        VLLM_LOGGING_LEVEL="INFO", VLLM_ENABLE_CUDAGRAPH_GC=True, VLLM_RANDOMIZE_DP_DUMMY_INPUTS=False
    ),
    "NULL_BLOCK_ID": 0,
    "PAD_SLOT_ID": -1,
    **{name: type(name, (), {}) for name in _CLASSES},
}


def load(file: str, *names: str, without: str = "", **given: Any) -> SimpleNamespace:
    """Classes and functions of a file, executed from their source.

    Parameters
    ----------
    without
        A statement that is left out.
    given
        What they refer to, beside what `_GIVEN` has.
    """
    tree = copy.deepcopy(source.tree_of(file))
    wanted = [each for each in tree.body if isinstance(each, ast.ClassDef | ast.FunctionDef) and each.name in names]
    assert {each.name for each in wanted} == set(names)
    dropped = [0]
    for each in wanted:
        if isinstance(each, ast.ClassDef) and each.name == "GPUModelRunner":
            each.bases = []
        if without:
            _drop(each, source.squeezed(without), dropped)
    assert dropped[0] == bool(without), without
    used = {each.id for part in wanted for each in ast.walk(part) if isinstance(each, ast.Name)}
    space: dict[str, Any] = {name: MagicMock(name=name) for name in used if not hasattr(builtins, name)}
    space.update(__name__=__name__, torch=HostTorch(), **_GIVEN, **given)
    future = ast.ImportFrom("__future__", [ast.alias("annotations")], 0)
    code = ast.fix_missing_locations(ast.Module([future, *wanted], []))
    root = source.root()
    assert root is not None
    exec(compile(code, str(root / file), "exec"), space)  # kernels are compiled from their lines
    return SimpleNamespace(**{name: space[name] for name in names})


def _drop(node: ast.AST, statement: str, dropped: list[int]) -> None:
    for name, value in ast.iter_fields(node):
        if isinstance(value, list):
            kept = [each for each in value if source.squeezed(_said(each)) != statement]
            dropped[0] += len(value) - len(kept)
            setattr(node, name, kept if kept or not value else [ast.Pass()])
            for each in kept:
                if isinstance(each, ast.AST):
                    _drop(each, statement, dropped)


def _said(node: Any) -> str:
    return ast.unparse(node) if isinstance(node, ast.stmt) and not isinstance(node, ast.FunctionDef) else ""


class Originals:
    """The classes, and a runner of theirs."""

    def __init__(self, without: str = "") -> None:
        self.modes = load("vllm/config/compilation.py", "CUDAGraphMode").CUDAGraphMode
        self.descriptor = load("vllm/forward_context.py", "BatchDescriptor").BatchDescriptor
        common = {"CUDAGraphMode": self.modes, "BatchDescriptor": self.descriptor}
        self.dispatcher = load("vllm/v1/cudagraph_dispatcher.py", "CudagraphDispatcher", **common).CudagraphDispatcher
        self.wrappers = load(
            "vllm/compilation/cuda_graph.py", "CUDAGraphEntry", "CUDAGraphOptions", "CUDAGraphWrapper", **common
        )
        buffer = load("vllm/v1/utils.py", "CpuGpuBuffer").CpuGpuBuffer
        self.tables = load(
            "vllm/v1/worker/block_table.py",
            *("BlockTable", "MultiGroupBlockTable", "_compute_slot_mapping_kernel"),
            CpuGpuBuffer=buffer,
        )
        self.runners = load(
            "vllm/v1/worker/gpu_model_runner.py",
            *("GPUModelRunner", "ExecuteModelState", "AsyncGPUModelRunnerOutput", "AsyncGPUPoolingModelRunnerOutput"),
            without=without,
            CpuGpuBuffer=buffer,
            CUDAGraphWrapper=self.wrappers.CUDAGraphWrapper,
            CudagraphDispatcher=self.dispatcher,
            AsyncModelRunnerOutput=object,
            **common,
        )
        _set_up(self)

    def modules(self) -> dict[str, ModuleType]:
        """The modules, by their names in vLLM."""
        made = {name: ModuleType(name) for name in ("vllm", "vllm.compilation", _BREAKABLE, RUNNER, WRAPPER)}
        vars(made[_BREAKABLE])["is_breakable_cudagraph_enabled"] = lambda: False  # from 0.22 on
        vars(made[RUNNER]).update(vars(self.runners))
        vars(made[WRAPPER]).update(vars(self.wrappers))
        return made

    def config(self, mode: str, sizes: Sequence[int]) -> SimpleNamespace:
        """A ``VllmConfig``."""
        return SimpleNamespace(
            model_config=SimpleNamespace(
                max_model_len=32, multimodal_config=None, is_encoder_decoder=False, enable_return_routed_experts=False
            ),
            compilation_config=SimpleNamespace(
                cudagraph_mode=self.modes[mode],
                cudagraph_capture_sizes=sorted(sizes),
                max_cudagraph_capture_size=max(sizes),
                cudagraph_num_of_warmups=1,
                compile_sizes=[],
                is_attention_compiled_piecewise=lambda: True,
                mode=None,
                splitting_ops=[],
                cudagraph_specialize_lora=False,
                cudagraph_mm_encoder=False,
                static_forward_context={},
                pass_config=SimpleNamespace(enable_sp=False),
            ),
            scheduler_config=SimpleNamespace(max_num_seqs=4, max_num_batched_tokens=16),
            parallel_config=SimpleNamespace(
                data_parallel_size=1,
                data_parallel_index=0,
                world_size=1,
                tensor_parallel_size=1,
                use_ubatching=False,
                num_ubatches=1,
                distributed_executor_backend=None,
            ),
            speculative_config=None,
            lora_config=None,
            observability_config=SimpleNamespace(cudagraph_metrics=False, enable_layerwise_nvtx_tracing=False),
            cache_config=SimpleNamespace(
                kv_sharing_fast_prefill=False,
                mamba_cache_mode="none",
                num_gpu_blocks=None,
                num_gpu_blocks_override=None,
            ),
            load_config=SimpleNamespace(use_tqdm_on_load=False),
        )


class FullAttentionSpec:
    """Of a layer that keeps tokens."""

    block_size = BLOCK


class Builder:
    """A metadata builder that keeps a buffer for graphs."""

    supports_update_block_table = False

    def __init__(self, max_num_reqs: int) -> None:
        self.scheduler_metadata = torch.zeros(max_num_reqs, dtype=torch.int32)

    def build(self, common_prefix_len: int, common_attn_metadata: Any) -> Any:
        given = common_attn_metadata
        n = given.num_reqs
        self.scheduler_metadata[:n] = (given.seq_lens + 1) // 2
        self.scheduler_metadata[n:] = 0
        return SimpleNamespace(
            slot_mapping=given.slot_mapping,
            block_table=given.block_table_tensor,
            seq_lens=given.seq_lens,
            query_start_loc=given.query_start_loc,
            scheduler_metadata=self.scheduler_metadata[:n],
        )

    def build_for_cudagraph_capture(self, common_attn_metadata: Any) -> Any:
        return self.build(0, common_attn_metadata)


class Model:
    """Two pieces with attention between them, each piece wrapped as a compiled one."""

    def __init__(self, originals: Originals, runner: Any) -> None:
        wrap, mode = originals.wrappers.CUDAGraphWrapper, originals.modes.PIECEWISE
        self.runner = weakref.proxy(runner)
        self.pieces = [wrap(piece, runner.vllm_config, mode) for piece in (first, last)]

    def attention(self, hidden: torch.Tensor, output: torch.Tensor) -> torch.Tensor:
        metadata = (_context[-1].metadata or {}).get("layer")
        if metadata is None:
            return output.copy_(hidden)
        cache, slots = self.runner.kv_caches[0], metadata.slot_mapping
        count = min(len(slots), len(hidden))
        cache.index_put_((torch.where(slots[:count] < 0, 0, slots[:count]),), hidden[:count])
        rows = torch.index_select(cache, 0, metadata.block_table[:, 0] * BLOCK) + metadata.block_table.sum(1) * 0
        seen = rows + metadata.seq_lens + metadata.scheduler_metadata + metadata.query_start_loc[1:]
        return output.copy_(hidden + (seen if len(seen) == len(hidden) else seen.sum()))

    def __call__(self, input_ids: torch.Tensor, positions: torch.Tensor, **_: Any) -> torch.Tensor:
        hidden, output = self.pieces[0](input_ids, positions)
        attended = self.attention(hidden, output)
        result: torch.Tensor = self.pieces[1](attended, positions)
        return result

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden


def first(input_ids: torch.Tensor, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    hidden = input_ids * 3 + positions
    return hidden, torch.zeros_like(hidden)


def last(attended: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    return attended * 2 + positions


class InputBatch:
    """The requests of a step: what the scheduler and ``_update_states`` leave in vLLM's own."""

    prev_sampled_token_ids = prev_req_id_to_index = None

    def __init__(self, originals: Originals, max_num_reqs: int, max_num_tokens: int, max_model_len: int) -> None:
        self.req_ids: list[str] = []
        self.lora_id_to_lora_request: dict[int, Any] = {}
        self.req_prompt_embeds: dict[int, Any] = {}
        self.token_ids_cpu_tensor = torch.arange(max_num_reqs * max_model_len, dtype=torch.int32).view(max_num_reqs, -1)
        self.token_ids_cpu = self.token_ids_cpu_tensor.numpy()
        for name in ("num_computed_tokens", "num_prompt_tokens"):
            setattr(self, f"{name}_cpu_tensor", torch.zeros(max_num_reqs, dtype=torch.int32))
        self.num_computed_tokens_cpu = self.num_computed_tokens_cpu_tensor.numpy()  # type: ignore[attr-defined]
        self.block_table = originals.tables.MultiGroupBlockTable(
            max_num_reqs,
            max_model_len,
            max_num_tokens,
            False,
            torch.device("cpu"),
            [BLOCK],
            [BLOCK],
            [max_model_len // BLOCK],
        )

    @property
    def num_reqs(self) -> int:
        return len(self.req_ids)


def _set_up(originals: Originals) -> None:
    """Put methods of the set-up in place, and what mix-ins have."""
    cls = originals.runners.GPUModelRunner

    def __init__(self: Any, vllm_config: Any, device: torch.device) -> None:
        self.vllm_config, self.device, self.pin_memory = vllm_config, device, False
        for name in ("model", "compilation", "scheduler", "parallel", "speculative", "lora", "observability", "cache"):
            setattr(self, f"{name}_config", getattr(vllm_config, f"{name}_config"))
        self.load_config = vllm_config.load_config
        self.max_model_len, self.max_num_tokens, self.max_num_reqs = 32, 16, 4
        self.is_pooling_model = self.uses_mrope = self.supports_mm_inputs = self.enable_prompt_embeds = False
        self.calculate_kv_scales = self.use_async_spec_decode = self.use_async_scheduling = False
        self.routed_experts_initialized = self.use_aux_hidden_state_outputs = self.broadcast_pp_output = False
        self.cascade_attn_enabled = self.is_mm_prefix_lm = False
        self.uses_xdrope_dim, self.dcp_world_size, self.uniform_decode_query_len = 0, 1, 1
        self.prepare_inputs_event = self.num_accepted_tokens_event = self.execute_model_state = None
        self.encoder_cudagraph_manager = self.mamba_prev_last_scheduled_idx = None
        self.kv_caches, self.attn_groups, self.requests = [], [], {}
        self.input_batch = InputBatch(originals, 4, 16, 32)
        self.input_ids = self._make_buffer(16, dtype=torch.int32)
        self.positions = torch.zeros(16, dtype=torch.int64, device=device)
        self.query_start_loc = self._make_buffer(5, dtype=torch.int32)
        self.seq_lens = torch.zeros(4, dtype=torch.int32, device=device)
        self.optimistic_seq_lens_cpu = torch.zeros(4, dtype=torch.int32)
        self.num_computed_tokens = torch.zeros(4, dtype=torch.int32, device=device)
        for name in ("prev_positions", "num_scheduled_tokens", "num_accepted_tokens"):
            kind = torch.int64 if name == "prev_positions" else torch.int32
            setattr(self, name, self._make_buffer(4, dtype=kind))
        self.discard_request_mask = self._make_buffer(4, dtype=torch.bool)
        self.req_indices = self._make_buffer(16, dtype=torch.int64)
        self.arange_np = np.arange(16, dtype=np.int64)
        self.query_pos = self._make_buffer(16, dtype=torch.int64)
        self.cudagraph_dispatcher = originals.dispatcher(vllm_config)
        self.model = originals.wrappers.CUDAGraphWrapper(Model(originals, self), vllm_config, originals.modes.FULL)

    def initialize_kv_cache(self: Any, kv_cache_config: Any, is_profiling: bool = False) -> None:
        self.kv_cache_config = kv_cache_config
        builder = Builder(self.max_num_reqs)
        group = SimpleNamespace(
            backend=SimpleNamespace(forward_includes_kv_cache_update=True),
            layer_names=["layer"],
            metadata_builders=[builder],
            get_metadata_builder=lambda ubatch: builder,
        )
        self.attn_groups = [[group]]
        self.cudagraph_dispatcher.initialize_cudagraph_keys(self.compilation_config.cudagraph_mode, 1)
        self.input_batch = InputBatch(originals, 4, 16, 32)
        self.kv_caches.append(torch.zeros(kv_cache_config.num_blocks * BLOCK, dtype=torch.int64))

    cls.__init__, cls.initialize_kv_cache = __init__, initialize_kv_cache
    cls._init_minimal_kv_cache_for_profiling = lambda self: self.initialize_kv_cache(cache(4), is_profiling=True)
    cls._update_states = lambda self, scheduler_output: None
    cls.maybe_dummy_run_with_lora = lambda self, *args: nullcontext()
    cls.maybe_get_kv_connector_output = lambda self, *args, **kwargs: nullcontext()
    cls.maybe_remove_all_loras = lambda self, config: None


def cache(num_blocks: int = 24) -> SimpleNamespace:
    """A ``KVCacheConfig`` with one group."""
    group = SimpleNamespace(kv_cache_spec=FullAttentionSpec(), layer_names=["layer"])
    return SimpleNamespace(num_blocks=num_blocks, kv_cache_groups=[group])


def step(runner: Any, lengths: Sequence[int], counts: Sequence[int] | None = None) -> None:
    """One step of requests that have these lengths behind it, of one new token each, or of so many."""
    counts = counts or [1] * len(lengths)
    ids = [f"request-{index}" for index in range(len(lengths))]
    batch = runner.input_batch
    batch.req_ids[:] = ids
    runner.requests = {each: SimpleNamespace(num_tokens=length) for each, length in zip(ids, lengths, strict=True)}
    for index, (length, count) in enumerate(zip(lengths, counts, strict=True)):
        batch.num_computed_tokens_cpu[index] = length - count
        batch.block_table.block_tables[0].add_row([1 + index * 5 + n for n in range(-(-length // BLOCK))], index)
    scheduled = SimpleNamespace(
        num_scheduled_tokens=dict(zip(ids, counts, strict=True)),
        total_num_scheduled_tokens=sum(counts),
        scheduled_spec_decode_tokens={},
        scheduled_encoder_inputs={},
        num_common_prefix_blocks=[0],
    )
    runner.execute_model(scheduled)
    runner.execute_model_state = None  # as ``sample_tokens`` does
