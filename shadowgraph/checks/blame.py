"""Which phase, graph and replay a piece of evidence belongs to."""

from __future__ import annotations

from shadowgraph.checks.base import Checkpoint, Context
from shadowgraph.graphs.model import Graph
from shadowgraph.tracking.phases import Phase
from shadowgraph.tracking.ranges import ByteRange
from shadowgraph.tracking.writes import Write

Blame = tuple[Phase, Graph | None, int | None]


def draft_phase(context: Context, checkpoint: Checkpoint, where: ByteRange, culprits: tuple[Write, ...]) -> Blame:
    """Phase, graph and replay of damage to `where`, or done by `culprits`.

    A checkpoint that knows its phase settles it. Otherwise unmarked host code ran: it was *prepare* when it touched
    what a captured graph reads, and then the replay is that graph's coming one; else *setup* before the first replay
    of any graph, and *eager* after it.
    """
    if checkpoint.phase is not None:
        return checkpoint.phase, checkpoint.graph, checkpoint.replay
    touched = _graphs(context, where, culprits)
    coming = checkpoint.graph
    if coming is not None and coming in touched:
        return Phase.PREPARE, coming, coming.replays
    if touched and checkpoint.at != "capture_begin":
        reader = touched[0]
        # The coming graph's replay is counted already, another's is not.
        return Phase.PREPARE, reader, reader.replays + 1
    replayed = any(graph.replays for graph in context.graphs.values())
    return (Phase.EAGER if replayed else Phase.SETUP), None, None


def _graphs(context: Context, where: ByteRange, culprits: tuple[Write, ...]) -> list[Graph]:
    touched = context.graphs_on(where)
    for write in culprits:
        for part in write.ranges:
            touched += [graph for graph in context.graphs_on(part) if graph not in touched]
    return touched
