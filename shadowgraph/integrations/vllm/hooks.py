"""Hooks around vLLM's methods: names, padding and rules of its runners, the graph and the batch of each step, ends.

Each method of `Hooks` that `versions` names, of its base class for the sleep mode too, receives an original and returns
what takes its place: a single function each, since every further Python call costs microseconds where a step's own work
has filled the caches.

A step of the V1 runner is prepared from the call of ``_prepare_inputs`` to that of ``_model_forward``; which graph
comes is known in between, when ``_determine_batch_execution_and_padding`` returns. A step of the V2 runner knows it
from the start. Dummy runs prepare no step. Graphs that are captured to measure their memory are in no step, and dropped
before the KV cache has its size. Run in vLLM's threads: the worker's, and the one that waits for outputs. They change
neither arguments nor results, never wait for a device but in a sleep, and no error of the debugger reaches vLLM.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from shadowgraph.adapter_interface import AdapterInterface, passing
from shadowgraph.common.internal_errors import error_barrier_all, internal_errors
from shadowgraph.integrations import notices
from shadowgraph.integrations.batches import Batches, lengths_of
from shadowgraph.integrations.vllm.graphs import FULL, ComingGraphs
from shadowgraph.integrations.vllm.runners import Runners, rank_of
from shadowgraph.integrations.vllm.sleep_mode import SleepHooks
from shadowgraph.integrations.vllm.steps import Step, lengths_after, see

if TYPE_CHECKING:
    from shadowgraph.debugger import Debugger
    from shadowgraph.model.findings import Batch
    from shadowgraph.model.graphs import Graph

_WHERE = "vllm adapter"
_LATER = "requests and tokens of a batch"  # of the V2 runner, whose lengths are known only when its inputs are made

Original = Callable[..., Any]


class Hooks(SleepHooks):
    """Reports this process's runners and their steps to the active debugger. Keeps no object of vLLM alive."""

    def __init__(self) -> None:
        super().__init__()
        from shadowgraph import session

        session.observers.append(self)
        self._current = session.current
        self._steps: dict[int, Step] = {}  # by id of the runner
        self._measuring = 0
        self._told = 0  # id of the interface that was given the batches
        self._followed: weakref.ref[Any] | None = None  # the runner of the latest step
        self.runners, self.graphs, self.batches = Runners(), ComingGraphs(), Batches()

    # -- debuggers ---------------------------------------------------------------------------------------------

    def started(self, debugger: Debugger) -> None:
        """Another debugger watches from here on."""
        self.graphs.forget()
        self._told = 0
        with harmless():
            self.runners.started(debugger.adapter)

    def ended(self, debugger: Debugger) -> None:
        """The debugger watches no longer; no reference to it is kept."""
        self.graphs.forget()
        self.batches.forget_texts()
        self.forget_sleep(debugger)
        for step in self._taken():
            step.end()

    def forget(self) -> None:
        """The patches are removed."""
        from shadowgraph import session

        session.observers[:] = [each for each in session.observers if each is not self]

    def _taken(self) -> list[Step]:
        steps = list(self._steps.values())
        self._steps.clear()
        return steps

    def _adapter(self) -> AdapterInterface | None:
        debugger = self._current()
        return debugger.adapter if debugger is not None else None

    # -- runners -----------------------------------------------------------------------------------------------

    def made(self, original: Original) -> Original:
        """Around a runner's constructor."""

        def __init__(runner: Any, *args: Any, **kwargs: Any) -> None:
            original(runner, *args, **kwargs)
            self._introduce(runner)

        return __init__

    def cache_made(self, original: Original) -> Original:
        """Around the making of a runner's KV cache, with its block tables and metadata builders."""

        def initialize_kv_cache(runner: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(runner, *args, **kwargs)
            if not self._measuring:
                self._introduce(runner, final=True)
                with harmless():
                    self._tell_memory(runner)
            return result

        return initialize_kv_cache

    def measure(self, original: Original) -> Original:
        """Around captures that only measure how much memory graphs take, with a KV cache that is dropped again."""

        def profile_cudagraph_memory(runner: Any, *args: Any, **kwargs: Any) -> Any:
            self._measuring += 1
            try:
                return original(runner, *args, **kwargs)
            finally:
                self._measuring -= 1
                self.graphs.forget()

        return profile_cudagraph_memory

    def capture(self, original: Original) -> Original:
        """Around the capture of all of a runner's graphs."""

        def capture_model(runner: Any, *args: Any, **kwargs: Any) -> Any:
            self.graphs.forget()
            self._introduce(runner, final=True)
            result = original(runner, *args, **kwargs)
            self._introduce(runner, final=True)
            return result

        return capture_model

    def _introduce(self, runner: Any, final: bool = False) -> None:
        with harmless():
            self.runners.introduce(self._adapter(), runner, final)

    def _tell_memory(self, runner: Any) -> None:
        """Report the device memory that shadowgraph held when vLLM sized its KV cache, and so sized it smaller."""
        adapter, blocks = self._adapter(), runner.kv_cache_config.num_blocks
        said = getattr(getattr(runner, "cache_config", None), "kv_cache_memory_bytes", None)  # by the user
        if adapter is None or adapter.device == "cpu" or said:
            return
        ours = adapter.reserved_bytes / (1 << 20)
        notices.tell_once(
            f"{ours:,.0f} MiB of {adapter.device} were shadowgraph's when vllm sized its KV cache: "
            f"its number of blocks, {blocks:,}, is smaller by at least what fits in there"
        )

    # -- steps of the V1 runner --------------------------------------------------------------------------------

    def prepare(self, original: Original) -> Original:
        """Around the code that refreshes the inputs of a step; its preparation goes on when this returns."""
        begin = self._begin

        def _prepare_inputs(runner: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                begin(runner, *_two(args, kwargs, "scheduler_output", "num_scheduled_tokens"))
            except Exception as error:  # as `harmless`, without its cost
                internal_errors.note(_WHERE, error)
            return original(runner, *args, **kwargs)

        return _prepare_inputs

    def dispatch(self, original: Original) -> Original:
        """Around the choice of the mode and the batch descriptor of a step, or of a dummy run."""
        steps, dispatched = self._steps, self._dispatched

        def _determine_batch_execution_and_padding(runner: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(runner, *args, **kwargs)
            if steps:
                try:
                    dispatched(runner, result)
                except Exception as error:
                    internal_errors.note(_WHERE, error)
            return result

        return _determine_batch_execution_and_padding

    def forward(self, original: Original) -> Original:
        """Around the call of the model, which replays."""
        steps, end = self._steps, self._end

        def _model_forward(runner: Any, *args: Any, **kwargs: Any) -> Any:
            if steps:
                end(runner)
            return original(runner, *args, **kwargs)

        return _model_forward

    def _begin(self, runner: Any, scheduled: Any, counts: Any) -> None:
        """A step is about to be prepared: report its sizes, then mark its launches unless replays pass unobserved."""
        if self._steps:
            self._end(runner)
        debugger = self._current()
        if debugger is None or not self._known(runner):
            return
        adapter, batch = debugger.adapter, runner.input_batch
        requests = batch.num_reqs
        if not requests:
            return
        tokens = scheduled.total_num_scheduled_tokens
        lengths = lengths_after(batch.num_computed_tokens_cpu[:requests], counts)
        see(adapter, runner, requests, tokens, lengths)
        block = None if passing.on else adapter.prepare(None)
        self._steps[id(runner)] = Step(adapter, block, requests, tokens, lengths, batch.req_ids)

    def _dispatched(self, runner: Any, result: Any) -> None:
        """Report which graph a step replays, if any, and record its batch. A step whose launches are not marked is over
        with that."""
        step = self._steps.get(id(runner))
        if step is None:
            return
        if step.block is None:
            del self._steps[id(runner)]
        mode, descriptor, microbatched = result[0], result[1], bool(result[2])
        graph = None
        if not getattr(runner, "calculate_kv_scales", False):  # then the mode is changed to none
            graph = self.graphs.of(runner, mode, descriptor, microbatched)
        if step.block is not None:
            step.adapter.prepares(step.block, graph)
        if graph is None:
            self._end(runner)
            return
        self._note(step, graph, descriptor.num_reqs or step.requests, descriptor.num_tokens)

    def _note(self, step: Step, graph: Graph, padded_to: int, padded_tokens: int) -> None:
        if id(step.adapter) != self._told:
            step.adapter.provide_batches(self.batch_of)
            self._told = id(step.adapter)
        sizes = step.requests, padded_to, step.tokens, padded_tokens
        self.batches.record(graph, sizes, step.lengths, step.ids)

    def batch_of(self, graph: Graph, replay: int) -> Batch | None:
        """The batch of a graph's replay: pieces are all replayed in each step, and prepared with the first."""
        return self.batches.of_serial(self.graphs.first_of.get(graph.serial, graph.serial), replay)

    def _known(self, runner: Any) -> bool:
        """Whether a runner's steps are followed. One that was made before the patches is introduced now."""
        if self._followed is not None and self._followed() is runner:
            return True
        if not self.runners.knows(runner):
            self._introduce(runner, final=True)
        if not self.runners.accepts(runner):
            return False
        self._followed = weakref.ref(runner)
        return True

    def _end(self, runner: Any) -> None:
        step = self._steps.pop(id(runner), None) if self._steps else None
        if step is not None:
            step.end()

    # -- steps of the V2 runner --------------------------------------------------------------------------------

    def prepare_v2(self, original: Original) -> Original:
        """Around the code that refreshes the inputs of a step, for a graph that is known."""

        def prepare_inputs(runner: Any, *args: Any, **kwargs: Any) -> Any:
            graph = None
            with harmless():
                graph = self._begin_v2(runner, *_two(args, kwargs, "scheduler_output", "batch_desc"))
            result = original(runner, *args, **kwargs)
            step = self._steps.get(id(runner))
            if step is not None and graph is not None:
                with harmless():
                    step.requests, step.tokens, step.ids = result.num_reqs, result.num_tokens, result.req_ids
                    # Entries behind the last request are zeros.
                    step.lengths = lengths_of(result.seq_lens_cpu_upper_bound, len(result.seq_lens_cpu_upper_bound))
                    step.lengths = step.lengths[: result.num_reqs]
                    if len(step.lengths):
                        see(step.adapter, runner, result.num_reqs, result.num_tokens, step.lengths)
                    self._note(step, graph, result.num_reqs_after_padding, result.num_tokens_after_padding)
            return result

        return prepare_inputs

    def prepare_attention_v2(self, original: Original) -> Original:
        """Around the making of block tables and slots. Attention metadata of full graphs follows; what pieces run
        between them is no preparation."""

        def prepare_attn(runner: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(runner, *args, **kwargs)
            step = self._steps.get(id(runner))
            if step is not None and not step.full:
                self._end(runner)
            return result

        return prepare_attn

    def replay_v2(self, original: Original) -> Original:
        """Around the replay of a full graph."""

        def run_fullgraph(manager: Any, *args: Any, **kwargs: Any) -> Any:
            if self._steps:
                for step in list(self._steps.values()):
                    if step.manager == id(manager):
                        step.end()
            return original(manager, *args, **kwargs)

        return run_fullgraph

    def _begin_v2(self, runner: Any, scheduled: Any, descriptor: Any) -> Graph | None:
        self._end(runner)
        adapter = self._adapter()
        if adapter is None or not self._known(runner):
            return None
        requests, tokens = len(scheduled.num_scheduled_tokens), scheduled.total_num_scheduled_tokens
        adapter.novelty.see(_LATER, id(runner), requests, tokens)
        graph = self.graphs.of_v2(runner, descriptor)
        if graph is not None:
            block = None if passing.on else adapter.prepare(graph)
            step = self._steps[id(runner)] = Step(adapter, block, requests, tokens, [], None)
            step.full, step.manager = descriptor.cg_mode.name == FULL, id(runner.cudagraph_manager)
        return graph

    # -- ends --------------------------------------------------------------------------------------------------

    def execute(self, original: Original) -> Original:
        """Around a whole step: whatever happens, nothing is prepared when it is over."""
        steps = self._steps

        def execute_model(runner: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                return original(runner, *args, **kwargs)
            except Exception as error:
                self._join(error, "vLLM's model runner")
                raise
            finally:
                if steps:
                    self._end(runner)

        return execute_model

    def sample(self, original: Original) -> Original:
        """Around the sampling of a step's tokens, where a device's error often arrives."""
        return self._joined(original, "vLLM's sampling")

    def output(self, original: Original) -> Original:
        """Around the wait for the results of a step, in a thread of its own with asynchronous scheduling."""
        return self._joined(original, "vLLM's output")

    def work(self, original: Original) -> Original:
        """Around a part of a worker's set-up: vLLM logs what leaves it, and ends the process."""
        return self._joined(original, "vLLM's worker")

    def device(self, original: Original) -> Original:
        """Around the beginning of a worker's set-up; it has its rank by then."""
        joined = self._joined(original, "vLLM's worker")

        def init_device(worker: Any, *args: Any, **kwargs: Any) -> Any:
            with harmless():
                rank = rank_of(worker)
                if rank is not None:
                    notices.place(rank)
            return joined(worker, *args, **kwargs)

        return init_device

    def engine(self, original: Original) -> Original:
        """Around the set-up, or the loop, of an engine core: vLLM logs what leaves it, and ends the server."""
        return self._joined(original, "vLLM's engine core")

    def _joined(self, original: Original, where: str) -> Original:
        def call(*args: Any, **kwargs: Any) -> Any:
            try:
                return original(*args, **kwargs)
            except Exception as error:
                self._join(error, where)
                raise

        return call

    def _join(self, error: Exception, where: str) -> None:
        with harmless():
            adapter = self._adapter()
            if adapter is not None:
                adapter.join(error, where)


def _two(args: tuple[Any, ...], kwargs: dict[str, Any], first: str, second: str) -> tuple[Any, Any]:
    """The first two arguments, however they are given."""
    if len(args) >= 2:
        return args[0], args[1]
    given = [*args, *(kwargs[name] for name in (first, second)[len(args) :] if name in kwargs)]
    return (given[0], given[1]) if len(given) >= 2 else (None, None)


def harmless() -> error_barrier_all:
    """Suppresses every exception of the debugger, those meant for users included."""
    return error_barrier_all(_WHERE)
