"""What the adapter takes for granted, held against the source of the vLLM that is found, which is not imported."""

from __future__ import annotations

import ast
import inspect
import textwrap
from typing import Any

import pytest
import vllm_runner as fakes
import vllm_sleep as sleeping
from support import vllm_source as source

from shadowgraph.integrations.vllm.padding import FACTS, Fact
from shadowgraph.integrations.vllm.runners import _NEEDED, _NEEDED_V2
from shadowgraph.integrations.vllm.versions import (
    FIRST,
    GROUP,
    LAST,
    PARTS,
    RUNNER,
    RUNNER_V2,
    SLEEP,
    WORKER,
    WRAPPER,
    Part,
)

pytestmark = pytest.mark.skipif(source.root() is None, reason="needs vLLM's source: VLLM_SOURCE says where it is")
V1, V2, GRAPHS, CUMEM, GPU_WORKER = map(source.file_of, (RUNNER, RUNNER_V2, WRAPPER, SLEEP, WORKER))
TABLES, BATCH = "vllm/v1/worker/block_table.py", "vllm/v1/worker/gpu_input_batch.py"
UBATCH, MANAGER = "vllm/v1/worker/gpu_ubatch_wrapper.py", "vllm/v1/worker/gpu/cudagraph_utils.py"
STEP = (
    *("_prepare_inputs", "_determine_batch_execution_and_padding", "_get_slot_mappings"),
    *("_build_attention_metadata", "_preprocess", "_model_forward"),
)


def in_order(calls: list[str], names: tuple[str, ...]) -> list[str]:
    return [name for name in calls if name in names]


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.what)
def test_hooked_methods_are_there_with_their_parameters(part: Part) -> None:
    for method in part.methods:
        found = source.method_of(source.file_of(part.module), method.owner, method.name)
        assert source.parameters(found)[: len(method.parameters)] == method.parameters, method


@pytest.mark.parametrize("fact", FACTS, ids=lambda fact: f"{fact.source.rsplit('/', 1)[-1]}:{fact.name}")
def test_what_padded_rows_hold_stands_in_the_source(fact: Fact) -> None:
    assert source.squeezed(fact.line) in source.squeezed(source.text_of(fact.source))


def test_the_group_of_plugins() -> None:
    assert f'DEFAULT_PLUGINS_GROUP = "{GROUP}"' in source.text_of("vllm/plugins/__init__.py")
    for file in ("vllm/v1/engine/core.py", "vllm/v1/worker/worker_base.py"):
        assert "load_general_plugins()" in source.text_of(file)


def test_attributes_that_a_runner_must_have() -> None:
    assert set(_NEEDED) <= source.assigned(source.method_of(V1, "GPUModelRunner", "__init__"))
    assert set(_NEEDED_V2) - {"uniform_decode_query_len"} <= source.assigned(
        source.method_of(V2, "GPUModelRunner", "__init__")
    )
    assert "input_buffers" not in source.assigned(source.class_of(V1, "GPUModelRunner"))
    for file in (V1, V2):
        made = source.assigned(source.class_of(file, "GPUModelRunner"))
        assert {"kv_cache_config", "attn_groups", "max_num_reqs", "max_model_len", "vllm_config", "lora_config"} <= made


def test_a_step_of_the_first_runner() -> None:
    runner = source.class_of(V1, "GPUModelRunner")
    execute = source.method_of(V1, "GPUModelRunner", "execute_model")
    assert tuple(in_order(source.called(execute), STEP)) == STEP
    others = [node for node in runner.body if isinstance(node, ast.FunctionDef) and node.name != "execute_model"]
    assert not [node.name for node in others if {"_prepare_inputs", "_model_forward"} & set(source.called(node))]
    dispatch = source.method_of(V1, "GPUModelRunner", STEP[1])
    returned = dispatch.body[-1]
    assert isinstance(returned, ast.Return)
    assert isinstance(returned.value, ast.Tuple)
    assert [ast.unparse(each) for each in returned.value.elts][:3] == [
        "cudagraph_mode",
        "batch_descriptor",
        "should_ubatch",
    ]
    assert "self.model = CUDAGraphWrapper(" in source.text_of(V1)
    assert "self.model = UBatchWrapper(" in source.text_of(V1)


def test_the_host_knows_the_lengths() -> None:
    made = source.assigned(source.class_of(BATCH, "InputBatch"))
    assert "num_computed_tokens_cpu" in made
    for name in ("req_ids", "num_reqs"):
        decorators = source.method_of(BATCH, "InputBatch", name).decorator_list
        assert [ast.unparse(each) for each in decorators] == ["property"]
    lengths = "self.input_batch.num_computed_tokens_cpu_tensor[:num_reqs],torch.from_numpy(num_scheduled_tokens),"
    assert lengths in source.squeezed(source.text_of(V1))


def test_graphs_and_their_descriptors() -> None:
    wrapper = source.class_of(GRAPHS, "CUDAGraphWrapper")
    assert {"_all_instances", "runtime_mode", "vllm_config", "concrete_cudagraph_entries"} <= source.assigned(wrapper)
    assert {"batch_descriptor", "cudagraph"} <= source.assigned(source.class_of(GRAPHS, "CUDAGraphEntry"))
    assert {"cudagraphs", "cudagraph_wrapper"} <= source.assigned(source.class_of(UBATCH, "UBatchWrapper"))
    assert "self.cudagraphs[num_tokens]" in source.text_of(UBATCH)
    context = "vllm/forward_context.py"
    assert {"num_tokens", "num_reqs", "has_lora"} <= source.assigned(source.class_of(context, "BatchDescriptor"))
    modes = source.assigned(source.class_of("vllm/config/compilation.py", "CUDAGraphMode"))
    assert {"NONE", "PIECEWISE", "FULL"} <= modes
    assert "base = replace(" in source.text_of("vllm/v1/spec_decode/llm_base_proposer.py"), "a draft has its own config"


def test_captures_that_measure() -> None:
    measure = source.method_of(V1, "GPUModelRunner", "profile_cudagraph_memory")
    calls = source.called(measure)
    steps = ("_init_minimal_kv_cache_for_profiling", "_warmup_and_capture", "_cleanup_profiling_kv_cache")
    assert dict.fromkeys(in_order(calls, steps)) == dict.fromkeys((steps[0], steps[2], steps[1], steps[2]))
    assert "capture_model" not in calls
    assert source.called(measure, "CUDAGraphWrapper") == ["clear_all_graphs"]
    assert "is_profiling=True" in source.text_of(V1)


def test_block_tables() -> None:
    made = source.assigned(source.class_of(TABLES, "BlockTable"))
    assert {"block_table", "slot_mapping", "block_size", "blocks_per_kv_block"} <= made
    assert "block_tables" in source.assigned(source.class_of(TABLES, "MultiGroupBlockTable"))
    assert "PAD_SLOT_ID = -1" in source.text_of("vllm/v1/attention/backends/utils.py")
    assert "NULL_BLOCK_ID = 0" in source.text_of("vllm/v1/attention/backends/utils.py")
    assert {"cpu", "gpu", "np"} <= source.assigned(source.class_of("vllm/v1/utils.py", "CpuGpuBuffer"))
    assert "metadata_builders" in source.assigned(source.class_of("vllm/v1/worker/utils.py", "AttentionGroup"))
    specs = "vllm/v1/kv_cache_interface.py"
    for name in ("MambaSpec", "EncoderOnlyAttentionSpec"):
        source.class_of(specs, name)


def test_a_step_of_the_second_runner() -> None:
    execute = source.method_of(V2, "GPUModelRunner", "execute_model")
    assert in_order(source.called(execute), ("prepare_inputs", "prepare_attn")) == ["prepare_inputs", "prepare_attn"]
    assert source.called(execute, "self.cudagraph_manager") == ["run_fullgraph"]
    last = max(each.lineno for each in ast.walk(execute) if ast.unparse(each) == "self.prepare_attn")
    assert last < min(
        each.lineno for each in ast.walk(execute) if ast.unparse(each) == "self.cudagraph_manager.run_fullgraph"
    )
    assert "graphs" in source.assigned(source.class_of(MANAGER, "CudaGraphManager"))
    batch = source.assigned(source.class_of("vllm/v1/worker/gpu/input_batch.py", "InputBatch"))
    assert {
        *("req_ids", "num_reqs", "num_reqs_after_padding", "num_tokens", "num_tokens_after_padding"),
        "seq_lens_cpu_upper_bound",
    } <= batch
    tables = source.assigned(source.class_of("vllm/v1/worker/gpu/block_table.py", "BlockTables"))
    assert {"input_block_tables", "slot_mappings", "block_sizes"} <= tables


def test_ranks() -> None:
    made = source.assigned(source.class_of("vllm/config/parallel.py", "ParallelConfig"))
    assert {"world_size", "data_parallel_size", "data_parallel_index"} <= made
    assert {"rank", "parallel_config"} <= source.assigned(
        source.class_of("vllm/v1/worker/worker_base.py", "WorkerBase")
    )


def test_what_a_sleep_drops_and_a_wake_up_maps_again() -> None:
    allocator = ("CuMemAllocator", "sleep"), ("CuMemAllocator", "wake_up")
    sleep, wake_up = (source.squeezed(ast.unparse(source.method_of(CUMEM, *each))) for each in allocator)
    everything = "forptr,datainself.pointer_to_data.items():"
    for text in (sleep, wake_up):
        assert text.count(everything) == 1
    assert "offload_tags=(CuMemAllocator.default_tag,)" in sleep
    assert "isinstance(offload_tags,str):offload_tags=(offload_tags,)" in sleep
    assert "assertisinstance(offload_tags,tuple)" in sleep
    assert "ifdata.taginoffload_tags:" in sleep
    assert sleep.index("cudaMemcpy(cpu_ptr,ptr,size_in_bytes)") < sleep.index("unmap_and_release(handle)")
    assert sleep.index("unmap_and_release(handle)") < sleep.index("torch.cuda.empty_cache()"), "a sleep waits"
    assert "iftagsisNoneordata.tagintags:" in wake_up
    assert wake_up.index("create_and_map(handle)") < wake_up.index("cudaMemcpy(ptr,cpu_ptr,size_in_bytes)")
    assert source.assigned(source.class_of(CUMEM, "AllocationData")) == {"handle", "tag", "cpu_backup_tensor"}
    assert vars(sleeping.AllocationData(handle=(0, 0, 0, 0), tag="")).keys() == {"handle", "tag", "cpu_backup_tensor"}
    assert "# py_device, py_alignedSize, py_d_mem, py_p_memHandle\nHandleType" in source.text_of(CUMEM)
    assert {"pointer_to_data", "default_tag"} <= source.assigned(source.class_of(CUMEM, "CuMemAllocator"))


def test_what_a_worker_offloads_and_restores() -> None:
    sleep, wake_up = (source.method_of(GPU_WORKER, "Worker", name) for name in ("sleep", "wake_up"))
    said = source.squeezed(ast.unparse(sleep))
    assert "allocator.sleep(offload_tags=('weights',)iflevel==1elsetuple())" in said
    assert "iflevel==2:" in said
    assert ast.unparse(sleep.args.defaults[-1]) == "1"
    for function in (sleep, ast.parse(textwrap.dedent(inspect.getsource(sleeping.Worker.sleep)))):
        assert source.called(function, "model") == ["named_buffers"]
    for function in (wake_up, ast.parse(textwrap.dedent(inspect.getsource(sleeping.Worker.wake_up)))):
        text = source.squeezed(ast.unparse(function))
        steps = ("allocator.wake_up(tags)", "buffer.data.copy_(", "self.model_runner.post_kv_cache_wake_up()")
        places = [text.index(each) for each in steps]
        assert places == sorted(places)
    text = source.text_of(GPU_WORKER)
    assert 'with allocator.use_memory_pool(tag="kv_cache"):' in text
    assert 'self._maybe_get_memory_pool_context(tag="weights"),' in text
    for file in (V1, V2):
        source.method_of(file, "GPUModelRunner", "post_kv_cache_wake_up")


def test_the_version_is_one_that_is_known() -> None:
    where = source.root()
    assert where is not None
    release = max(tuple(map(int, path.name.split("-")[1].split(".")[:3])) for path in where.glob("vllm-*.dist-info"))
    assert FIRST <= release <= LAST


# -- the runner of the tests -----------------------------------------------------------------------------------------

COPIES = {
    V1: ("GPUModelRunner",),
    TABLES: ("BlockTable", "MultiGroupBlockTable"),
    GRAPHS: ("CUDAGraphWrapper",),
    "vllm/v1/cudagraph_dispatcher.py": ("CudagraphDispatcher",),
    "vllm/v1/utils.py": ("CpuGpuBuffer",),
    CUMEM: ("CuMemAllocator",),
    GPU_WORKER: ("Worker",),
}
OWN = {"step", "_forward", "take"}  # not vLLM's


@pytest.mark.parametrize(("file", "name"), [(file, name) for file, names in COPIES.items() for name in names])
def test_the_runner_of_the_tests_has_methods_of_the_original(file: str, name: str) -> None:
    kind = getattr(fakes, name, None) or getattr(sleeping, name)
    methods = {n: m for n, m in vars(kind).items() if inspect.isfunction(m) and n not in OWN and n != "__init__"}
    assert methods
    for method, copy in methods.items():
        plain = inspect.Parameter.POSITIONAL_OR_KEYWORD
        copied = [each.name for each in inspect.signature(copy).parameters.values() if each.kind is plain]
        assert set(copied) <= set(source.parameters(source.method_of(file, name, method))), method
    attributes = {name for name in assigned_by(kind) if not name.startswith("__")}
    assert attributes - {"results", "sizes", "model"} <= source.assigned(source.class_of(file, name))


def assigned_by(kind: type) -> set[str]:
    tree = ast.parse(textwrap.dedent(inspect.getsource(kind.__dict__["__init__"])))
    return {each for each in source.assigned(tree) if each in vars(probe(kind)) or each in _NEEDED}


def probe(kind: type) -> Any:
    """What an instance's constructor names."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(kind.__dict__["__init__"])))
    made = type("Probe", (), {})()
    for each in ast.walk(tree):
        if isinstance(each, ast.Attribute) and isinstance(each.value, ast.Name) and each.value.id == "self":
            setattr(made, each.attr, None)
    return made


def test_the_runner_of_the_tests_calls_in_the_order_of_the_original() -> None:
    tree = ast.parse(textwrap.dedent(inspect.getsource(fakes.GPUModelRunner.execute_model)))
    assert tuple(in_order(source.called(tree), STEP)) == STEP
    inputs = ("commit_block_table", "compute_slot_mapping")
    for function in (
        source.method_of(V1, "GPUModelRunner", "_prepare_inputs"),
        ast.parse(textwrap.dedent(inspect.getsource(fakes.GPUModelRunner._prepare_inputs))),
    ):
        assert tuple(in_order(source.called(function, "self.input_batch.block_table"), inputs)) == inputs
