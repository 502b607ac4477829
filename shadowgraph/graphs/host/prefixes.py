"""Runner for prefixes of a host graph: the first nodes, run several times from one state, which is restored afterwards.

Runs in the replaying thread, before the replay; no lock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import torch

from shadowgraph.graphs.host.capture_restore import Generators
from shadowgraph.graphs.host.nodes import AtenNode, CallableNode, Step, TenancyNode, TritonNode
from shadowgraph.graphs.prefixes import Changed, search
from shadowgraph.graphs.rerunning import NotRerun
from shadowgraph.model.probes import Outcome, Probe
from shadowgraph.model.ranges import ByteRange
from shadowgraph.tracking.memory import raw_bytes


def searched(steps: Sequence[Step], refused: Outcome, probe: Probe) -> Outcome:
    """The outcome of a search by prefixes of a replay that is about to run and that cannot be probed.

    The caller has set up the thread so that steps run as in a replay.
    """
    fallback = probe.fallback
    if fallback is None or not fallback.targets:
        return refused
    try:
        state = fallback.state(partial(_tenant_at, steps))
        runner = HostPrefixes(steps, [probe.parts[target] for target in fallback.targets], state)
    except NotRerun as error:
        return replace(refused, refused=f"{refused.refused}; {error}")
    try:
        hits, how, left = search(runner, fallback.targets)
    finally:
        runner.restore()
    return replace(refused, hits=hits, search=how, dropped=left)


class HostPrefixes:
    """A host graph that can be run in part; owns copies of `state` for its lifetime.

    Parameters
    ----------
    targets
        The ranges that are compared.
    state
        Every byte that a node may write, and the targets.

    Raises
    ------
    NotRerun
        For a graph with host callables, or one during which guards move.
    """

    shortest = 0
    how = "removed"

    def __init__(self, steps: Sequence[Step], targets: Sequence[ByteRange], state: Sequence[ByteRange]) -> None:
        _refuse_effects(steps)
        self._steps = [step for step in steps if not isinstance(step, TenancyNode)]
        self.order: Sequence[int] = [step.node.index for step in self._steps]
        self._targets = [raw_bytes(where.start, where.nbytes) for where in targets]
        self._starts = [where.start for where in targets]
        self._before = [view.copy() for view in self._targets]
        self._state = [raw_bytes(where.start, where.nbytes) for where in state]
        self._copies = [view.copy() for view in self._state]
        self._generators = _generators_of(self._steps)

    def run(self, count: int) -> list[Changed | None]:
        """Restore the state, run the first `count` nodes, and return the change of each target."""
        self.restore()
        states = Generators()
        try:
            for generator in self._generators:
                states.drew(generator)
            for step in self._steps[:count]:
                step.run(False)
        finally:
            states.restore()
        return [self._changed(place, kept) for place, kept in enumerate(self._before)]

    def restore(self) -> None:
        """Restore every byte to its value when the search began."""
        for view, copy in zip(self._state, self._copies, strict=True):
            np.copyto(view, copy)

    def _changed(self, place: int, before: np.ndarray[tuple[int], np.dtype[np.uint8]]) -> Changed | None:
        changed = np.flatnonzero(self._targets[place] != before)
        if not changed.size:
            return None
        start = self._starts[place]
        return Changed(start + int(changed[0]), start + int(changed[-1]), int(changed.size))


def _refuse_effects(steps: Sequence[Step]) -> None:
    """Refuse steps with effects that cannot be undone."""
    if any(isinstance(step, CallableNode) for step in steps):
        raise NotRerun("it runs host code, which must not run twice")
    if not all(_stands(step) for step in steps if isinstance(step, TenancyNode)):
        raise NotRerun("tensors of it take each other's memory, so that guards move while it runs")


def _tenant_at(steps: Sequence[Step], address: int) -> tuple[int, int] | None:
    """Range of a tensor that the capture allocated and that was freed since."""
    buffers = (step.tenancy.buffer for step in steps if isinstance(step, TenancyNode))
    return next(((b.start, b.nbytes) for b in buffers if b.range.contains(address)), None)


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
