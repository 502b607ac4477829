"""The latest plans that host code made from index pointers: what a planner was given, as host memory had it."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field

from shadowgraph.tracking.views import TensorView

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


class HostPlans:
    """The latest plans, oldest first. Appending takes no lock."""

    def __init__(self) -> None:
        self._plans: deque[HostPlan] = deque(maxlen=KEPT)

    def note(self, plan: HostPlan) -> None:
        """A planner is about to be called."""
        self._plans.append(plan)

    @property
    def last(self) -> HostPlan | None:
        """The latest one."""
        return self._plans[-1] if self._plans else None
