"""Runs of a host graph, in whole or in part, from one state, which is restored afterwards.

Used by the search by prefixes and by experiments, in the replaying thread, before the replay; no lock. The caller has
set up the thread so that steps run as in a replay.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np
import torch

from shadowgraph.graphs.host.capture_restore import Generators
from shadowgraph.graphs.host.nodes import AtenNode, CallableNode, Step, TenancyNode, TritonNode
from shadowgraph.graphs.rerunning import NotRerun
from shadowgraph.model.ranges import ByteRange, RangeSet
from shadowgraph.model.reruns import Bytes, Experiment, Fill, Load
from shadowgraph.tracking.memory import raw_bytes


class HostReruns:
    """A host graph that can be run in part; owns copies of `state` for its lifetime.

    Parameters
    ----------
    state
        Every byte that a node may write, and those that a run is to begin with.
    moving
        Whether guards may move in a replay: tensors take each other's memory. Their blocks are restored as well.

    Raises
    ------
    NotRerun
        For a graph with host callables, or one during which guards move where they may not.
    """

    how = "removed"

    def __init__(self, steps: Sequence[Step], state: Sequence[ByteRange], moving: bool = False) -> None:
        _refuse_effects(steps, moving)
        if moving:
            state = list(RangeSet.of((*state, *_blocks(steps))))
        self._steps = [step for step in steps if not isinstance(step, TenancyNode)]
        self.order: Sequence[int] = [step.node.index for step in self._steps]
        self.runs = 0
        self._state = [raw_bytes(where.start, where.nbytes) for where in state]
        self._copies = [view.copy() for view in self._state]
        self._generators = _generators_of(self._steps)

    def run(self, fills: Sequence[Fill] = (), count: int | None = None) -> None:
        """Restore the state, set bytes, and run the first `count` nodes, or all."""
        self._run(fills, self._steps[:count])

    def trace(
        self, fills: Sequence[Fill], ranges: Sequence[ByteRange], digest: Callable[[list[Bytes]], bytes]
    ) -> list[bytes] | None:
        """Run all nodes, with a digest of some bytes after each one."""
        found: list[bytes] = []
        self._run(fills, self._steps, lambda: found.append(digest(self.read(ranges))))
        return found

    def _run(self, fills: Sequence[Fill], steps: Sequence[Step], ran: Callable[[], None] | None = None) -> None:
        self.restore()
        for where, pattern in fills:
            raw_bytes(where.start, where.nbytes)[:] = np.resize(np.frombuffer(pattern, np.uint8), where.nbytes)
        self.runs += bool(steps)
        states = Generators()
        try:
            for generator in self._generators:
                states.drew(generator)
            for step in steps:
                step.run(False)
                if ran is not None:
                    ran()
        finally:
            states.restore()

    def read(self, ranges: Sequence[ByteRange]) -> list[Bytes]:
        """Copies of some bytes as the latest run has left them."""
        return [raw_bytes(where.start, where.nbytes).copy() for where in ranges]

    def loads(self, fills: Sequence[Fill], place: int, where: ByteRange) -> list[Load]:
        """The loads of the node at a place in `order` that read bytes of a range; empty for an operator."""
        step = self._steps[place]
        if not isinstance(step, TritonNode):
            return []
        self.run(fills, place)
        return step.loads(where)

    def restore(self) -> None:
        """Restore every byte to its value at the beginning."""
        for view, copy in zip(self._state, self._copies, strict=True):
            np.copyto(view, copy)


def conducted(steps: Sequence[Step], experiment: Experiment) -> str | None:
    """Conduct an experiment on a graph that is about to replay; returns why there were no runs, or None."""
    try:
        reruns = HostReruns(steps, experiment.state(partial(tenant_at, steps)), moving=True)
    except NotRerun as error:
        return str(error)
    try:
        experiment.conduct(reruns)
    finally:
        reruns.restore()
    return None


def tenant_at(steps: Sequence[Step], address: int) -> tuple[int, int] | None:
    """Range of a tensor that the capture allocated and that was freed since."""
    buffers = (step.tenancy.buffer for step in steps if isinstance(step, TenancyNode))
    return next(((b.start, b.nbytes) for b in buffers if b.range.contains(address)), None)


def _refuse_effects(steps: Sequence[Step], moving: bool) -> None:
    """Refuse steps with effects that cannot be undone."""
    if any(isinstance(step, CallableNode) for step in steps):
        raise NotRerun("it runs host code, which must not run twice")
    if not moving and not all(_stands(step) for step in steps if isinstance(step, TenancyNode)):
        raise NotRerun("tensors of it take each other's memory, so that guards move while it runs")


def _blocks(steps: Sequence[Step]) -> Iterator[ByteRange]:
    """The tensors that a replay allocates, each with its guards."""
    for step in steps:
        if isinstance(step, TenancyNode):
            buffer = step.tenancy.buffer
            yield ByteRange(buffer.start - buffer.head_guard, buffer.guard_start + buffer.tail_guard)


def _stands(step: TenancyNode) -> bool:
    """Whether the guards of a tenant are in place already, and stay so when it is allocated."""
    buffer = step.tenancy.buffer
    return step.guards.tenants.get(buffer.start) is buffer and not buffer.gap


def _generators_of(steps: Sequence[AtenNode | TritonNode | CallableNode]) -> list[torch.Generator]:
    found = {
        id(value): value
        for step in steps
        if isinstance(step, AtenNode)
        for value in (*step.args, *step.kwargs.values())
        if isinstance(value, torch.Generator)
    }
    return list(found.values())
