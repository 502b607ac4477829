"""Attribution of evidence: the phase, graph and replay that it belongs to, and the launches that may have caused it.

Called by the checks when they report. Mostly under the debugger's lock; `Invariants` and `Indices` also call it without
the lock. Takes no lock itself.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from shadowgraph.checks.base import Checkpoint, Context
from shadowgraph.model.buffers import Buffer
from shadowgraph.model.graphs import Graph
from shadowgraph.model.phases import Phase
from shadowgraph.model.ranges import ByteRange
from shadowgraph.tracking.writes import Write, write_of

Blame = tuple[Phase, Graph | None, int | None]


def suspects(
    context: Context, checkpoint: Checkpoint, buffer: Buffer, parts: tuple[ByteRange, ...]
) -> tuple[Write, ...]:
    """Launches that may have written the damaged parts, the likeliest last.

    On the host the culprit is known. On a device stores are not seen: there, each launch that was given a pointer into
    the buffer and may write through it is named as a candidate. A launch that ran alone between two checks is the
    culprit.
    """
    if checkpoint.phase is Phase.STEP or (not checkpoint.observed and checkpoint.phase is Phase.REPLAY):
        return tuple(msgspec.structs.replace(write, opaque=True) for write in _candidates(checkpoint, buffer.range))
    if not context.engine.asynchronous:
        return tuple(checkpoint.writes.culprits(*parts))
    step = checkpoint.step
    if step is not None and step.ran and step.sure:
        return tuple(msgspec.structs.replace(write, opaque=False, hull=False) for write in checkpoint.writes)
    return tuple(msgspec.structs.replace(write, opaque=True) for write in _candidates(checkpoint, buffer.range))


def _candidates(checkpoint: Checkpoint, where: ByteRange) -> list[Write]:
    """Writes of launches that were given a pointer into a range, as far as is known without their stores."""
    if checkpoint.phase is Phase.REPLAY and checkpoint.graph is not None:
        return [write_of(node.launch, None, node.index) for node in checkpoint.graph.writers(where)]
    nodes = [node for piece, _ in checkpoint.pieces[1:] for node in piece.writers(where)]
    launched = [write for write in checkpoint.writes if write.ranges.overlaps(where)]
    return [*(write_of(node.launch, None) for node in nodes), *launched]


def draft_phase(context: Context, checkpoint: Checkpoint, where: ByteRange, culprits: tuple[Write, ...]) -> Blame:
    """Phase, graph and replay of damage to `where`, or done by `culprits`, since the checkpoint before.

    The checkpoint's phase decides if it is known, else `eager_phase` does. A launch of another thread that was marked
    as preparing a graph belongs to that graph in either case.
    """
    if checkpoint.phase is not None:
        return _prepared(context, culprits) or (checkpoint.phase, checkpoint.graph, checkpoint.replay)
    coming = checkpoint.graph
    done = dict(checkpoint.step.done) if checkpoint.step is not None else context.replays()
    if coming is not None and checkpoint.replay is not None:
        done[coming.serial] = checkpoint.replay - 1  # the coming replay is counted already
    if checkpoint.at == "capture_begin":
        return _apart(done)
    return eager_phase(context, coming, where, culprits, done)


def eager_phase(
    context: Context,
    coming: Graph | None,
    where: ByteRange,
    culprits: tuple[Write, ...],
    done: Mapping[int, int],
) -> Blame:
    """Phase, graph and replay of an action of unmarked host code.

    The phase is *prepare* if the code touched memory that a captured graph reads, or was marked to prepare the graph
    that was about to replay; the replay is then the coming one of that graph. Else it is *setup* before the first
    replay of any graph, and *eager* after it.

    Parameters
    ----------
    coming
        The graph about to replay when the damage was seen, preferred to others.
    done
        Replays begun, by serial, when the code ran; graphs that are missing were not captured yet.
    """
    touched = [graph for graph in _graphs(context, coming, where, culprits) if graph.serial in done]
    if touched:
        reader = coming if coming is not None and coming in touched else touched[0]
        return Phase.PREPARE, reader, done[reader.serial] + 1
    return _apart(done)


def _apart(done: Mapping[int, int]) -> Blame:
    """Phase of code that touched no memory that a graph reads."""
    return (Phase.EAGER if any(done.values()) else Phase.SETUP), None, None


def _graphs(context: Context, coming: Graph | None, where: ByteRange, culprits: tuple[Write, ...]) -> list[Graph]:
    """Graphs that were given a view of the range, or of bytes that the culprits wrote."""
    touched: list[Graph] = []
    for part in (where, *(part for write in culprits for part in write.ranges)):
        touched += [graph for graph in _graphs_on(context, coming, part) if graph not in touched]
    if coming is not None and coming not in touched and (_marked(coming, culprits) or coming.leads_into(where)):
        touched.append(coming)
    return touched


def _graphs_on(context: Context, coming: Graph | None, part: ByteRange) -> list[Graph]:
    """Graphs that were given a view of a part. The coming graph may have ended before its evidence arrived."""
    found = context.graphs_on(part)
    if coming is not None and coming.serial not in context.graphs and coming.touches(part):
        return [coming, *found]
    return found


def _prepared(context: Context, culprits: tuple[Write, ...]) -> Blame | None:
    """Phase, graph and replay of a launch that is known to have prepared a graph and that ran in no replay."""
    serial = culprits[-1].prepares if culprits and not culprits[-1].opaque else None
    graph = context.graphs.get(serial) if serial is not None else None
    return (Phase.PREPARE, graph, graph.replays + 1) if graph is not None else None


def _marked(coming: Graph, culprits: tuple[Write, ...]) -> bool:
    """Whether the likeliest culprit was marked as preparing this graph; needed where the graph's nodes could not be
    read."""
    return bool(culprits) and culprits[-1].prepares == coming.serial
