"""The latest plans that host code made from index pointers: what a planner was given, as host memory had it."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from shadowgraph.model.views import TensorView

KEPT = 32  # plans; a server has one for each layer group and step
LARGEST = 16 << 10  # bytes of index pointers kept of each


@dataclass(slots=True, eq=False)
class HostPlan:
    """One call of a planner.

    Attributes
    ----------
    planner, kind
        The class of the object that planned, and what it plans for: ``decode``, ``prefill``, ``mla``, ...
    batch_size
        Requests that the index pointers are for.
    indptr, dtype
        The beginning of the index pointers' bytes, and their type; `entries` is how many there are in all.
    into
        Where the object's own index pointers lie, which its kernels read; None where it has none.
    attribute
        Which of its attributes leads there.
    graph, serial, replay
        Name and serial of the graph whose coming replay it is for, and that replay's number; None where nobody knows.
    error
        First line of what the planner raised; empty where it did not.
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
    """A plan as an earlier one, but for this."""

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
        """A planner is about to be called."""
        self._plans.append(plan)

    def note_again(self, like: HostPlan, indptr: bytes, entries: int, replay: int | None) -> Again:
        """A planner is about to be called as it was before, with other values: a fraction of the cost."""
        plan = tuple.__new__(Again, (like, indptr, entries, replay, time.time()))  # its own is a call in Python
        self._plans.append(plan)
        return plan

    def whole(self, plan: HostPlan | Again) -> HostPlan:
        """A plan in full, which takes the place of the one that it was made of."""
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
        """The latest one."""
        if not self._plans:
            return None
        return self.whole(self._plans[-1])
