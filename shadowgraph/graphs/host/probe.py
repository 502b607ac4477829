"""Probed replay on the host: memory is compared with a copy after every node. In the replaying thread; no lock."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from shadowgraph.common.internal_errors import error_barrier
from shadowgraph.graphs.events import events
from shadowgraph.graphs.host.nodes import Step, TenancyNode
from shadowgraph.graphs.host.prefixes import searched
from shadowgraph.model.graphs import Graph
from shadowgraph.model.probes import Hit, Outcome, Probe
from shadowgraph.model.ranges import ByteRange
from shadowgraph.tracking.memory import raw_bytes

NO_ROOM = "no memory for copies"


class _Copies:
    """Contents of the parts before the running node."""

    def __init__(self, parts: Sequence[ByteRange]) -> None:
        self._views = [raw_bytes(part.start, part.nbytes) for part in parts]
        self._starts = [part.start for part in parts]
        self._copies = [view.copy() for view in self._views]
        self._unsettled: set[int] = set()  # parts that a check may have armed again since they were compared
        self.hits: list[Hit] = []

    def before(self) -> None:
        """A node is about to run."""
        for part in self._unsettled:
            np.copyto(self._copies[part], self._views[part])

    def ran(self, step: Step) -> None:
        if isinstance(step, TenancyNode):
            self.again()
        else:
            self.after(step.node.index)

    def after(self, node: int) -> None:
        """A node ran."""
        for part, (view, copy) in enumerate(zip(self._views, self._copies, strict=True)):
            if np.array_equal(view, copy):
                continue
            changed = np.flatnonzero(view != copy)
            first, last = self._starts[part] + int(changed[0]), self._starts[part] + int(changed[-1])
            self.hits.append(Hit(node, part, first, last, int(changed.size)))
            np.copyto(copy, view)
            self._unsettled.add(part)

    def again(self) -> None:
        """A block got another tenant: guards moved, which is no change by a node of the program."""
        for view, copy in zip(self._views, self._copies, strict=True):
            np.copyto(copy, view)


def run_probed(steps: Sequence[Step], model: Graph, watched: bool, probe: Probe) -> None:
    """Run the steps of a replay, emitting the events of a plain replay, and deliver the bytes that each node changed.

    For a replay that raises, the changes until then are delivered. Internal errors only end the comparison. Without
    memory for copies a search by prefixes runs before, where that is possible.
    """
    copies: _Copies | None = None
    outcome = Outcome(model.replays, refused=NO_ROOM)
    with error_barrier("copies of a probed replay"):
        copies = _Copies(probe.parts)
    if copies is None:
        with error_barrier("search by prefixes"):
            outcome = searched(steps, outcome, probe)
    try:
        for step in steps:
            with error_barrier("probed replay"):
                if copies is not None:
                    copies.before()
            stores = step.run(watched)
            with error_barrier("probed replay"):
                if copies is not None:
                    copies.ran(step)
            if watched and not isinstance(step, TenancyNode):
                events.node_ran(model, step.node, stores)
    finally:
        with error_barrier("outcome of a probed replay"):
            probe.deliver(outcome if copies is None else Outcome(model.replays, tuple(copies.hits)))
