"""Runner for prefixes of a host graph: the first nodes, run several times from one state, which is restored afterwards.

Runs in the replaying thread, before the replay; no lock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from shadowgraph.graphs.host.nodes import Step
from shadowgraph.graphs.host.reruns import HostReruns, tenant_at
from shadowgraph.graphs.prefixes import Changed, search
from shadowgraph.graphs.rerunning import NotRerun
from shadowgraph.model.probes import Outcome, Probe
from shadowgraph.model.ranges import ByteRange
from shadowgraph.model.reruns import Bytes
from shadowgraph.tracking.memory import raw_bytes


def searched(steps: Sequence[Step], refused: Outcome, probe: Probe) -> Outcome:
    """The outcome of a search by prefixes of a replay that is about to run and that cannot be probed.

    The caller has set up the thread so that steps run as in a replay.
    """
    fallback = probe.fallback
    if fallback is None or not fallback.targets:
        return refused
    try:
        state = fallback.state(partial(tenant_at, steps))
        runner = HostPrefixes(steps, [probe.parts[target] for target in fallback.targets], state)
    except NotRerun as error:
        return replace(refused, refused=f"{refused.refused}; {error}")
    try:
        hits, how, left = search(runner, fallback.targets)
    finally:
        runner.restore()
    return replace(refused, hits=hits, search=how, dropped=left)


class HostPrefixes:
    """A host graph that can be run in part, with a comparison after each run.

    Parameters
    ----------
    targets
        The ranges that are compared.
    state
        Every byte that a node may write, and the targets.

    Raises
    ------
    NotRerun
        As `HostReruns`.
    """

    how = HostReruns.how

    def __init__(self, steps: Sequence[Step], targets: Sequence[ByteRange], state: Sequence[ByteRange]) -> None:
        self._reruns = HostReruns(steps, state)
        self.order = self._reruns.order
        self._targets = [raw_bytes(where.start, where.nbytes) for where in targets]
        self._starts = [where.start for where in targets]
        self._before = [view.copy() for view in self._targets]

    def run(self, count: int) -> list[Changed | None]:
        """Restore the state, run the first `count` nodes, and return the change of each target."""
        self._reruns.run(count=count)
        return [self._changed(place, kept) for place, kept in enumerate(self._before)]

    def restore(self) -> None:
        """Restore every byte to its value when the search began."""
        self._reruns.restore()

    def _changed(self, place: int, before: Bytes) -> Changed | None:
        changed = np.flatnonzero(self._targets[place] != before)
        if not changed.size:
            return None
        start = self._starts[place]
        return Changed(start + int(changed[0]), start + int(changed[-1]), int(changed.size))
