"""Search by prefixes: finds the node that changed some bytes by running only the first nodes, several times from one
state.

Backend-independent; the caller provides a `Runner` and runs the search in the replaying thread, before the replay.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from shadowgraph.model.probes import Hit, Search

_EXTRA = 8  # extra runs for ranges that were changed by different nodes


@dataclass(frozen=True, slots=True)
class Changed:
    """First and last changed byte of a range, absolute and inclusive, and the number of changed bytes."""

    first: int
    last: int
    count: int


class Runner(Protocol):
    """A graph that can be run in part.

    Attributes
    ----------
    order
        Indices of the nodes in the order in which they run.
    how
        As in `Search`.
    """

    order: Sequence[int]
    how: str

    def run(self, count: int) -> list[Changed | None]:
        """Restore the state, run the first `count` nodes, and return the change of each target."""


@dataclass(slots=True)
class _Bounds:
    """For one target: the longest run known to leave it unchanged, the shortest run known to change it."""

    low: int = 0
    high: int | None = None
    shown: Changed | None = None

    @property
    def open(self) -> bool:
        return self.high is not None and self.high - self.low > 1


@dataclass(slots=True)
class _Runs:
    runner: Runner
    bounds: list[_Bounds]
    done: set[int] = field(default_factory=set)

    def run(self, count: int) -> None:
        self.done.add(count)
        for bounds, changed in zip(self.bounds, self.runner.run(count), strict=True):
            if changed is None:
                if bounds.low < count < (bounds.high or count + 1):
                    bounds.low = count
            elif bounds.high is None or bounds.low <= count < bounds.high:
                bounds.high, bounds.shown = count, changed

    def bisect(self, most: int) -> None:
        """Narrow the bounds of each target until none is open, with at most `most` runs in all."""
        while len(self.done) < most:
            wide = next((bounds for bounds in self.bounds if bounds.open), None)
            if wide is None or wide.high is None:
                break
            self.run((wide.low + wide.high) // 2)


def _hit(runner: Runner, part: int, bounds: _Bounds) -> Hit | None:
    """The hit of the one node between the bounds of a target, if there is one."""
    high, shown = bounds.high, bounds.shown
    if high is None or shown is None or high - bounds.low != 1:
        return None
    return Hit(runner.order[high - 1], part, shown.first, shown.last, shown.count)


def search(runner: Runner, targets: Sequence[int]) -> tuple[tuple[Hit, ...], Search, int]:
    """One node for each target that the graph changes: the bytes are unchanged before it, and changed after it.

    Where several nodes change a target it is one of them; where a later node restores the bytes, possibly none is
    found.

    Parameters
    ----------
    targets
        The value of `Hit.part` for each target of the runner.

    Returns
    -------
    tuple
        The hits, in order of nodes; how they were found; how many targets changed without a node found.
    """
    total = len(runner.order)
    runs = _Runs(runner, [_Bounds() for _ in targets])
    runs.run(total)
    runs.bisect(most=1 + math.ceil(math.log2(max(2, total))) + _EXTRA)
    found = (_hit(runner, part, bounds) for part, bounds in zip(targets, runs.bounds, strict=True))
    hits = [hit for hit in found if hit is not None]
    left = sum(bounds.high is not None for bounds in runs.bounds) - len(hits)
    return tuple(sorted(hits, key=lambda hit: (hit.node, hit.part))), Search(len(runs.done), total, runner.how), left
