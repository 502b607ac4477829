"""Builds a finding from a check's `Detection`: names, neighbours, readers, and the culprit's source line.

Called by `FindingPipeline`, in the thread of the event that led to the detection.
"""

from __future__ import annotations

import os
import time

from msgspec.structs import replace

from shadowgraph.checks.base import Context, Detection, first_reader
from shadowgraph.checks.kinds import kind_of
from shadowgraph.model.buffers import Buffer
from shadowgraph.model.findings import (
    Alias,
    BufferFacts,
    ByteFacts,
    Culprit,
    Finding,
    Neighbour,
    Reader,
    Status,
    StorePlace,
    Window,
)
from shadowgraph.model.graphs import Graph
from shadowgraph.model.guards import Side
from shadowgraph.model.phases import Phase
from shadowgraph.model.ranges import ByteRange
from shadowgraph.model.stacks import cell_label
from shadowgraph.tracking.writes import Write

_CANDIDATES = 8


def build_finding(draft: Detection, context: Context) -> Finding:
    """A finding without id, batch and fingerprint."""
    buffer = draft.buffer
    observed = list(draft.located) or [_seen(write, draft) for write in reversed(draft.culprits)]
    culprits = [*draft.unnoted, *observed, *draft.logged]
    within = draft.checkpoint.within if draft.graph is draft.checkpoint.graph else None
    return Finding(
        code=draft.code,
        severity=draft.severity,
        phase=draft.phase or Phase.EAGER,
        graph=draft.graph.name if draft.graph else None,
        replay=draft.replay,
        step=within,
        detected_at=draft.checkpoint.at,
        buffer=_buffer(draft, context),
        bytes=_bytes(draft),
        culprit=culprits[0] if culprits else _unseen(draft),
        candidates=tuple(culprits[1 : 1 + _CANDIDATES]),
        aliases=tuple(
            Alias(r.owner.path, r.expression, r.covers) for r in context.names.relations(buffer, _part(draft))
        ),
        neighbour=_neighbour(draft, context),
        reader=draft.reader or _reader(draft.graph, buffer, draft.phase),
        window=_window(draft),
        confidence=draft.confidence,
        time=time.time(),
        pid=os.getpid(),
        device=buffer.device,
        detail=kind_of(draft.code).describe(draft, context),
    )


def culprit_of(write: Write) -> Culprit:
    """A write's launch as a culprit: confirmed when its own stores or arguments hit the bytes."""
    launch = write.launch
    frame = launch.stack[0] if launch.stack else None
    return Culprit(
        status=Status.CANDIDATE if write.opaque or write.hull else Status.CONFIRMED,
        kind=str(launch.kind),
        name=launch.name,
        node=write.node,
        file=frame.file if frame else None,
        line=frame.line if frame else None,
        stack=launch.stack,
        source=launch.source,
        grid=launch.grid,
        learnt_from=launch.learnt_from or None,
    )


def _seen(write: Write, draft: Detection) -> Culprit:
    """A write's launch as a culprit, with the first of its stores that hit the bytes. In a row of a table the stores
    that belong there hit them too, so that only a line that all have in common is told."""
    culprit = culprit_of(write)
    if write.stores is None or culprit.status is not Status.CONFIRMED:
        return culprit
    found = (store for first, last in draft.ranges for store in write.stores.within(ByteRange(first, last + 1)))
    if draft.side is Side.ROW:
        lines = {store.line for store in found}
        program, line = None, next(iter(lines)) if len(lines) == 1 else None
    else:
        store = next(found, None)
        program, line = (store.program, store.line) if store is not None else (None, None)
    if line is None:
        return culprit
    line = replace(line, file=cell_label(line.file) or line.file)
    return replace(culprit, stored_by=StorePlace(program, line))


def _unseen(draft: Detection) -> Culprit:
    """A writer that no check saw: it ran between two boundaries, unless a replay did it."""
    host = draft.phase is not Phase.REPLAY and kind_of(draft.code).writer_may_come_late
    return Culprit(Status.UNKNOWN, bounds=draft.checkpoint.bounds if host else ())


def _part(draft: Detection) -> ByteRange | None:
    return draft.view.hull if draft.view is not None else None


def _buffer(draft: Detection, context: Context) -> BufferFacts:
    buffer, view = draft.buffer, draft.view
    name, names = context.names.name_of(buffer, _part(draft))
    return BufferFacts(
        name=name,
        names=names,
        shape=view.shape if view else buffer.shape,
        dtype=view.dtype if view else buffer.dtype,
        nbytes=view.nbytes if view else buffer.nbytes,
        address=view.start if view else buffer.start,
        serial=buffer.serial,
        role=str(buffer.role),
        allocated=buffer.stack,
        view=context.names.view_of(buffer, view) if view is not None else "",
    )


def _bytes(draft: Detection) -> ByteFacts | None:
    if not draft.count:  # about a launch argument, not about changed bytes
        return None
    start = draft.view.start if draft.view else draft.buffer.start
    distance = 0
    if draft.side is Side.AFTER:
        distance = draft.first - draft.buffer.stop
    elif draft.side is Side.BEFORE:
        distance = start - 1 - draft.last
    return ByteFacts(
        first=draft.first - start,
        last=draft.last - start,
        count=draft.count,
        ranges=tuple((first - start, last - start) for first, last in draft.ranges),
        ranges_total=draft.ranges_total,
        side=draft.side,
        distance=distance,
        truncated=draft.truncated,
    )


def _neighbour(draft: Detection, context: Context) -> Neighbour | None:
    if draft.side not in (Side.BEFORE, Side.AFTER):
        return None
    previous, following = context.ledger.neighbours(draft.buffer)
    found = previous if draft.side is Side.BEFORE else following
    if found is None:
        return None
    gap = draft.buffer.start - found.stop if draft.side is Side.BEFORE else found.start - draft.buffer.stop
    name, _ = context.names.name_of(found)
    return Neighbour(name, draft.side, gap, found.nbytes, found.dtype, found.shape)


def _reader(graph: Graph | None, buffer: Buffer, phase: Phase | None) -> Reader | None:
    """The first node of the coming replay that reads the buffer; only for damage done before that replay."""
    if graph is None or phase not in (Phase.PREPARE, Phase.BETWEEN):
        return None
    return first_reader(graph, buffer.range)


def _window(draft: Detection) -> Window | None:
    if draft.window is None:
        return None
    start = draft.view.start if draft.view else draft.buffer.start
    return Window(draft.window - start, draft.expected.hex(), draft.found.hex())
