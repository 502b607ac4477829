"""Lines that one graph of a runner teaches the others, for nodes that C functions launched past torch's dispatcher.

A *runner* is the code that captures: the lines of the program around the capture, in one thread. Its first capture has
a `CaptureTracer`; the nodes of later ones get its lines by the names of their kernels (`aligned_lines`). `learn` and
`wants` are called in the capturing thread, `fill` in the thread that asks for a graph's nodes. No lock.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from shadowgraph.graphs.cuda.aligned_lines import aligned
from shadowgraph.graphs.cuda.capture_watch import Called
from shadowgraph.graphs.cuda.driver import Driver, DriverError, demangled
from shadowgraph.graphs.cuda.node_attribution import Owner
from shadowgraph.graphs.observer.recorder import MOST_TAUGHT
from shadowgraph.graphs.observer.recording import Taught
from shadowgraph.tracking.traces import Trace

_KEPT = 16  # graphs of a runner that lines are learnt from: it may capture a model in pieces
_KERNEL = 0  # CUgraphNodeType


class LearntCall(NamedTuple):
    """A C function that launched the corresponding node of another graph."""

    name: str
    trace: Trace
    graph: str


class Learnt(NamedTuple):
    """The kernels of a graph, and the C functions that launched some, by place."""

    names: tuple[str, ...]
    calls: Mapping[int, LearntCall]


class Lines:
    """What a runner's graphs have taught.

    Attributes
    ----------
    wanted
        Whether the runner's next capture is to have a tracer.
    taught
        Operators of captures, and their lines.
    """

    def __init__(self) -> None:
        self.wanted = True
        self.taught: tuple[Taught, ...] = ()
        self._known: list[Learnt] = []

    def teach(self, taught: Taught) -> None:
        """Lines of operators for later captures."""
        self.taught = (*self.taught, taught)[-MOST_TAUGHT:]

    def learn(self, graph: str, names: Sequence[str], owners: Sequence[Owner]) -> None:
        """Learn from a graph in whose capture each C function that launched was seen."""
        calls = {
            place: LearntCall(owner.name, owner.trace, graph)
            for place, owner in enumerate(owners)
            if isinstance(owner, Called)
        }
        self._known.append(Learnt(tuple(names), calls))

    def knows(self, count: int) -> bool:
        """Whether a graph with as many nodes is known; it is taken for one with the same kernels."""
        return any(len(each.names) == count for each in self._known)

    def covers(self, names: Sequence[str]) -> bool:
        """Whether a graph with these kernels is known."""
        return self._most_alike(names)[0] is not None

    def want(self) -> None:
        """Have the next capture teach, unless enough have done so in vain."""
        self.wanted = len(self._known) < _KEPT

    def fill(self, names: Sequence[str], owners: Sequence[Owner]) -> list[Owner] | None:
        """The owners of a graph's nodes; those without one get that of the corresponding node in the known graph that
        is most alike. None where no known graph has these kernels."""
        known, places = self._most_alike(names)
        if known is None:
            return None
        return [
            known.calls.get(place) if owner is None and place is not None else owner
            for place, owner in zip(places, owners, strict=True)
        ]

    def _most_alike(self, names: Sequence[str]) -> tuple[Learnt | None, Sequence[int | None]]:
        best: tuple[int, Learnt | None, Sequence[int | None]] = (-1, None, ())
        for known in self._known:
            places = aligned(known.names, names)
            if places is not None:
                same = sum(place is not None for place in places) * 2 - len(known.names)
                best = max(best, (same, known, places), key=lambda each: each[0])
        return best[1], best[2]


def names_of(calls: Driver, handles: Sequence[int]) -> list[str]:
    """For each node its kernel's demangled name, or its kind."""
    return [_name_of(calls, handle) for handle in handles]


def _name_of(calls: Driver, handle: int) -> str:
    try:
        kind = calls.kind(handle)
        return demangled(calls.kernel_of(handle)) if kind == _KERNEL else f"kind {kind}"
    except DriverError:
        return "?"
