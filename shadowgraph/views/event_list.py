"""Timeline of a buffer from a dump: its allocation, captures, launches, replays, findings and free as events."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from shadowgraph.checks.kinds import kind_of
from shadowgraph.dumps.reader import Dump
from shadowgraph.dumps.schema import GraphRecord
from shadowgraph.model.buffers import Buffer
from shadowgraph.model.device_nodes import DeviceNode
from shadowgraph.model.findings import Culprit, Finding
from shadowgraph.model.journal import Ran
from shadowgraph.model.launches import Access, Pointer
from shadowgraph.model.ranges import ByteRange
from shadowgraph.model.views import TensorView
from shadowgraph.views.buffer_head import head_of
from shadowgraph.views.events import Event, Timeline, What

_NO_BYTES = "aten.set_."  # rebinds a tensor to other memory without changing any byte
_NODES = 4  # nodes that a capture event names


def timeline(dump: Dump, buffer: Buffer, name: str, last: int | None) -> Timeline:
    """The events of a buffer: all without a time, and the `last` ones with a time."""
    timed = sorted(_timed(dump, buffer), key=lambda event: event.time or 0.0)
    kept = timed if last is None else timed[max(0, len(timed) - last) :]
    manifest = dump.manifest
    return Timeline(
        **head_of(dump, buffer, name),
        events=(*_begin(dump, buffer), *_with_end(kept, buffer)),
        earlier=len(timed) - len(kept),
        since=min(
            (*(row.time for row in manifest.launches[:1]), *(r.time for r in manifest.replays[:1])), default=None
        ),
    )


def _begin(dump: Dump, buffer: Buffer) -> Iterator[Event]:
    """The allocation and the captures that use the buffer, for which a dump has no time."""
    made_in = next((row.name for row in dump.manifest.graphs if row.serial == buffer.graph), None)
    during = f"while {made_in} was captured" if made_in is not None else ""
    yield Event(What.ALLOCATED, during, graph=made_in, stack=buffer.stack)
    for graph in dump.manifest.graphs:
        mine = [(n, p) for n, launch in enumerate(graph.nodes) for p in launch.pointers if _holds(dump, buffer, p.view)]
        device = list(_device_nodes(dump, graph.device or (), buffer))
        if mine or device:
            yield _captured(graph, mine, device)


def _holds(dump: Dump, buffer: Buffer, where: TensorView | ByteRange) -> bool:
    held = dump.names.holder(where)
    return held is not None and held.serial == buffer.serial


def _captured(graph: GraphRecord, mine: Sequence[tuple[int, Pointer]], device: Sequence[str]) -> Event:
    """The event of a graph with these pointers into the buffer, each with the number of its node."""
    nodes = list(dict.fromkeys(node for node, _ in mine))
    if nodes:
        names = [f"node {node} {graph.nodes[node].name}" for node in nodes]
        stack = graph.nodes[nodes[0]].stack
    else:
        names, stack = list(device), ()
    more = f" and {len(names) - _NODES:,} more" if len(names) > _NODES else ""
    accesses = {pointer.access for _, pointer in mine}
    return Event(
        What.CAPTURED,
        f"given to {', '.join(names[:_NODES])}{more}",
        graph=graph.name,
        node=nodes[0] if nodes else None,
        access=_joined(accesses),
        stack=stack,
    )


def _joined(accesses: Iterable[Access]) -> str:
    """The union of several accesses."""
    known = set(accesses)
    if not known or Access.UNKNOWN in known:
        return str(Access.UNKNOWN)
    return str(known.pop()) if len(known) == 1 else str(Access.READ_WRITE)


def _device_nodes(dump: Dump, nodes: Sequence[DeviceNode], buffer: Buffer, outer: str = "") -> Iterator[str]:
    """Numbers of the device nodes that point into a buffer, or copy from or to it."""
    for node in nodes:
        place = f"{outer}{node.index}"
        pointed = (ByteRange(word.address, word.address) for word in node.words)
        if any(_holds(dump, buffer, where) for where in (*pointed, *node.reads, *node.writes)):
            yield f"device node {place}"
        yield from _device_nodes(dump, node.inner, buffer, f"{place}.")


def _timed(dump: Dump, buffer: Buffer) -> Iterator[Event]:
    yield from _launched(dump, buffer)
    yield from _replayed(dump, buffer)
    yield from _found(dump, buffer)
    yield from _watched(dump, buffer)


def _launched(dump: Dump, buffer: Buffer) -> Iterator[Event]:
    names = {graph.serial: graph.name for graph in dump.manifest.graphs}
    for ran in dump.manifest.launches:
        mine = [pointer for pointer in ran.launch.pointers if _holds(dump, buffer, pointer.view)]
        if mine and not ran.launch.name.startswith(_NO_BYTES):
            yield _launch(ran, mine, buffer, names)


def _launch(ran: Ran, mine: Sequence[Pointer], buffer: Buffer, names: dict[int, str]) -> Event:
    first, last = mine[0].view.start - buffer.start, mine[0].view.stop - 1 - buffer.start
    return Event(
        What.LAUNCHED,
        ran.launch.name,
        time=ran.time,
        phase=ran.phase,
        graph=None if ran.graph is None else names.get(ran.graph, f"graph#{ran.graph}"),
        node=ran.node,
        access=_joined(pointer.access for pointer in mine),
        argument=", ".join(pointer.argument for pointer in mine),
        first=first if first <= last else None,
        last=last if first <= last else None,
        stack=ran.launch.stack,
    )


def _replayed(dump: Dump, buffer: Buffer) -> Iterator[Event]:
    touching = {
        graph.serial: graph.name
        for graph in dump.manifest.graphs
        if any(_holds(dump, buffer, p.view) for launch in graph.nodes for p in launch.pointers)
        or any(True for _ in _device_nodes(dump, graph.device or (), buffer))
    }
    for row in dump.manifest.replays:
        if row.graph in touching:
            name = touching[row.graph]
            yield Event(What.REPLAYED, f"replay {row.replay} of {name} began", row.time, graph=name, replay=row.replay)


def _found(dump: Dump, buffer: Buffer) -> Iterator[Event]:
    """Findings on the buffer or with it as a victim, and the localization that gave a finding a later revision."""
    facts = dump.manifest.facts
    began = _began(dump)
    for finding in (*facts.findings, *facts.notes):
        victims = kind_of(finding.code).victims(finding)
        own = finding.buffer.serial == buffer.serial
        if not own and all(victim.serial != buffer.serial for victim in victims):
            continue
        about = "" if own else f"has bytes of {finding.buffer.name}: "
        yield finding_event(finding, about, own)
        if own and finding.revision > 1:
            looked = began.get((finding.graph, finding.culprit.seen_in), finding.time)
            yield revision_event(finding, finding.culprit, max(looked, finding.time))


def finding_event(finding: Finding, about: str, own: bool) -> Event:
    """The event of a finding; `own` is True when the finding is on the buffer itself."""
    times = f", seen {finding.occurrences:,} times" if finding.occurrences > 1 else ""
    return Event(
        What.FOUND,
        f"{about}{finding.message} (#{finding.id}{times})",
        time=finding.time,
        phase=finding.phase,
        graph=finding.graph,
        replay=finding.replay,
        node=finding.culprit.node,
        first=finding.bytes.first if finding.bytes is not None and own else None,
        last=finding.bytes.last if finding.bytes is not None and own else None,
        finding=finding.id,
        code=finding.code,
        stack=finding.culprit.stack,
    )


def revision_event(finding: Finding, culprit: Culprit, time: float) -> Event:
    """The event of the localization that gave a finding a later revision."""
    named = f" {culprit.name} (node {culprit.node})" if culprit.name is not None else ""
    return Event(
        What.REVISED,
        f"#{finding.id}, revision {finding.revision}: {str(culprit.status).replace('_', ' ')}{named}",
        time=time,
        graph=finding.graph,
        replay=culprit.seen_in,
        node=culprit.node,
        finding=finding.id,
        code=finding.code,
        stack=culprit.stack,
    )


def _watched(dump: Dump, buffer: Buffer) -> Iterator[Event]:
    """Changes of a watched tensor without a known launch, at the replay in which they were seen."""
    names = {owner.path for owner in dump.names.owners(buffer)}
    began = _began(dump)
    for name, changes, _ in dump.manifest.facts.watches:
        for change in changes if name in names else ():
            time = began.get((change.graph, change.replay))
            if change.writer is None and time is not None:
                text = f"watched {name}: an unseen writer changed bytes {change.first:,} to {change.last:,} of it"
                yield Event(What.CHANGED, text, time, change.phase, change.graph, change.replay)


def _began(dump: Dump) -> dict[tuple[str | None, int | None], float]:
    """Start times of replays, by graph name and replay number."""
    names = {graph.serial: graph.name for graph in dump.manifest.graphs}
    return {(names.get(row.graph), row.replay): row.time for row in dump.manifest.replays}


def _with_end(events: Sequence[Event], buffer: Buffer) -> Iterator[Event]:
    """The events with the free inserted at its latest possible place: before the first finding on a freed buffer."""
    if buffer.alive:
        yield from events
        return
    told = (place for place, event in enumerate(events) if event.code and kind_of(event.code).buffer_is_gone)
    gone = next(told, len(events))
    yield from events[:gone]
    yield Event(What.FREED, f"after allocation {(buffer.freed_at or 1) - 1}; the dump has no time of it")
    yield from events[gone:]
