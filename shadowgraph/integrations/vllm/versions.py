"""Supported versions of vLLM, the methods that are hooked, with the parameters that they were seen to have, and reasons
for the adapter to be off. Imports nothing of vLLM."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from shadowgraph.integrations import releases
from shadowgraph.integrations.releases import parsed as parsed
from shadowgraph.integrations.releases import written

GROUP, NAME = "vllm.general_plugins", "shadowgraph"
FIRST, LAST = (0, 21, 0), (0, 22, 1)  # both were read
RUNNER, RUNNER_V2 = "vllm.v1.worker.gpu_model_runner", "vllm.v1.worker.gpu.model_runner"
WRAPPER = "vllm.compilation.cuda_graph"
WORKER, SLEEP = "vllm.v1.worker.gpu_worker", "vllm.device_allocator.cumem"


@dataclass(frozen=True, slots=True)
class Method:
    """A hooked method: its class, its name, its leading parameters, and the hook that is called around it."""

    owner: str
    name: str
    parameters: tuple[str, ...]
    hook: str


@dataclass(frozen=True, slots=True)
class Part:
    """What is hooked in one module, or a part of that. Without one of the methods, none of them is hooked.

    Attributes
    ----------
    module
        Full dotted name.
    what
        What the report says is not known where a method is missing.
    methods
        All are there in the known versions.
    """

    module: str
    what: str
    methods: tuple[Method, ...]


def _ends(owner: str, *names: str, hook: str) -> tuple[Method, ...]:
    return tuple(Method(owner, name, ("self",), hook) for name in names)


PARTS = (
    Part(
        RUNNER,
        "the V1 model runner",
        (
            Method("GPUModelRunner", "__init__", ("self", "vllm_config", "device"), "made"),
            Method("GPUModelRunner", "initialize_kv_cache", ("self", "kv_cache_config", "is_profiling"), "cache_made"),
            Method("GPUModelRunner", "profile_cudagraph_memory", ("self",), "measure"),
            Method("GPUModelRunner", "capture_model", ("self",), "capture"),
            Method(
                "GPUModelRunner",
                "_prepare_inputs",
                ("self", "scheduler_output", "num_scheduled_tokens"),
                "prepare",
            ),
            Method(
                "GPUModelRunner",
                "_determine_batch_execution_and_padding",
                ("self", "num_tokens", "num_reqs"),
                "dispatch",
            ),
            Method("GPUModelRunner", "_model_forward", ("self", "input_ids", "positions"), "forward"),
            Method("GPUModelRunner", "execute_model", ("self", "scheduler_output"), "execute"),
            Method("GPUModelRunner", "sample_tokens", ("self", "grammar_output"), "sample"),
            *_ends("AsyncGPUModelRunnerOutput", "get_output", hook="output"),
            *_ends("AsyncGPUPoolingModelRunnerOutput", "get_output", hook="output"),
        ),
    ),
    Part(
        RUNNER_V2,
        "the V2 model runner",
        (
            Method("GPUModelRunner", "__init__", ("self", "vllm_config", "device"), "made"),
            Method("GPUModelRunner", "initialize_kv_cache", ("self", "kv_cache_config"), "cache_made"),
            Method("GPUModelRunner", "capture_model", ("self",), "capture"),
            Method("GPUModelRunner", "prepare_inputs", ("self", "scheduler_output", "batch_desc"), "prepare_v2"),
            Method("GPUModelRunner", "prepare_attn", ("self", "input_batch"), "prepare_attention_v2"),
            Method("GPUModelRunner", "execute_model", ("self", "scheduler_output"), "execute"),
            Method("GPUModelRunner", "sample_tokens", ("self", "grammar_output"), "sample"),
        ),
    ),
    Part(
        "vllm.v1.worker.gpu.cudagraph_utils",
        "replays of the V2 model runner",
        (Method("CudaGraphManager", "run_fullgraph", ("self", "desc"), "replay_v2"),),
    ),
    Part(
        "vllm.v1.worker.gpu.async_utils",
        "outputs of the V2 model runner",
        _ends("AsyncOutput", "get_output", hook="output"),
    ),
    Part(
        WORKER,
        "the worker",
        (
            *_ends("Worker", "init_device", hook="device"),
            *_ends("Worker", "load_model", "determine_available_memory", "compile_or_warm_up_model", hook="work"),
            Method("Worker", "initialize_from_config", ("self", "kv_cache_config"), "work"),
        ),
    ),
    Part(
        WORKER,
        "the level of a sleep",
        (Method("Worker", "sleep", ("self", "level"), "sleep_level"),),
    ),
    Part(
        SLEEP,
        "sleep mode",
        (
            Method("CuMemAllocator", "sleep", ("self", "offload_tags"), "fall_asleep"),
            Method("CuMemAllocator", "wake_up", ("self", "tags"), "wake"),
        ),
    ),
    Part(
        "vllm.v1.engine.core",
        "the engine core",
        (
            Method("EngineCore", "__init__", ("self", "vllm_config"), "engine"),
            *_ends("EngineCoreProc", "run_busy_loop", hook="engine"),
            *_ends("DPEngineCoreProc", "run_busy_loop", hook="engine"),
        ),
    ),
)


def installed() -> str | None:
    """Version of the installed vLLM, or None when it is not installed. Imports nothing."""
    return releases.installed("vllm")


def why_off(found: str | None) -> str | None:
    """Why the adapter does not take on a version, as one line, or None when it does."""
    release = parsed(found or "")
    if release is not None and FIRST <= release <= LAST:
        return None
    reason = f"vllm {found} is none of the versions that it knows, {written(FIRST)} to {written(LAST)}"
    return f"the vllm adapter is off: {reason}; generic tracking goes on"


def lacking(part: Part, module: Any) -> str | None:
    """The first method of a part that a module lacks, or has with other parameters; None when all are there."""
    for method in part.methods:
        function = vars(getattr(module, method.owner, object)).get(method.name)
        if not callable(function):
            return f"{method.owner}.{method.name}"
        if _leading(function, len(method.parameters)) != method.parameters:
            return f"{method.owner}.{method.name} with the parameters {', '.join(method.parameters)}"
    return None


def _leading(function: Callable[..., Any], count: int) -> tuple[str, ...]:
    try:
        return tuple(inspect.signature(function).parameters)[:count]
    except (TypeError, ValueError):
        return ()
