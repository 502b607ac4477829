"""The checkpoints that check nodes stand for: evidence of a node carries graph and replay, and arrives later.

Used by `Boundaries` under the debugger's lock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from shadowgraph.checks.base import Checkpoint, Context
from shadowgraph.engines.base import NodeCheck, Result
from shadowgraph.model.graphs import Graph
from shadowgraph.model.guards import Guard
from shadowgraph.model.phases import Phase
from shadowgraph.monitor.evidence_dispatch import place_of
from shadowgraph.monitor.step_dates import dated

_MOST = 512  # checkpoints of observed replays that are kept: more than a stream queues
_GONE = 64  # graphs that are gone


def _by_buffer(results: Sequence[Result]) -> Sequence[Result]:
    """Threads of a node report each range for itself, in any order."""
    first: dict[NodeCheck, int] = {}
    places = [first.setdefault(r.tag, at) if isinstance(r.tag, NodeCheck) else at for at, r in enumerate(results)]
    inside = [place_of(result.evidence[0]) if result.evidence else (0, 0) for result in results]
    return [results[at] for at in sorted(range(len(results)), key=lambda at: (places[at], inside[at], at))]


class NodeCheckpoints:
    """Finds the checkpoint of a check node: the one noted for its replay, else one that says how much is known.

    Where a replay passed unobserved, phase, graph and replay are as exact as in an observed one; the launches of its
    preparation are not known.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self._noted: dict[NodeCheck, Checkpoint] = {}
        self._compared: dict[tuple[int, int], None] = {}
        self._gone: dict[int, Graph] = {}

    def note(self, graph: Graph, checkpoint: Checkpoint) -> None:
        """An observed replay begins or has ended; `graph.replays` counts it."""
        noted = self._noted
        while len(noted) >= _MOST:
            noted.pop(next(iter(noted)), None)
        noted[NodeCheck(graph.serial, graph.replays, checkpoint.at == "replay_end")] = checkpoint

    def compared(self, graph: Graph) -> None:
        """A replay begins whose shadow a launch copies now, and another one compares at its end: what the graph's nodes
        say of the same ranges is no news."""
        while len(self._compared) >= _MOST:
            self._compared.pop(next(iter(self._compared)), None)
        self._compared[graph.serial, graph.replays] = None

    def dropped(self, graph: Graph) -> None:
        """A graph is gone; evidence of its last replays may still arrive."""
        while len(self._gone) >= _GONE:
            self._gone.pop(next(iter(self._gone)), None)
        self._gone[graph.serial] = graph

    def of(self, results: Sequence[Result]) -> list[Result]:
        """Results with a checkpoint as the tag of each; those of one node are in order of buffers."""
        return [
            self._known(result, result.tag) if isinstance(result.tag, NodeCheck) else result
            for result in _by_buffer(results)
        ]

    def _known(self, result: Result, tag: NodeCheck) -> Result:
        evidence = result.evidence
        if (tag.graph, tag.replay) in self._compared:
            evidence = tuple(each for each in evidence if isinstance(each.subject, Guard))
        return result._replace(tag=self._checkpoint(tag) if evidence else Checkpoint("check"), evidence=evidence)

    def _checkpoint(self, tag: NodeCheck) -> Checkpoint:
        noted = self._noted.get(tag)
        if noted is not None:
            return noted
        graph = self._context.graphs.get(tag.graph) or self._gone.get(tag.graph)
        at, phase = ("replay_end", Phase.REPLAY) if tag.end else ("replay_begin", None)
        return dated(replace(Checkpoint(at, phase, graph, tag.replay), order=next(self._context.clock), observed=False))
