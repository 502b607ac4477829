"""The latest plans that host code computed from index pointers (indptr), with each planner's input as host memory held
it.

The planner hooks append on the thread that plans and take no lock; the report on an exception reads the last plan.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from shadowgraph.model.views import TensorView

KEPT = 32  # plans; a server has one for each layer group and step
LARGEST = 16 << 10  # bytes of index pointers kept for each


@dataclass(slots=True, eq=False)
class HostPlan:
    """One call of a planner.

    Attributes
    ----------
    planner, kind
        Class of the planner, and the kind of plan: ``decode``, ``prefill``, ``mla``, ...
    batch_size
        Number of requests that the index pointers describe.
    indptr, dtype
        The first bytes of the index pointers, and their dtype; `entries` is their total number.
    into
        The planner's own index pointers, which its kernels read; None where it has none.
    attribute
        The planner's attribute that holds them.
    graph, serial, replay
        Name and serial of the graph whose next replay it is for, and that replay's number; None where unknown.
    error
        First line of the planner's exception; empty where it raised none.
    """

    planner: str
    kind: str
    batch_size: int
    indptr: bytes
    dtype: str
    entries: int
    into: TensorView | None = None
    attribute: str = ""
    graph: str | None = None
    serial: int = 0
    replay: int | None = None
    error: str = ""
    time: float = field(default_factory=time.time)


class Again(NamedTuple):
    """A plan that differs from an earlier one only in these fields."""

    like: HostPlan
    indptr: bytes
    entries: int
    replay: int | None
    time: float


class HostPlans:
    """The latest plans, oldest first. Appending takes no lock."""

    def __init__(self) -> None:
        self._plans: deque[HostPlan | Again] = deque(maxlen=KEPT)

    def note(self, plan: HostPlan) -> None:
        """Record a planner call that is about to run."""
        self._plans.append(plan)

    def note_again(self, like: HostPlan, indptr: bytes, entries: int, replay: int | None) -> Again:
        """Record a repeated planner call with other values, at a fraction of the cost of `note`."""
        plan = tuple.__new__(Again, (like, indptr, entries, replay, time.time()))  # its own is a Python call
        self._plans.append(plan)
        return plan

    def whole(self, plan: HostPlan | Again) -> HostPlan:
        """Expand a plan and store the result in its place."""
        if isinstance(plan, HostPlan):
            return plan
        made = replace(
            plan.like,
            batch_size=max(plan.entries - 1, 0),
            indptr=plan.indptr,
            entries=plan.entries,
            replay=plan.replay,
            error="",
            time=plan.time,
        )
        for place, each in enumerate(tuple(self._plans)):
            if each is plan and self._plans[place] is plan:
                self._plans[place] = made
        return made

    @property
    def last(self) -> HostPlan | None:
        """The latest plan."""
        if not self._plans:
            return None
        return self.whole(self._plans[-1])
