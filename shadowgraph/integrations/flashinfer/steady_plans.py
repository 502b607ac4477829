"""A wrapper that plans again and again, while replays pass: of each plan only what differs from the last one is noted.

Nothing looks at those replays, yet a server's crash is explained with the plan before it, whichever that is.
"""

from __future__ import annotations

import ctypes
import weakref
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch

from shadowgraph.common.internal_errors import internal_errors
from shadowgraph.integrations.flashinfer.planner import Onlooker, StandIn
from shadowgraph.model.host_plans import LARGEST, Again, HostPlan, HostPlans
from shadowgraph.monitor.sampling import passing

if TYPE_CHECKING:
    from shadowgraph.model.graphs import Graph
    from shadowgraph.monitor.preparing import Preparing


class Planner(Onlooker, Protocol):
    """Hears of what cannot be noted here."""

    def failed(self, plan: HostPlan | Again, error: BaseException) -> None:
        """A planner raised."""


class Steady(NamedTuple):
    """A wrapper's last plan, and what must be the same for the next one to differ in values only.

    Attributes
    ----------
    wrapper
        Whose it is.
    plans, plan
        Where plans are kept, and the last one there.
    place, given
        Where index pointers are among the planner's arguments, and their type.
    into
        Address, length and type of the wrapper's own index pointers.
    preparing
        Which graph was announced, to the thread that plans.
    graph
        Which one it plans for; None where nobody knows.
    alone
        Whether that is known without its being announced.
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
    """Stands for the compiled module of a wrapper whose plans are steady."""

    _onlooker: Planner
    __slots__ = ("_steady",)

    def __init__(self, module: Any, wrapper: Any, onlooker: Planner, steady: Steady) -> None:
        self._module, self._wrapper, self._onlooker, self._steady = module, wrapper, onlooker, steady

    def plan(self, *args: Any, **kwargs: Any) -> Any:
        """Note a plan, and call the planner."""
        noted = self._noted(args) if passing.on else None
        if noted is None:
            return self._onlooker.plan(self._wrapper, self._module.plan, *args, **kwargs)
        try:
            return self._module.plan(*args, **kwargs)
        except BaseException as error:
            self._onlooker.failed(noted, error)
            raise

    def _noted(self, args: tuple[Any, ...]) -> Again | None:
        """Note a plan that differs from the last one in its values only, if it does; few calls, on the path of each."""
        steady = self._steady
        graph = steady.graph
        announced = steady.preparing
        if announced.graph is not graph if announced else not steady.alone:  # it is for another graph
            return None
        try:
            given, into = args[steady.place], vars(self._wrapper).get(steady.plan.attribute)
            if given.dtype is not steady.given or not given.is_cpu or not given.is_contiguous():
                return None
            if into is None or (into.data_ptr(), into.numel(), into.dtype) != steady.into:
                return None
            data = ctypes.string_at(given.data_ptr(), min(given.nbytes, LARGEST))
            replay = graph.replays + 1 if graph is not None else None
            return steady.plans.note_again(steady.plan, data, given.numel(), replay)
        except (AttributeError, IndexError):  # no tensor, or no argument
            return None
        except Exception as error:
            internal_errors.note("flashinfer adapter", error)
            return None
