"""Exceptions of the program that were recorded with their context, and the sources of the batches they belong to.

Called by `exception_context` and `FindingPipeline`, in any thread; takes no lock.
"""

from __future__ import annotations

from collections.abc import Callable

from shadowgraph.common.internal_errors import error_barrier
from shadowgraph.model.failures import Failure
from shadowgraph.model.findings import Batch
from shadowgraph.model.graphs import Graph
from shadowgraph.monitor.subscriptions import Callbacks

_KEPT = 16  # a server may continue and fail again

BatchSource = Callable[[Graph, int], Batch | None]


class ProgramFailures:
    """The recorded exceptions, oldest first.

    Parameters
    ----------
    subscribers
        Receive each at once: the process may be killed next.
    """

    def __init__(self, subscribers: Callbacks[[Failure]]) -> None:
        self._subscribers = subscribers
        self._kept: list[Failure] = []

    @property
    def all(self) -> tuple[Failure, ...]:
        """The recorded exceptions."""
        return tuple(self._kept)

    def keep(self, failure: Failure) -> None:
        """Record an exception, unless enough are kept, and publish it."""
        if len(self._kept) < _KEPT:
            self._kept.append(failure)
            self._subscribers.post(failure)

    def knows(self, kind: str, said: str) -> bool:
        """Whether an exception is recorded: an exception often quotes its cause."""
        return any(each.kind == kind and _same(each.said, said) for each in self._kept)

    def start_over(self) -> None:
        """In a forked child: discard the parent's exceptions."""
        self._kept = []


def _same(known: str, said: str) -> bool:
    return known == said or bool(known and known in said)


class BatchSources:
    """Functions of adapters that know which batch of requests a replay was prepared for."""

    def __init__(self) -> None:
        self._sources: tuple[BatchSource, ...] = ()

    def add(self, source: BatchSource) -> None:
        """Ask a function from now on, before those added earlier. A function that is known already is not added."""
        if source not in self._sources:
            self._sources = (source, *self._sources)

    def of(self, graph: Graph, replay: int) -> Batch | None:
        """The batch of a graph's replay, by the first source that knows it."""
        for source in self._sources:
            with error_barrier("batch of a replay"):
                batch = source(graph, replay)
                if batch is not None:
                    return batch
        return None
