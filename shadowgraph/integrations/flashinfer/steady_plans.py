"""Fast path for repeated plans of one wrapper during unobserved replays: records only the values that changed.

No check examines those replays, but the report of a server's crash needs the plan before it, whichever that is. Runs in
the planning thread; takes no lock.
"""

from __future__ import annotations

import ctypes
import sys
import weakref
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Protocol

import torch

from shadowgraph.adapter_interface import Novelty, Preparing, launch_recording, passing
from shadowgraph.common.internal_errors import internal_errors
from shadowgraph.graphs import host_tensors, launch_rows
from shadowgraph.integrations.flashinfer.planner import Onlooker, StandIn
from shadowgraph.integrations.flashinfer.versions import PACKAGE
from shadowgraph.model.host_plans import LARGEST, Again, HostPlan, HostPlans
from shadowgraph.model.launch_log import SharedText
from shadowgraph.model.launch_log_format import OPEN, RowKind

if TYPE_CHECKING:
    from shadowgraph.model.graphs import Graph


_named: dict[tuple[type, str], SimpleNamespace] = {}  # of wrapper classes and functions, a few dozen at most
PLANNED = "requests and entries of a plan"
_NO_KEYWORDS: dict[str, Any] = {}


class Planner(Onlooker, Protocol):
    """Receives the calls that the fast path does not handle."""

    def failed(self, plan: HostPlan | Again, error: BaseException) -> None:
        """A planner raised."""


@dataclass(slots=True, eq=False)  # whose fields cost less to read than a named tuple's
class Steady:
    """A wrapper's last plan, and the conditions under which the next one differs in values only.

    Attributes
    ----------
    wrapper
        The planning wrapper.
    plans, plan
        The record of plans, and the last one in it.
    said, named
        What the launch log says of the wrapper's plans, and the planner in it.
    place, attribute
        Position of the index pointers among the planner's arguments, and the attribute with the wrapper's own.
    facts
        Of both, from `host_tensors.facts`.
    preparing
        Open prepare blocks, which announce a graph to the planning thread.
    graph
        The graph that the wrapper plans for; None when unknown.
    alone
        Whether the graph is known without an announcement.
    novelty
        The largest plans so far.
    """

    wrapper: weakref.ref[Any]
    plans: HostPlans
    plan: HostPlan
    said: SharedText
    named: SimpleNamespace
    place: int
    attribute: str
    facts: object
    preparing: Preparing
    graph: Graph | None
    alone: bool
    novelty: Novelty


def last_entry(indptr: torch.Tensor) -> int:
    """The last of some index pointers on the host: the number of entries that they divide. 0 without any."""
    size = indptr.itemsize
    if not indptr.numel():
        return 0
    return int.from_bytes(ctypes.string_at(indptr.data_ptr() + indptr.nbytes - size, size), sys.byteorder, signed=True)


def named(cls: type, what: str) -> SimpleNamespace:
    """Stands for a wrapper's compiled function in the launch log, whichever module it is of."""
    found = _named.get((cls, what))
    if found is None:
        found = _named[cls, what] = SimpleNamespace(__name__=f"{PACKAGE}.{cls.__name__}.{what}")
    return found


def plan_said(plan: HostPlan) -> SharedText:
    """What the launch log says of plans of one planner."""
    return SharedText(RowKind.PLAN, f"{plan.planner} ({plan.kind})", f": {OPEN} requests, {OPEN} entries")


def log_plan(said: SharedText, requests: int, entries: int, serial: int, replay: int | None) -> None:
    """Note in the launch log a plan that is about to be made, for a graph's next replay where that is known."""
    log = launch_recording.current
    if log is not None:
        log.note_shared(said, serial, replay or 0, (requests, entries))


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
        graph, preparing = steady.graph, steady.preparing
        # The blocks of all threads first: in most steps there is none.
        if preparing.graph is not graph if preparing.anywhere and preparing else not steady.alone:
            return None  # planned for another graph
        try:
            into = self._wrapper.__dict__.get(steady.attribute)
            found = host_tensors.taken(steady.facts, args[steady.place], into, LARGEST)
            if found is None:
                return None
            data, count, entries = found
            serial, replay = 0, None
            if graph is not None:
                serial, replay = graph.serial, graph.replays + 1
                steady.novelty.see(PLANNED, serial, count - 1, entries)
                if not passing.on:  # it was larger than all before: the plan is observed in full
                    return None
            log_plan(steady.said, count - 1, entries, serial, replay)
            launch_rows.note(steady.named, args, _NO_KEYWORDS)
            return steady.plans.note_again(steady.plan, data, count, replay)
        except IndexError:  # a missing argument
            return None
        except Exception as error:
            internal_errors.note("flashinfer adapter", error)
            return None
