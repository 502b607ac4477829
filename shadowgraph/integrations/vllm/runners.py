"""The model runners of this process: reports their names, padding, rules and limits to the active debugger.

Called in the threads of vLLM that make a runner, its KV cache and its graphs. Keeps no object of vLLM alive.
"""

from __future__ import annotations

import weakref
from typing import Any

from shadowgraph.adapter_interface import AdapterInterface
from shadowgraph.integrations import notices
from shadowgraph.integrations.vllm import padding

# Attributes that are not followed for names, of the runner and of what it leads to: weights, configurations, requests
# with their tokens, results that are aliases of a graph's memory, and ways back.
WITHOUT = frozenset(
    (
        *("model", "runner", "layers", "requests", "encoder_cache", "execute_model_state", "kv_connector_output"),
        *("vllm_config", "model_config", "cache_config", "compilation_config", "parallel_config", "scheduler_config"),
        *("speculative_config", "draft_model_config", "lora_config", "load_config", "observability_config"),
        *("offload_config", "attention_config", "kv_transfer_config", "structured_outputs_config", "hf_config"),
        *("kv_cache_spec", "kv_cache_config", "layer_names", "lora_manager", "mm_registry", "mm_budget", "eplb_state"),
        *("sampling_metadata", "cudagraph_dispatcher", "late_interaction_runner", "_draft_token_ids"),
        *("encoder_timing_registry", "logitsprocs", "aux_hidden_states", "model_state"),
    )
)
_NEEDED = (
    *("input_batch", "cudagraph_dispatcher", "compilation_config", "uniform_decode_query_len"),
    *("input_ids", "positions", "query_start_loc", "seq_lens"),
)
_NEEDED_V2 = ("input_buffers", "req_states", "compilation_config", "uniform_decode_query_len")


class Runners:
    """The living runners, each with its name."""

    def __init__(self) -> None:
        self._known: dict[str, weakref.ref[Any]] = {}
        self._refused: weakref.WeakSet[Any] = weakref.WeakSet()

    def knows(self, runner: Any) -> bool:
        """Whether a runner was introduced, or is one of those that are left alone."""
        return any(known() is runner for known in list(self._known.values())) or runner in self._refused

    def accepts(self, runner: Any) -> bool:
        """Whether a runner has the attributes that its class was seen to have; gives a notice for the one it lacks."""
        if runner in self._refused:
            return False
        missing = next((name for name in (_NEEDED_V2 if is_v2(runner) else _NEEDED) if not hasattr(runner, name)), None)
        if missing is not None:
            self._refused.add(runner)
            kind = type(runner).__name__
            notices.tell_once(f"the vllm adapter does without a {kind}: it has no {missing}; generic tracking goes on")
        return missing is None

    def introduce(self, adapter: AdapterInterface | None, runner: Any, final: bool = False) -> None:
        """Report a runner, or report it again once it has more buffers.

        Parameters
        ----------
        final
            Whether its KV cache has its final size; it has none, or one to measure with, before.
        """
        if not self.accepts(runner):
            return
        name = next((name for name, known in self._known.items() if known() is runner), None) or self._new_name()
        self._known[name] = weakref.ref(runner)
        if adapter is not None:
            _tell(adapter, name, runner, final)

    def started(self, adapter: AdapterInterface) -> None:
        """Another debugger watches: report all runners to it."""
        for name, known in list(self._known.items()):
            runner = known()
            if runner is not None:
                _tell(adapter, name, runner, final=True)

    def _new_name(self) -> str:
        number = 1
        while (name := f"runner#{number}" if number > 1 else "runner") in self._known:
            if self._known[name]() is None:
                break
            number += 1
        return name


def is_v2(runner: Any) -> bool:
    """Whether a runner is one of the second kind."""
    return hasattr(runner, "input_buffers")


def rank_of(worker: Any) -> int | None:
    """The rank of a worker in its server: that in its data-parallel group, groups numbered one after the other; None
    for the only one."""
    config = worker.parallel_config
    replicas = max(getattr(config, "data_parallel_size", 1), getattr(config, "data_parallel_index", 0) + 1)
    if config.world_size * replicas <= 1:
        return None
    return int(getattr(config, "data_parallel_index", 0) * config.world_size + worker.rank)


def _tell(adapter: AdapterInterface, name: str, runner: Any, final: bool) -> None:
    adapter.name(name, runner, WITHOUT)
    adapter.limit_batches(**_limits(runner))
    (padding.declare_runner_v2 if is_v2(runner) else padding.declare_runner)(adapter, runner)
    if final:
        (padding.declare_rules_v2 if is_v2(runner) else padding.declare_rules)(adapter, runner)


def _limits(runner: Any) -> dict[str, int]:
    """How large the batches of a runner's graphs can be: what is scheduled at most, and captured at most."""
    requests, captured = getattr(runner, "max_num_reqs", None), largest_captured(runner)
    if isinstance(requests, int) and captured:
        requests = min(requests, captured)
    found = {"requests": requests, "longest": getattr(runner, "max_model_len", None)}
    return {name: value for name, value in found.items() if type(value) is int and value > 0}


def largest_captured(runner: Any) -> int:
    """The most tokens that a graph of a runner is captured for; 0 where it is not known."""
    largest = getattr(runner.compilation_config, "max_cudagraph_capture_size", None)
    return largest if type(largest) is int else 0
