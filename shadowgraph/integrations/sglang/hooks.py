"""Hook bodies for sglang: report names of its objects, declare padding, and mark the preparation of replays.

Run in sglang's threads; `_Alarm` runs in a watchdog's. They change neither arguments nor results of sglang's methods,
and no error of the debugger reaches these.
"""

from __future__ import annotations

import logging
import weakref
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shadowgraph.adapter_interface import AdapterInterface, PrepareBlock, passing
from shadowgraph.common.internal_errors import error_barrier_all, internal_errors, log
from shadowgraph.graphs.lookup import model_of
from shadowgraph.integrations import notices
from shadowgraph.integrations.sglang import padding as sglang_padding
from shadowgraph.integrations.sglang.batches import Batches

if TYPE_CHECKING:
    from shadowgraph.debugger import Debugger
    from shadowgraph.model.graphs import Graph

_ROLES = {
    "CudaGraphRunner": "decode",
    "DecodeCudaGraphRunner": "decode",
    "EAGLEDraftCudaGraphRunner": "draft",
    "EAGLEDraftExtendCudaGraphRunner": "draft_extend",
}
_DRAFTS = ("draft", "draft_extend")
_BACKENDS = ("draft_attn_backend", "draft_extend_attn_backend", "attn_backend")
# Each makes other data than the batch size select a graph: data-parallel size, stream, LoRA variant, ragged batch.
_DECIDERS = ("require_mlp_tp_gather", "enable_pdmux", "record_nolora_graph", "ragged_verify_mode")


_WHERE = "sglang adapter"
_ACCEPTED = "num_accept_tokens_cpu", "accept_length_cpu"  # on the host, by version
BATCH, ACCEPTED = "requests, longest and tokens of a batch", "most and all accepted tokens of a batch"


@dataclass(slots=True, eq=False)  # whose fields cost less to read than a named tuple's
class Coming:
    """What a runner replays for a batch size: the graph, the size that the batch is padded to, and whether the batch
    has data of speculative decoding."""

    runner: weakref.ref[Any]
    graph: weakref.ref[Any]
    size: int
    speculates: bool


class Hooks:
    """Reports this process's sglang objects to the active debugger. Keeps no object of sglang alive."""

    def __init__(self) -> None:
        self._known: dict[str, weakref.ref[Any]] = {}
        self._padded: list[weakref.ref[Any]] = []  # graph runners
        self._blocks: dict[int, PrepareBlock] = {}  # by id of a draft runner that is preparing
        self._coming: dict[tuple[int, int], Coming] = {}  # by id of the runner and batch size
        self._current: Callable[[], Debugger | None] | None = None
        self._limits: dict[str, dict[str, int]] = {}  # of batches, by the runner's role
        self.batches = Batches()

    # -- hooks -------------------------------------------------------------------------------------------------

    def backends_made(self, result: Any, runner: Any, *args: Any, **kwargs: Any) -> None:
        """After a model runner has created its attention backends; its memory pools exist as well."""
        with harmless():
            role = "draft_model" if runner.is_draft_worker else "target"
            self._know(f"{role}.attn_backend", getattr(runner, "attn_backend", None))
            for index, backend in enumerate(getattr(runner, "decode_attn_backend_group", None) or ()):
                self._know(f"{role}.decode_attn_backend_group[{index}]", backend)
            for pool in ("req_to_token_pool", "token_to_kv_pool"):
                self._know(f"{role}.{pool}", getattr(runner, pool, None))
            debugger = self._debugger()
            if debugger is not None and role == "target":
                tell_memory(debugger.adapter, getattr(runner, "max_total_num_tokens", None))
        with harmless():
            _place(runner)

    def capture(self, original: Callable[..., Any], runner: Any, *args: Any, **kwargs: Any) -> Any:
        """Around the capture of all of a runner's batch sizes."""
        self._coming.clear()
        with harmless():
            self._introduce(runner)
        result = original(runner, *args, **kwargs)
        with harmless():
            self._know(f"{_role(runner)}.output_buffers", getattr(runner, "output_buffers", None))
        return result

    def prepare(self, original: Callable[..., Any], runner: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
        """Around the code that refreshes the inputs of a replay."""
        block = self._begin(runner, batch)
        if block is None:
            return original(runner, batch, *args, **kwargs)
        try:
            return original(runner, batch, *args, **kwargs)
        finally:
            block.end()

    def prepare_and_replay(
        self, original: Callable[..., Any], runner: Any, batch: Any, *args: Any, **kwargs: Any
    ) -> Any:
        """Around a method that prepares, then replays through a method hooked by `before_replay`."""
        block = self._begin(runner, batch)
        if block is None:
            return original(runner, batch, *args, **kwargs)
        self._blocks[id(runner)] = block
        try:
            return original(runner, batch, *args, **kwargs)
        finally:
            _end(self._blocks.pop(id(runner), None))

    def before_replay(self, runner: Any, *args: Any, **kwargs: Any) -> None:
        """End the preparation."""
        if self._blocks:
            _end(self._blocks.pop(id(runner), None))

    def serving(self, original: Callable[..., Any], scheduler: Any, *args: Any, **kwargs: Any) -> Any:
        """Around a scheduler's set-up, or loop: sglang logs exceptions that leave it and kills the process."""
        try:
            return original(scheduler, *args, **kwargs)
        except Exception as error:
            with harmless():
                debugger = self._debugger()
                if debugger is not None:
                    debugger.adapter.join(error, "sglang's scheduler")
            raise

    def watchdog_made(self, result: Any, watchdog: Any, *args: Any, **kwargs: Any) -> None:
        """After the creation of a watchdog: it calls `dump_info` when its time is up, before it kills the process."""
        with harmless():
            watchdog.dump_info = _Alarm(watchdog, getattr(watchdog, "dump_info", None))

    # -- reports to the debugger -------------------------------------------------------------------------------

    def started(self, debugger: Debugger) -> None:
        """Another debugger watches from here on: report all known objects to it."""
        self._coming.clear()
        with harmless():
            for name, known in list(self._known.items()):
                owner = known()
                if owner is not None:
                    debugger.adapter.name(name, owner)
            for padded in self._padded:
                runner = padded()
                if runner is not None:
                    _declare(debugger.adapter, runner)
            for limits in self._limits.values():
                debugger.adapter.limit_batches(**limits)

    def ended(self, debugger: Debugger) -> None:
        """The debugger watches no longer; no reference to it is kept."""
        self._coming.clear()
        self.batches.forget_texts()

    def _debugger(self) -> Debugger | None:
        if self._current is None:  # without a run, the adapter does not import the debugger
            from shadowgraph import session

            session.observers.append(self)
            self._current = session.current
        return self._current()

    def _introduce(self, runner: Any) -> None:
        """Report names of a graph runner's backend and inputs, and its treatment of padded rows."""
        role = _role(runner)
        backend = next((getattr(runner, name) for name in _BACKENDS if hasattr(runner, name)), None)
        self._know(role if role == "draft" else f"{role}.attn_backend", backend)  # a draft has several backends
        self._know(f"{role}.buffers", getattr(runner, "buffers", None))
        limits = self._limits[role] = _limits(runner)
        debugger = self._debugger()
        if debugger is not None:
            debugger.adapter.limit_batches(**limits)
        if role == "decode" or role in _DRAFTS:
            if all(padded() is not runner for padded in self._padded):
                self._padded.append(weakref.ref(runner))
            if debugger is not None:
                _declare(debugger.adapter, runner)

    def _know(self, name: str, owner: Any) -> None:
        """Name an object, or walk it again under its existing name."""
        if owner is None:
            return
        debugger = self._debugger()
        known = next((name for name, ref in self._known.items() if ref() is owner), None)
        if known is None:
            known, number = name, 1
            while known in self._known and self._known[known]() is not None:
                number += 1
                known = f"{name}#{number}"
            try:
                self._known[known] = weakref.ref(owner)
            except TypeError:  # a dictionary cannot be weakly referenced: walked only now
                self._known.pop(known, None)
        if debugger is not None:
            debugger.adapter.name(known, owner)

    def _begin(self, runner: Any, batch: Any) -> PrepareBlock | None:
        """Note the batch of the coming replay, if its graph can be determined, and report its sizes; then open a
        prepare block for the calling thread, unless replays pass unobserved. On the path of every replay."""
        try:
            current = self._current
            debugger = current() if current is not None else self._debugger()
            if debugger is None:
                return None
            adapter, requests = debugger.adapter, batch.batch_size
            coming = self._coming.get((id(runner), requests))
            graph = model_of(coming.graph()) if coming is not None and coming.runner() is runner else None
            if coming is None or graph is None:
                coming, graph = self._find(adapter, runner, batch)
                if coming is None or graph is None:
                    return None
            longest, tokens = self.batches.note(graph, coming.size, batch)
            adapter.novelty.see(BATCH, graph.serial, requests, longest, tokens)
            if coming.speculates:
                _see_accepted(adapter, graph, batch.spec_info)
            return None if passing.on else adapter.prepare(graph)
        except Exception as error:  # as `harmless`, without its cost
            internal_errors.note(_WHERE, error)
            return None

    def _find(self, adapter: AdapterInterface, runner: Any, batch: Any) -> tuple[Coming | None, Graph | None]:
        """What a runner will replay for a batch, and the graph's model. Searched once for each size and capture."""
        found = _coming(runner, batch)
        if found is None:
            return None, None
        adapter.provide_batches(self.batches.of)
        graph, model, size = found
        speculates = getattr(batch, "spec_info", None) is not None
        coming = Coming(weakref.ref(runner), weakref.ref(graph), size, speculates)
        self._coming[id(runner), batch.batch_size] = coming
        return coming, model


def tell_memory(adapter: AdapterInterface, tokens: object) -> None:
    """Report the device memory that shadowgraph held when sglang sized its pools, and so sized them smaller."""
    if adapter.device == "cpu" or not isinstance(tokens, int):
        return
    ours = adapter.reserved_bytes / (1 << 20)
    text = (
        f"{ours:,.0f} MiB of {adapter.device} were shadowgraph's when sglang sized its pools: "
        f"its max_total_num_tokens, {tokens:,}, is smaller by at least what fits in there"
    )
    notices.tell_once(text)
    log(logging.WARNING, "shadowgraph: %s", text)


def _place(runner: Any) -> None:
    """Report the rank of a model runner within its server, numbered as in sglang: tensor ranks of each stage in turn.

    Data-parallel groups are numbered consecutively; with data-parallel attention they form one group.
    """
    size, rank = getattr(runner, "tp_size", 1), getattr(runner, "tp_rank", 0)
    stages, stage = getattr(runner, "pp_size", 1), getattr(runner, "pp_rank", 0)
    group = getattr(runner, "dp_rank", None)
    if group is None or getattr(getattr(runner, "server_args", None), "enable_dp_attention", False):
        if size * stages > 1:
            notices.place(size * stage + rank)
    else:
        notices.place((group * stages + stage) * size + rank)


class _Alarm:
    """Replaces the function that gives a watchdog its text; called in the watchdog's thread on a timeout."""

    def __init__(self, watchdog: Any, before: Callable[[], str] | None) -> None:
        self._name, self._seconds = str(watchdog.debug_name), watchdog.watchdog_timeout
        self._before = before

    def __call__(self) -> str:
        from shadowgraph import session

        debugger = session.current()
        if debugger is not None:
            with harmless():
                said = f"{self._name} was not fed for {self._seconds} s"
                debugger.adapter.join_timeout(said, "sglang's watchdog")
        return self._before() if self._before is not None else ""


def _end(block: PrepareBlock | None) -> None:
    if block is not None:
        block.end()


def _role(runner: Any) -> str:
    """Prefix for names of a graph runner's parts: its role, or its class name if unknown."""
    name = type(runner).__name__
    return _ROLES.get(name, name)


def _declare(adapter: AdapterInterface, runner: Any) -> None:
    registry = getattr(runner, "buffer_registry", None)
    if registry is not None:
        sglang_padding.declare_registry(adapter, registry)
    elif _role(runner) in _DRAFTS:
        sglang_padding.declare_draft_padding(adapter, getattr(runner, "buffers", None))
    else:
        sglang_padding.declare_padding(adapter, runner.buffers)
        sglang_padding.judge_padding(adapter, runner.buffers)


def _limits(runner: Any) -> dict[str, int]:
    """How large the batches of a graph runner can be: its largest captured size, and what its server allows."""
    model = getattr(runner, "model_runner", None)
    found = {
        "requests": max(getattr(runner, "capture_bs", None) or (), default=0),
        "longest": getattr(getattr(model, "model_config", None), "context_len", None),
        "tokens": getattr(model, "max_total_num_tokens", None),
    }
    return {name: value for name, value in found.items() if type(value) is int and value > 0}


def _see_accepted(adapter: AdapterInterface, graph: Graph, spec_info: Any) -> None:
    """Report the numbers of accepted tokens of a batch, where they are on the host."""
    for name in _ACCEPTED:
        accepted = getattr(spec_info, name, None)
        if type(accepted) is list and accepted:
            adapter.novelty.see(ACCEPTED, graph.serial, max(accepted), sum(accepted))
            return


def _coming(runner: Any, batch: Any) -> tuple[Any, Graph, int] | None:
    """The graph that a runner will replay for a batch, with its model and batch size; None when the choice depends on
    more than the batch size, or the graph is not watched."""
    if any(getattr(runner, name, False) for name in _DECIDERS):
        return None
    at = bisect_left(runner.capture_bs, batch.batch_size)
    graphs = getattr(runner, "graphs", None) or getattr(getattr(runner, "backend", None), "_graphs", None)
    if at == len(runner.capture_bs) or not graphs:
        return None
    size = runner.capture_bs[at]
    graph = graphs.get(size)
    if graph is None:
        graph = graphs.get(runner._make_graph_key(size))
    model = model_of(graph)
    return (graph, model, size) if model is not None else None


def harmless() -> error_barrier_all:
    """Suppresses every exception of the debugger, those meant for users included."""
    return error_barrier_all(_WHERE)
