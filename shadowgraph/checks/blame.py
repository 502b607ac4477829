"""Which phase, graph and replay a piece of evidence belongs to."""

from __future__ import annotations

from dataclasses import replace

from shadowgraph.checks.base import Checkpoint, Context
from shadowgraph.graphs.model import Graph
from shadowgraph.tracking.buffers import Buffer
from shadowgraph.tracking.phases import Phase
from shadowgraph.tracking.ranges import ByteRange
from shadowgraph.tracking.writes import Write, write_of

Blame = tuple[Phase, Graph | None, int | None]


def suspects(
    context: Context, checkpoint: Checkpoint, buffer: Buffer, parts: tuple[ByteRange, ...]
) -> tuple[Write, ...]:
    """Launches that hit the damaged parts, the likeliest last.

    On the host that is known. On a device stores are not seen: there, whoever was given a pointer into the buffer and
    may write through it could have done it, and is named as a candidate.
    """
    if not context.engine.asynchronous:
        return tuple(checkpoint.writes.culprits(*parts))
    near = [write for write in checkpoint.writes if write.ranges.overlaps(buffer.range)]
    if checkpoint.phase is Phase.REPLAY and checkpoint.graph is not None:
        near = [write_of(node.launch, None, node.index) for node in checkpoint.graph.writers(buffer.range)]
    return tuple(replace(write, opaque=True) for write in near)


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
        return Phase.PREPARE, coming, checkpoint.replay
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
