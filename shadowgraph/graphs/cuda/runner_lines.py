"""Lines that one graph of a runner teaches the others, for nodes that C functions launched past torch's dispatcher.

A *runner* is the code that captures: the lines of the program around the capture, in one thread. Its first capture has
a `CaptureTracer`; the nodes of later ones get its lines by the names of their kernels (`aligned_lines`). `learn` and
`covers` are called in the capturing thread, which only compares how many kernels of each kind there are; `fill` aligns
nodes, in the thread that asks for a graph's. No lock.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from shadowgraph.graphs.cuda.aligned_lines import aligned, common, families
from shadowgraph.graphs.cuda.capture_watch import Called
from shadowgraph.graphs.cuda.driver import Driver, DriverError, demangled
from shadowgraph.graphs.cuda.node_attribution import Owner
from shadowgraph.graphs.observer.recorder import MOST_TAUGHT
from shadowgraph.graphs.observer.recording import Recording, Taught
from shadowgraph.model.graphs import Graph
from shadowgraph.tracking.traces import Trace

_KEPT = 16  # graphs of a runner that lines are learnt from: it may capture a model in pieces
_ALIGNED = 3  # graphs that are aligned with one, the likeliest first
_KERNEL = 0  # CUgraphNodeType


class LearntCall(NamedTuple):
    """A C function that launched the corresponding node of another graph."""

    name: str
    trace: Trace
    graph: str


class Learnt(NamedTuple):
    """The kernels of a graph, and the C functions that launched some, by place.

    Attributes
    ----------
    families
        Of all kernels.
    bare
        Of those that no noted launch made.
    """

    names: tuple[str, ...]
    calls: Mapping[int, LearntCall]
    families: Counter[str]
    bare: Counter[str]


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

    def unteach(self, taught: Taught | None) -> None:
        """Forget lines that were learnt in vain."""
        self.taught = tuple(each for each in self.taught if each is not taught)

    def learn(self, graph: str, names: Sequence[str], owners: Sequence[Owner]) -> None:
        """Learn from a graph in whose capture each C function that launched was seen."""
        calls = {
            place: LearntCall(owner.name, owner.trace, graph)
            for place, owner in enumerate(owners)
            if isinstance(owner, Called)
        }
        self._known.append(Learnt(tuple(names), calls, families(names), families(_bare(names, owners))))

    def knows(self, count: int) -> bool:
        """Whether a graph with as many nodes is known; it is taken for one with the same kernels."""
        return any(len(each.names) == count for each in self._known)

    def covers(self, names: Sequence[str]) -> bool:
        """Whether a graph with such kernels is known, in whatever order."""
        wanted = families(names)
        return any(common(each.families, wanted) for each in self._known)

    def resembles(self, names: Sequence[str], owners: Sequence[Owner]) -> bool:
        """Whether C functions launched such kernels in a known graph; what operators launch may differ by sizes."""
        wanted = families(_bare(names, owners))
        return not wanted or any(common(each.bare, wanted) for each in self._known)

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
        wanted = families(names)
        alike = [(common(each.families, wanted) * 2 - len(each.names), each) for each in self._known]
        alike.sort(key=lambda each: each[0], reverse=True)
        for _, known in alike[:_ALIGNED]:
            places = aligned(known.names, names)
            if places is not None:
                return known, places
        return None, ()


class GraphLines(NamedTuple):
    """What a graph has from its runner: the lines of its operators, and those for its nodes without an owner."""

    runner: Lines
    recording: Recording
    taught: Taught | None = None  # what it has taught in its turn

    def fill(self, model: Graph, names: Sequence[str], owners: list[Owner]) -> list[Owner]:
        """`Lines.fill`; where no known graph has these kernels, `refuse` and the owners as they are."""
        filled = self.runner.fill(names, owners)
        model.unlearnt = filled is None
        if filled is None:
            self.refuse(model, names, owners)
        return owners if filled is None else filled

    def refuse(self, model: Graph, names: Sequence[str], owners: Sequence[Owner]) -> None:
        """The graph's kernels are those of no known graph: the next capture of its runner is observed in full. If C
        functions launched other ones than ever, the code has gone another way, and no learnt line of an operator can
        be trusted."""
        self.runner.want()
        if self.runner.resembles(names, owners):
            return
        self.runner.unteach(self.taught)
        if self.recording.forget_learnt():
            model.build_later(self.recording.nodes)


def _bare(names: Sequence[str], owners: Sequence[Owner]) -> list[str]:
    """The names of nodes that no noted launch made."""
    return [
        name for name, owner in zip(names, owners, strict=True) if owner is None or isinstance(owner, Called)
    ]  # fmt: skip


def names_of(calls: Driver, handles: Sequence[int]) -> list[str]:
    """For each node its kernel's demangled name, or its kind."""
    return [_name_of(calls, handle) for handle in handles]


def _name_of(calls: Driver, handle: int) -> str:
    try:
        kind = calls.kind(handle)
        return demangled(calls.kernel_of(handle)) if kind == _KERNEL else f"kind {kind}"
    except DriverError:
        return "?"
