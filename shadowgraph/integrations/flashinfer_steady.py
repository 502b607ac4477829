"""A wrapper that plans again and again, while replays pass: of each plan only what differs from the last one is noted.

Nothing looks at those replays, yet a server's crash is explained with the plan before it, whichever that is.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

import torch

from shadowgraph.faults import faults
from shadowgraph.hostplans import LARGEST, Again, HostPlan, HostPlans
from shadowgraph.integrations.flashinfer_planner import Onlooker, StandIn

if TYPE_CHECKING:
    from shadowgraph.graphs.model import Graph


class Planner(Onlooker, Protocol):
    """Hears of what cannot be noted here."""

    def failed(self, plan: HostPlan | Again, error: BaseException) -> None:
        """A planner raised."""


class SteadyModule(StandIn):
    """Stands for a wrapper's compiled module. Keeps the module alive, not the wrapper.

    Parameters
    ----------
    module, wrapper
        What it stands for, and whose.
    planner
        The module's own planner.
    onlooker
        Who is asked where a plan differs in more than values.
    plans, plan
        Where plans are kept, and the last one there of this wrapper.
    place
        Of the index pointers among the planner's arguments.
    given, into
        Their type; and address, length and type of the wrapper's own.
    preparing
        Graphs that were announced, the latest last.
    graph
        Which one it plans for; None where nobody knows.
    """

    _onlooker: Planner
    __slots__ = ("_facts", "_given", "_graph", "_place", "_plan", "_planner", "_plans", "_preparing", "_wrapper")

    def __init__(
        self,
        module: Any,
        wrapper: weakref.ref[Any],
        planner: Callable[..., Any],
        onlooker: Planner,
        plans: HostPlans,
        plan: HostPlan,
        place: int,
        given: torch.dtype,
        into: tuple[int, int, torch.dtype],
        preparing: list[Graph | None],
        graph: Graph | None,
    ) -> None:
        super().__init__(module, onlooker)
        self._wrapper, self._planner, self._plans, self._plan = wrapper, planner, plans, plan
        self._place, self._given, self._facts = place, given, into
        self._preparing, self._graph = preparing, graph

    def _owner(self) -> Any:
        return self._wrapper()

    def plan(self, *args: Any, **kwargs: Any) -> Any:
        """Note a plan, and call the planner."""
        noted = self._noted(args)
        if noted is None:
            return self._onlooker.plan(self._wrapper(), self._planner, *args, **kwargs)
        try:
            return self._planner(*args, **kwargs)
        except BaseException as error:
            self._onlooker.failed(noted, error)
            raise

    def _noted(self, args: tuple[Any, ...]) -> Again | None:
        """Note a plan that differs from the last one in its values only, if it does."""
        try:
            graph = self._graph
            if self._preparing and self._preparing[-1] is not graph:  # another graph was announced
                return None
            given = args[self._place]
            if given.dtype is not self._given or not given.is_cpu or not given.is_contiguous():
                return None
            into: Any = vars(self._wrapper()).get(self._plan.attribute)
            if (into.data_ptr(), into.numel(), into.dtype) != self._facts:
                return None
            data = ctypes.string_at(given.data_ptr(), min(given.nbytes, LARGEST))
            replay = graph.replays + 1 if graph is not None else None
            return self._plans.note_again(self._plan, data, given.numel(), replay)
        except (AttributeError, IndexError):  # no tensor, or no argument
            return None
        except Exception as error:
            faults.note("flashinfer adapter", error)
            return None
