"""Which graph a step of vLLM replays: by the mode and the batch descriptor that the runner has dispatched it to.

Called in the thread that prepares a step, of every step. A pair whose graph is watched is searched once for each
capture, another in every step. Keeps no graph and no runner alive. `first_of` is read where a finding is recorded; it
takes no lock.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Any

from shadowgraph.common.imported_modules import imported
from shadowgraph.graphs.lookup import model_of
from shadowgraph.integrations.vllm.versions import WRAPPER
from shadowgraph.model.graphs import Graph

FULL, PIECEWISE = "FULL", "PIECEWISE"  # names of vLLM's runtime modes; the third is NONE
_CONTEXT = "vllm.forward_context"


@dataclass(slots=True, eq=False)
class _Coming:
    runner: weakref.ref[Any]
    graph: weakref.ref[Any]


class ComingGraphs:
    """The graphs of the modes and descriptors seen so far.

    Attributes
    ----------
    first_of
        By the serial of a piece: that of the first piece of its step, which is prepared for all of them.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[int, int, Any, bool], _Coming] = {}
        self.first_of: dict[int, int] = {}

    def forget(self) -> None:
        """Graphs are captured anew, or another debugger watches."""
        self._known.clear()
        self.first_of.clear()

    def of(self, runner: Any, mode: Any, descriptor: Any, microbatched: bool = False) -> Graph | None:
        """The graph that a V1 runner replays next, or the first one of a step of pieces.

        Parameters
        ----------
        mode
            The runtime mode, a ``CUDAGraphMode``.
        descriptor
            The ``BatchDescriptor``.
        microbatched
            Whether the step is split into microbatches, which have graphs of their own.

        Returns
        -------
        Graph or None
            None where nothing is replayed, and for a graph that is not watched.
        """
        return self._remembered(runner, mode, descriptor, microbatched, _find)

    def of_v2(self, runner: Any, descriptor: Any) -> Graph | None:
        """As `of`, for a V2 runner and its ``BatchExecutionDescriptor``."""
        return self._remembered(runner, descriptor.cg_mode, descriptor, False, _find_v2)

    def _remembered(self, runner: Any, mode: Any, descriptor: Any, microbatched: bool, find: Any) -> Graph | None:
        key = id(runner), id(mode), descriptor, microbatched  # by id: hashing an enum member runs Python code
        known = self._known.get(key)
        model = model_of(known.graph()) if known is not None and known.runner() is runner else None
        if model is not None:
            return model
        if mode.name not in (FULL, PIECEWISE):
            return None
        found = find(runner, mode.name, descriptor, microbatched)
        models = [(graph, model) for graph in found if (model := model_of(graph)) is not None]
        if not models:
            return None
        models.sort(key=lambda pair: pair[1].serial)  # pieces are captured in the order in which they run
        graph, model = models[0]
        self._known[key] = _Coming(weakref.ref(runner), weakref.ref(graph))
        self.first_of.update((piece.serial, model.serial) for _, piece in models)
        return model


def _find(runner: Any, mode: str, descriptor: Any, microbatched: bool) -> list[Any]:
    if mode == PIECEWISE:
        return _pieces(runner, descriptor)
    model = vars(runner).get("model")
    if microbatched:
        return _present(_entry(model, "cudagraphs", descriptor.num_tokens))
    wrapper = _held(model).get("cudagraph_wrapper", model)  # one that may split its steps has the other inside
    return _present(_entry(wrapper, "concrete_cudagraph_entries", descriptor))


def _find_v2(runner: Any, mode: str, descriptor: Any, microbatched: bool) -> list[Any]:
    if mode == FULL:
        return _present(_held(getattr(runner, "cudagraph_manager", None)).get("graphs", {}).get(descriptor))
    made = getattr(imported(_CONTEXT), "BatchDescriptor", None)
    if made is None:
        return []
    return _pieces(runner, made(num_tokens=descriptor.num_tokens, has_lora=runner.lora_config is not None))


def _pieces(runner: Any, descriptor: Any) -> list[Any]:
    """The graphs of a descriptor of all compiled pieces of a runner's own model. A part of a multimodal model may have
    a copy of the runner's configuration, which shares that of compilation; so may a draft model."""
    wrappers = getattr(imported(WRAPPER), "CUDAGraphWrapper", None)
    drafts = getattr(runner, "speculative_config", None) is not None
    found: list[Any] = []
    for wrapper in list(getattr(wrappers, "_all_instances", ())):
        config = wrapper.vllm_config
        own = config is runner.vllm_config or (not drafts and config.compilation_config is runner.compilation_config)
        if own and wrapper.runtime_mode.name == PIECEWISE:
            found += _present(_entry(wrapper, "concrete_cudagraph_entries", descriptor))
    return found


def _entry(owner: Any, entries: str, key: Any) -> Any:
    return getattr(_held(owner).get(entries, {}).get(key), "cudagraph", None)


def _held(owner: Any) -> dict[str, Any]:
    """The attributes of an object itself: a wrapper hands on others to what it wraps."""
    return vars(owner) if hasattr(owner, "__dict__") else {}


def _present(graph: Any) -> list[Any]:
    return [graph] if graph is not None else []
