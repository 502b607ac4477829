"""An experiment: several runs of a graph from one state before its next replay, as request and protocol.

A check puts an `Experiment` on a graph as its replay begins. The backend removes each, opens the graph for runs, hands
these to `Experiment.conduct`, restores every byte, and calls `Experiment.ended`; then the program's own replay runs.
All in the replaying thread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from shadowgraph.model.ranges import ByteRange

Bytes = npt.NDArray[np.uint8]
AllocationOf = Callable[[int], tuple[int, int] | None]


class Fill(NamedTuple):
    """Bytes to set before a run.

    Attributes
    ----------
    pattern
        Repeated from the first byte on.
    """

    where: ByteRange
    pattern: bytes


class Load(NamedTuple):
    """One load of a kernel that read some bytes; known on the host alone.

    Attributes
    ----------
    program
        The program of the grid.
    first, last
        Extreme bytes that it read of those in question, absolute and inclusive.
    line
        Line in the kernel's file; 0 where not known.
    """

    program: tuple[int, int, int]
    first: int
    last: int
    line: int


class Reruns(Protocol):
    """A graph that can be run, in whole or in part, several times from one state.

    Attributes
    ----------
    order
        Indices of the nodes in the order in which they run.
    how
        As in `shadowgraph.model.probes.Search`.
    runs
        Runs so far.
    """

    order: Sequence[int]
    how: str
    runs: int

    def run(self, fills: Sequence[Fill], count: int | None = None) -> None:
        """Restore the state, set bytes, and run the first `count` nodes, or all."""

    def read(self, ranges: Sequence[ByteRange]) -> list[Bytes]:
        """Copies of some bytes as the latest run has left them."""

    def trace(
        self, fills: Sequence[Fill], ranges: Sequence[ByteRange], digest: Callable[[list[Bytes]], bytes]
    ) -> list[bytes] | None:
        """Run all nodes, with a digest of some bytes after each; None where nodes cannot be looked at one by one."""

    def loads(self, fills: Sequence[Fill], place: int, where: ByteRange) -> list[Load]:
        """The loads of the node at a place in `order` that read bytes of a range; empty where they are not known."""


@dataclass(frozen=True, slots=True, eq=False)
class Experiment:
    """Runs of a graph before its next replay.

    Attributes
    ----------
    state
        Called with a look-up of other allocations; returns the ranges to restore after each run; raises `NotRerun`.
    conduct
        Called with the runs. It may take as many as it needs.
    ended
        Called once, with every byte restored: with the reason where there were no runs, else None. It may raise what
        a debugger raises in sync mode.
    """

    state: Callable[[AllocationOf], list[ByteRange]]
    conduct: Callable[[Reruns], None]
    ended: Callable[[str | None], None]
