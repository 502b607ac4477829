"""SG111: pinned memory was rewritten before an asynchronous copy from it had run.

Right behind each such copy its target is read, on the same stream, and compared later with the source as it was when
the copy was queued: if other bytes arrived, and the source was rewritten since, that was too early, whatever rewrote
it. The same is done for copy nodes of an observed replay, whose targets are read behind the replay. Nothing waits, and
replays that pass are not looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

from shadowgraph.checks.base import Check, Checkpoint, Context, Detection, first_reader
from shadowgraph.checks.host_write import CODE
from shadowgraph.checks.host_write.comparing import Damage, Format, damage_of
from shadowgraph.checks.host_write.details import InFlight
from shadowgraph.checks.host_write.pending import Pending, Piece, SeenWrite
from shadowgraph.checks.host_write.targets import Readers, only_written_by
from shadowgraph.engines.base import RANGES
from shadowgraph.model.buffers import Buffer
from shadowgraph.model.graphs import Graph
from shadowgraph.model.host_copies import HostCopy, HostKind, HostWrite, QueuedCopy, bytes_at, pieces_of
from shadowgraph.model.phases import Phase
from shadowgraph.model.ranges import ByteRange, RangeSet
from shadowgraph.tracking import pending_sources
from shadowgraph.tracking.foreign import hold
from shadowgraph.tracking.host_memory import device_writes, memory_of, unowned
from shadowgraph.tracking.writes import Write

MOST = 64  # copies that are waited for; others are not looked at meanwhile
_NODES = 8  # copy nodes of a graph that are looked at
_BYTES = Format("uint8", "uint8", 1)


class HostWrites(Check):
    """Compares what arrives with what was to be copied."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._pending: list[Pending] = []  # the oldest first
        self._begun: list[Pending] = []  # of the replay that has begun
        self._unnamed: dict[tuple[int, int], Buffer] = {}  # memory of other libraries, by graph and node
        self._readers = Readers(context)
        pending_sources.publish(())

    # -- copies ------------------------------------------------------------------------------------------------

    def copy_queued(self, copy: QueuedCopy, checkpoint: Checkpoint) -> None:
        source, target = copy.source, copy.target
        graph, replay = checkpoint.graph, checkpoint.replay
        readers = self._readers.of(target.hull) if graph is None else ()
        if readers:  # until one of them replays, the one used most
            graph = max(readers, key=lambda each: each.replays)
            replay = graph.replays + 1
        self._wait_for(
            Pending(
                copy,
                checkpoint,
                graph,
                replay,
                source.hull,
                target.hull,
                copy.pieces,
                copy.before,
                Format(source.dtype, target.dtype, source.itemsize),
                partial(_in_place, copy),
                readers,
            )
        )

    def replay_begins(self, checkpoint: Checkpoint) -> None:
        graph, self._begun = checkpoint.graph, []
        if graph is None:
            return
        for pending in self._pending:
            pending.replay_begins(graph, checkpoint.replay)
        if not graph.host_copies:
            return
        for copy in graph.host_copies[:_NODES]:
            if copy.flat and not copy.to_host and copy.host.nbytes:
                self._copy_begins(copy, graph, checkpoint)

    def _copy_begins(self, copy: HostCopy, graph: Graph, checkpoint: Checkpoint) -> None:
        """A node is about to copy: keep its source as it is now."""
        holder, pieces = self._holder(copy), pieces_of(copy.host.nbytes)
        if holder() is not None:
            before = bytes_at(copy.host.start, pieces)
            self._begun.append(
                Pending(
                    copy, checkpoint, graph, checkpoint.replay, copy.host, copy.device, pieces, before, _BYTES, holder
                )
            )

    def _holder(self, copy: HostCopy) -> Callable[[], object | None]:
        """A function that returns a reference which keeps the source of a node in place; None once it may be gone."""
        known = self.context.ledger.host.owner(copy.host.start, copy.host.stop)
        if known is not None and known.range.covers(copy.host):
            return lambda: hold(known)
        block, engine = copy.block, self.context.engine
        if block is None or block.kind is HostKind.PAGEABLE:
            return lambda: None
        return lambda: block if engine.host_block(copy.host.start) == block else None

    def replay_ends(self, checkpoint: Checkpoint) -> None:
        begun, self._begun = self._begun, []
        for pending in begun:
            if pending.graph is checkpoint.graph and pending.replay == checkpoint.replay:
                pending.checkpoint = checkpoint
                self._wait_for(pending)

    def _wait_for(self, pending: Pending) -> None:
        """Read the target behind the copy, which was queued last."""
        if len(self._pending) >= MOST:
            return
        with suppress(LookupError):  # the target is not mapped any more
            pending.queued = self.context.engine.fetch(pending.checkpoint, pending.parts())
        if pending.queued is not None:
            self._pending.append(pending)
            self._publish()

    def _publish(self) -> None:
        pending_sources.publish({(each.source.start, each.source.stop) for each in self._pending})

    # -- writes of the source ----------------------------------------------------------------------------------

    def host_write_begins(self, write: HostWrite) -> None:
        for pending in self._pending:
            if pending.hit_by(write.ranges):
                pending.write_begins(write)

    def host_write_ran(self, write: HostWrite) -> None:
        for pending in self._pending:
            pending.write_ran(write)

    # -- what arrived ------------------------------------------------------------------------------------------

    def owns(self, key: object) -> bool:
        return isinstance(key, Piece)

    def fetched(self, key: object, data: bytes, checkpoint: Checkpoint) -> None:
        assert isinstance(key, Piece)
        pending = key.pending
        pending.arrived[key.place] = data
        if len(pending.arrived) == len(pending.pieces) and pending in self._pending:
            self._pending.remove(pending)
            self._publish()
            self._judge(pending)

    def _judge(self, pending: Pending) -> None:
        arrived = [data for _, data in sorted(pending.arrived.items())]
        if not pending.form.converts and tuple(arrived) == pending.before:
            return
        writes = [seen.after for seen in pending.writes]
        damage = damage_of(pending.pieces, pending.before, arrived, pending.now(), writes, pending.form)
        if damage is None:
            return
        seen = writers_of(damage, pending)
        if not seen and self._device_writes(pending.source):
            return  # a copy from the device may have been queued before this one: then all is in order
        if isinstance(pending.of, HostCopy):
            assert pending.graph is not None
            # Else a kernel that was given the target may have written what looks like the source's next values.
            certain = bool(seen) and seen[-1].in_flight
            if not certain and not only_written_by(pending.of, pending.graph, self.context):
                return
        self._report(pending, damage, seen)

    def _device_writes(self, source: ByteRange) -> bool:
        """Whether host code or a graph copies from the device to this memory."""
        copies = (copy for graph in self.context.graphs.values() for copy in graph.host_copies)
        return device_writes(source) or any(copy.to_host and copy.host.overlaps(source) for copy in copies)

    def _report(self, pending: Pending, damage: Damage, seen: Sequence[SeenWrite]) -> None:
        buffer = self._source_of(pending)
        if buffer is None:
            return
        self.context.names.expire()  # the memory may have been entered a moment ago
        start, view = pending.source.start, pending.of.source if isinstance(pending.of, QueuedCopy) else None
        if view is not None and (view.start, view.nbytes) == (buffer.start, buffer.nbytes):
            view = None
        coming = None if pending.captured else pending.graph
        suspects = seen or pending.writes
        facts = InFlight(pending.of, pending.target, sum(piece.nbytes for piece in pending.pieces), bool(seen))
        self.context.report(
            Detection(
                code=CODE,
                checkpoint=pending.checkpoint,
                buffer=buffer,
                first=start + damage.ranges[0][0],
                last=start + damage.ranges[-1][1],
                count=damage.count,
                ranges=tuple((start + first, start + last) for first, last in damage.ranges[:RANGES]),
                ranges_total=len(damage.ranges),
                window=start + damage.window,
                expected=damage.expected,
                found=damage.found,
                culprits=tuple(
                    Write(each.write.launch, RangeSet.of(each.write.ranges), hull=not seen) for each in suspects
                ),
                phase=self._phase_of(pending),
                graph=pending.graph,
                replay=pending.replay,
                reader=first_reader(coming, pending.target) if coming is not None else None,
                confidence="high" if seen else "medium",
                view=view,
                key=facts.place,
                facts=facts,
            )
        )

    def _phase_of(self, pending: Pending) -> Phase | None:
        if pending.captured:
            return Phase.REPLAY
        if pending.graph is not None:
            return Phase.PREPARE
        replayed = any(graph.replays for graph in self.context.graphs.values())
        return pending.checkpoint.phase if replayed or pending.checkpoint.phase is not None else Phase.SETUP

    def _source_of(self, pending: Pending) -> Buffer | None:
        """The buffer of the source; None where it is gone."""
        ledger, of = self.context.ledger, pending.of
        if isinstance(of, QueuedCopy):
            storage = of.storage()
            return memory_of(ledger, storage, of.source) if storage is not None else None
        assert pending.graph is not None
        known = ledger.host.owner(pending.source.start, pending.source.stop)
        if known is not None and known.range.covers(pending.source):
            return known
        place = pending.graph.serial, of.node
        if place not in self._unnamed:
            self._unnamed[place] = unowned(ledger, pending.source)
        return self._unnamed[place]


def _in_place(copy: QueuedCopy) -> object | None:
    """The storage of a queued copy's source, if it lives and its bytes are where they were."""
    storage = copy.storage()
    if storage is None:
        return None
    start = storage.data_ptr()
    where = ByteRange(start, start + storage.nbytes())
    return storage if where.covers(copy.source.hull) else None


def writers_of(damage: Damage, pending: Pending) -> list[SeenWrite]:
    """The operators that wrote the bytes that arrived, the last one behind which the source had them all at the end;
    none where other code must have written some."""
    if damage.writer is None:
        return []
    start, wrote = pending.source.start, RangeSet()
    wrong = [ByteRange(start + first, start + last + 1) for first, last in damage.ranges]
    found = []
    for seen in pending.writes[: damage.writer + 1]:
        if any(part.overlaps(where) for part in seen.write.ranges for where in wrong):
            found.append(seen)
            for part in seen.write.ranges:
                wrote.add(part)
    return [] if RangeSet.of(wrong) - wrote else found
