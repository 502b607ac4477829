"""Fast path for repeated plans of one wrapper during unobserved replays: records only the values that changed.

No check examines those replays, but the report of a server's crash needs the plan before it, whichever that is. Runs in
the planning thread; takes no lock.
"""

from __future__ import annotations

import ctypes
import weakref
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch

from shadowgraph.adapter_interface import Preparing, launch_recording, passing
from shadowgraph.common.internal_errors import internal_errors
from shadowgraph.integrations.flashinfer.planner import Onlooker, StandIn
from shadowgraph.model.host_plans import LARGEST, Again, HostPlan, HostPlans, indptr_said, plan_said

if TYPE_CHECKING:
    from shadowgraph.model.graphs import Graph


class Planner(Onlooker, Protocol):
    """Receives the calls that the fast path does not handle."""

    def failed(self, plan: HostPlan | Again, error: BaseException) -> None:
        """A planner raised."""


class Steady(NamedTuple):
    """A wrapper's last plan, and the conditions under which the next one differs in values only.

    Attributes
    ----------
    wrapper
        The planning wrapper.
    plans, plan
        The record of plans, and the last one in it.
    place, given
        Position of the index pointers among the planner's arguments, and their dtype.
    into
        Address, number of elements and dtype of the wrapper's own index pointers.
    preparing
        Open prepare blocks, which announce a graph to the planning thread.
    graph
        The graph that the wrapper plans for; None when unknown.
    alone
        Whether the graph is known without an announcement.
    """

    wrapper: weakref.ref[Any]
    plans: HostPlans
    plan: HostPlan
    place: int
    given: torch.dtype
    into: tuple[int, int, torch.dtype]
    preparing: Preparing
    graph: Graph | None
    alone: bool


class SteadyModule(StandIn):
    """Proxy for the compiled module of a wrapper with repeated plans."""

    _onlooker: Planner
    __slots__ = ("_steady",)

    def __init__(self, module: Any, wrapper: Any, onlooker: Planner, steady: Steady) -> None:
        self._module, self._wrapper, self._onlooker, self._steady = module, wrapper, onlooker, steady

    def plan(self, *args: Any, **kwargs: Any) -> Any:
        """Record a plan, and call the planner."""
        noted = self._noted(args) if passing.on else None
        if noted is None:
            return self._onlooker.plan(self._wrapper, self._module.plan, *args, **kwargs)
        try:
            return self._module.plan(*args, **kwargs)
        except BaseException as error:
            self._onlooker.failed(noted, error)
            raise

    def _noted(self, args: tuple[Any, ...]) -> Again | None:
        """Record a plan that differs from the last one in values only; on the path of every plan."""
        steady = self._steady
        graph = steady.graph
        announced = steady.preparing
        if announced.graph is not graph if announced else not steady.alone:  # planned for another graph
            return None
        try:
            given, into = args[steady.place], vars(self._wrapper).get(steady.plan.attribute)
            if given.dtype is not steady.given or not given.is_cpu or not given.is_contiguous():
                return None
            if (into.data_ptr(), into.numel(), into.dtype) != steady.into:
                return None
            data = ctypes.string_at(given.data_ptr(), min(given.nbytes, LARGEST))
            replay = graph.replays + 1 if graph is not None else None
            log = launch_recording.current
            if log is not None:
                entries = given.numel()
                said = plan_said(steady.plan, entries), indptr_said(steady.plan, data, entries)
                log.plan(*said, steady.plan.serial, replay or 0)
            return steady.plans.note_again(steady.plan, data, given.numel(), replay)
        except (AttributeError, IndexError):  # not a tensor, or a missing argument or attribute
            return None
        except Exception as error:
            internal_errors.note("flashinfer adapter", error)
            return None
