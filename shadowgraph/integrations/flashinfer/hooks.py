"""Hooks around flashinfer's wrappers: report names, pointers recorded at capture, and plans with their inputs.

Run in the program's threads and take no lock of their own. They change neither arguments nor results of flashinfer,
never wait for a device and never read one: values come from the host copies that a plan makes anyway.
"""

from __future__ import annotations

import ctypes
import threading
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from shadowgraph import session
from shadowgraph.adapter_interface import AdapterInterface, PlannerInterface, PrepareBlock, passing
from shadowgraph.common.internal_errors import error_barrier_all
from shadowgraph.graphs import host_tensors, launch_rows
from shadowgraph.graphs.dispatch.tensors import view_of_memory
from shadowgraph.graphs.events import Listener
from shadowgraph.integrations.flashinfer.planner import StandIn
from shadowgraph.integrations.flashinfer.steady_plans import (
    PLANNED,
    Steady,
    SteadyModule,
    last_entry,
    log_plan,
    named,
    plan_said,
)
from shadowgraph.integrations.flashinfer.versions import FLOAT_WORKSPACE, INT_WORKSPACE, Wrapper
from shadowgraph.model.host_plans import LARGEST, Again, HostPlan

if TYPE_CHECKING:
    from shadowgraph.debugger import Debugger
    from shadowgraph.model.graphs import Graph

_INTEGERS = {torch.int32: np.int32, torch.int64: np.int64}
_new = object.__new__
_WORKSPACES = 3  # leading arguments of a planner: float, int and pinned workspace


class Hooks(Listener):
    """Receives captures, plans and kernel launches; keeps no object of flashinfer alive."""

    def __init__(self) -> None:
        self._kinds: dict[type, Wrapper] = {}
        self._layouts: dict[type, Wrapper | None] = {}  # by class of the wrapper, derived classes included
        self._local = threading.local()
        self._named: weakref.WeakKeyDictionary[Debugger, set[int]] = weakref.WeakKeyDictionary()
        self._latest: tuple[weakref.ref[Debugger], set[int]] | None = None  # latest of `_named`
        self._steady: dict[int, Steady] = {}  # by id of the wrapper; cleared when graphs change
        self._count = 0

    def knows(self, cls: type, wrapper: Wrapper) -> None:
        """Register a wrapper class; its subclasses count as well."""
        self._kinds[cls] = wrapper
        self._layouts.clear()

    def forget(self) -> None:
        """Another debugger watches from here on, or none."""
        self._steady.clear()

    @property
    def watching(self) -> bool:
        """Whether a debugger is active."""
        return session.current() is not None

    def stand_in(self, module: Any, wrapper: Any) -> StandIn:
        """The proxy for a wrapper's module."""
        if passing.on:
            steady = self._steady.get(id(wrapper))
            if steady is not None and steady.wrapper() is wrapper:
                made: SteadyModule = _new(SteadyModule)  # a call of the class takes twice as long
                made._module, made._wrapper, made._onlooker, made._steady = module, wrapper, self, steady
                return made
        return StandIn(module, wrapper, self)

    # -- captures ----------------------------------------------------------------------------------------------

    def capture_began(self, graph: Graph) -> None:
        self._steady.clear()
        self._local.capturing = graph

    def capture_ended(self, graph: Graph) -> None:
        self._local.capturing = None

    def graph_reset(self, graph: Graph) -> None:
        self._steady.clear()
        if getattr(self._local, "capturing", None) is graph:
            self._local.capturing = None

    def run(self, wrapper: Any, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """A wrapper launches a kernel; in a capture, its pointers become part of the graph."""
        graph = getattr(self._local, "capturing", None)
        if graph is None:
            launch_rows.note(named(type(wrapper), "run"), args, kwargs)
        else:
            with _harmless():
                given = {id(argument) for argument in args if isinstance(argument, torch.Tensor)}
                self._bind(graph, wrapper, given)
        return original(*args, **kwargs)

    def run_by_attribute(self, original: Callable[..., Any], wrapper: Any, *args: Any, **kwargs: Any) -> Any:
        """Hook around a wrapper's own method, for wrappers whose kernels another object launches."""
        graph = getattr(self._local, "capturing", None)
        if graph is not None and self.watching:
            with _harmless():
                self._bind(graph, wrapper, None)
        return original(wrapper, *args, **kwargs)

    def _bind(self, graph: Graph, wrapper: Any, given: set[int] | None) -> None:
        debugger, layout = session.current(), self._layout(wrapper)
        if debugger is None or layout is None:
            return
        self._introduce(debugger, wrapper, layout)
        for attribute in layout.attributes:
            tensor = vars(wrapper).get(attribute)
            if isinstance(tensor, torch.Tensor) and (given is None or id(tensor) in given):
                debugger.adapter.bind(graph, wrapper, attribute, tensor)

    # -- plans -------------------------------------------------------------------------------------------------

    def prepare(self, original: Callable[..., Any], wrapper: Any, *args: Any, **kwargs: Any) -> Any:
        """Hook around a wrapper's ``plan``: its launches prepare a replay of the graph that captured it."""
        block = self._prepare(wrapper)
        try:
            return original(wrapper, *args, **kwargs)
        finally:
            if block is not None:
                block.end()

    def plan(self, wrapper: Any, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Hook around a wrapper's planner, whichever function calls it."""
        plan: HostPlan | None = None
        with _harmless():
            plan = self._note(wrapper, args)
            launch_rows.note(named(type(wrapper), "plan"), args, kwargs)
        debugger = session.current()
        if debugger is not None:
            debugger.adapter.plans.reads(args[_WORKSPACES:])
        block = self._prepare(wrapper)
        try:
            return original(*args, **kwargs)
        except BaseException as error:
            if plan is not None:
                self.failed(plan, error)
            raise
        finally:
            if block is not None:
                block.end()

    def failed(self, plan: HostPlan | Again, error: BaseException) -> None:
        """A planner raised; recorded at once, since a server may catch the error and have itself killed."""
        with _harmless():
            debugger = session.current()
            if debugger is not None:
                debugger.adapter.plans.failed(plan, error)

    def _note(self, wrapper: Any, args: tuple[Any, ...]) -> HostPlan | None:
        debugger, layout = session.current(), self._layout(wrapper)
        given = _index_arguments(args)
        if debugger is None or layout is None or given is None:
            return None
        self._introduce(debugger, wrapper, layout)
        qo_indptr, kv_indptr, kv_lens = given
        adapter = debugger.adapter
        graph = _graph(adapter, wrapper)
        plan = _host_plan(wrapper, layout, kv_indptr, graph)
        entries = last_entry(kv_indptr)
        if graph is not None:
            adapter.novelty.see(PLANNED, graph.serial, plan.batch_size, entries)
        adapter.plans.note(plan)
        log_plan(plan_said(plan), plan.batch_size, entries, plan.serial, plan.replay)
        self._keep(wrapper, adapter, plan, graph, kv_indptr, _WORKSPACES + (qo_indptr is not None))
        if adapter.plans.compares:
            _tell_use(adapter.plans, wrapper, layout, graph, entries)
            values = {layout.kv_indptr: kv_indptr, layout.qo_indptr: qo_indptr, layout.kv_lens: kv_lens}
            _expect(adapter.plans, wrapper, layout, values, args)
        return plan

    def _keep(
        self,
        wrapper: Any,
        adapter: AdapterInterface,
        plan: HostPlan,
        graph: Graph | None,
        given: torch.Tensor,
        place: int,
    ) -> None:
        """Keep the data that the wrapper's next plan is compared with during unobserved replays."""
        into, key = vars(wrapper).get(plan.attribute), id(wrapper)
        facts = host_tensors.facts(given, into)
        if facts is None:
            self._steady.pop(key, None)
            return
        owner = weakref.ref(wrapper, lambda _: self._steady.pop(key, None) and None)
        plans, graphs = adapter.plans.recorded, adapter.graphs_of(wrapper)
        alone = (graphs[0] if len(graphs) == 1 else None) is graph
        self._steady[key] = Steady(
            wrapper=owner,
            plans=plans,
            plan=plan,
            said=plan_said(plan),
            named=named(type(wrapper), "plan"),
            place=place,
            attribute=plan.attribute,
            facts=facts,
            preparing=adapter.preparing,
            graph=graph,
            alone=alone,
            novelty=adapter.novelty,
        )

    def _prepare(self, wrapper: Any) -> PrepareBlock | None:
        """Open a prepare block for the calling thread's launches, unless one is open; the caller must end it."""
        if passing.on:
            return None
        with _harmless():
            debugger = session.current()
            if debugger is not None and not debugger.adapter.preparing:
                graphs = debugger.adapter.graphs_of(wrapper)
                if graphs:
                    return debugger.adapter.prepare(graphs[0] if len(graphs) == 1 else None)
        return None

    # -- names -------------------------------------------------------------------------------------------------

    def _layout(self, wrapper: Any) -> Wrapper | None:
        kind = type(wrapper)
        if kind not in self._layouts:
            self._layouts[kind] = next((self._kinds[cls] for cls in kind.__mro__ if cls in self._kinds), None)
        return self._layouts[kind]

    def _introduce(self, debugger: Debugger, wrapper: Any, layout: Wrapper) -> None:
        """Name a wrapper, unless an owner path of the program leads to it, and declare that its workspaces need no
        refresh."""
        latest = self._latest
        if latest is None or latest[0]() is not debugger:
            latest = self._latest = weakref.ref(debugger), self._named.setdefault(debugger, set())
        told = latest[1]
        if id(wrapper) in told:
            return
        told.add(id(wrapper))
        weakref.finalize(wrapper, told.discard, id(wrapper)).atexit = False
        self._count += 1
        adapter, tensor = debugger.adapter, vars(wrapper).get(layout.kv_indptr)
        if not (isinstance(tensor, torch.Tensor) and adapter.is_named(tensor, layout.kv_indptr)):
            adapter.name(f"{type(wrapper).__name__}#{self._count}", wrapper)
        for attribute in (FLOAT_WORKSPACE, INT_WORKSPACE):
            scratch = vars(wrapper).get(attribute)
            if isinstance(scratch, torch.Tensor):
                adapter.scratch(scratch)


def _graph(adapter: AdapterInterface, wrapper: Any) -> Graph | None:
    """The graph whose coming replay a wrapper plans for: the one announced by a prepare block, or the only one that
    captured the wrapper."""
    announced = adapter.preparing.graph
    if announced is not None:
        return announced
    graphs = adapter.graphs_of(wrapper)
    return graphs[0] if len(graphs) == 1 else None


def _host_plan(wrapper: Any, layout: Wrapper, kv_indptr: torch.Tensor, graph: Graph | None) -> HostPlan:
    """The record of a plan for the next replay of a graph."""
    into = vars(wrapper).get(layout.kv_indptr)
    return HostPlan(
        planner=type(wrapper).__name__,
        kind=layout.kind,
        batch_size=max(kv_indptr.numel() - 1, 0),
        indptr=_bytes(kv_indptr)[:LARGEST],
        dtype=str(kv_indptr.dtype).removeprefix("torch."),
        entries=kv_indptr.numel(),
        into=view_of_memory(into) if isinstance(into, torch.Tensor) else None,
        attribute=layout.kv_indptr,
        graph=graph.name if graph is not None else None,
        serial=graph.serial if graph is not None else 0,
        replay=graph.replays + 1 if graph is not None else None,
    )


def _tell_use(plans: PlannerInterface, wrapper: Any, layout: Wrapper, graph: Graph | None, entries: int) -> None:
    """Report how many of its own indices a wrapper with CUDA graph buffers uses for its graph's next replay."""
    indices = vars(wrapper).get(layout.indices)
    if graph is not None and isinstance(indices, torch.Tensor) and _has_graph_buffers(wrapper):
        plans.uses(graph, indices, max(0, entries) * indices.element_size())


def _has_graph_buffers(wrapper: Any) -> bool:
    return bool(vars(wrapper).get("_use_cuda_graph") or getattr(wrapper, "is_cuda_graph_enabled", False))


def _expect(
    plans: PlannerInterface,
    wrapper: Any,
    layout: Wrapper,
    values: dict[str, torch.Tensor | None],
    args: tuple[Any, ...],
) -> None:
    """Say what the buffers of a wrapper's graphs must hold at their replays, if it has CUDA graph buffers."""
    if not _has_graph_buffers(wrapper):
        return
    wanted = _wanted(wrapper, values)
    used: dict[str, int] = {}
    indices, indptr = vars(wrapper).get(layout.indices), values[layout.kv_indptr]
    if isinstance(indices, torch.Tensor) and indptr is not None and indptr.numel():
        used[layout.indices] = max(0, last_entry(indptr)) * indices.element_size()
    workspace = args[1]
    into = {INT_WORKSPACE: workspace.data_ptr()} if isinstance(workspace, torch.Tensor) else {}
    plans.expect(wrapper, wanted, used, into)


def _wanted(wrapper: Any, values: dict[str, torch.Tensor | None]) -> dict[str, bytes]:
    """Values given to a planner, as the wrapper's own index buffers are to hold them."""
    wanted: dict[str, bytes] = {}
    for attribute, given in values.items():
        own = vars(wrapper).get(attribute)
        if attribute and given is not None and isinstance(own, torch.Tensor) and own.dtype in _INTEGERS:
            wanted[attribute] = (
                np.frombuffer(_bytes(given), _INTEGERS[given.dtype]).astype(_INTEGERS[own.dtype]).tobytes()
            )
    return wanted


def _index_arguments(
    args: tuple[Any, ...],
) -> tuple[torch.Tensor | None, torch.Tensor, torch.Tensor | None] | None:
    """Query indptr, KV-cache indptr and lengths among a planner's arguments; None when they do not match. They follow
    the workspaces directly: one tensor, or three."""
    given: list[torch.Tensor] = []
    for argument in args[_WORKSPACES : _WORKSPACES + 4]:
        if not (isinstance(argument, torch.Tensor) and argument.is_cpu):
            break
        if argument.dtype not in _INTEGERS or argument.dim() != 1 or not argument.is_contiguous():
            return None
        given.append(argument)
    if len(given) == 1:
        return None, given[0], None
    if len(given) == 2:
        return given[0], given[1], None
    return (given[0], given[1], given[2]) if len(given) == 3 else None


def _bytes(tensor: torch.Tensor) -> bytes:
    """A host tensor's bytes, read by address, so that no read by the program is recorded."""
    return ctypes.string_at(tensor.data_ptr(), tensor.nbytes)


def _harmless() -> error_barrier_all:
    """Suppresses every exception of the debugger, those meant for users included."""
    return error_barrier_all("flashinfer adapter")
