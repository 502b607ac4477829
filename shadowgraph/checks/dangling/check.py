"""SG104: a graph points into a buffer that was freed, or moved, since it was captured.

Memory that the graph allocated itself may be freed. Memory from before the capture must stay for as long as the graph
is replayed: where the graph reads the bytes before it writes them (*live-in*), and where it only writes them
(*external-out*). The ledger's order of frees decides. Whether other buffers occupy the bytes by now, and which, is
reported beside it.

What a Triton kernel does with a pointer is not known from its arguments. On the host the loads and stores of the replay
that is reported are noted, and the finding is told again with what the kernel did; on a device it stays a candidate.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import msgspec

from shadowgraph.checks.base import Check, Checkpoint, Context, Detection
from shadowgraph.checks.dangling import CODE
from shadowgraph.checks.dangling.details import Ended
from shadowgraph.checks.dangling.liveness import Use, captured_bytes, uses_of
from shadowgraph.graphs.triton import host as triton_host
from shadowgraph.model.buffers import Buffer, Role
from shadowgraph.model.findings import Severity
from shadowgraph.model.graphs import Access, Graph
from shadowgraph.model.phases import Phase
from shadowgraph.model.ranges import ByteRange, RangeSet
from shadowgraph.tracking.foreign import is_borrowed, whereabouts
from shadowgraph.tracking.writes import Write, write_of

_LOOKS = 64  # most looks for a new owner of the bytes after the report


@dataclass(slots=True)
class _Held:
    """The buffers that one graph needs and does not own.

    Attributes
    ----------
    uses
        Uses of buffers that were alive at the last look.
    borrowed
        Serials of the buffers whose memory belongs to another library.
    ended
        Uses of buffers that were freed and whose memory is nevertheless unchanged so far.
    vacant
        Dangling uses that were reported while no buffer occupied the bytes.
    frees, version
        The ledger's counters at the last look.
    """

    uses: list[Use]
    borrowed: frozenset[int]
    ended: list[Use] = field(default_factory=list)
    vacant: list[Use] = field(default_factory=list)
    frees: int = -1
    version: int = -1
    looks: int = 0

    def end_freed(self) -> None:
        """Move the uses of buffers that were freed since to `ended`."""
        self.ended += [use for use in self.uses if use.buffer.freed_at is not None]
        self.uses = [use for use in self.uses if use.buffer.freed_at is None]


class Dangling(Check):
    """At each replay, compares the buffers that the graph was captured with to those freed since; costs nothing without
    frees."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._held: dict[int, _Held] = {}  # by the graph's serial
        self._makers: set[int] = set()  # serials of graphs that were captured while the monitor watched
        self._unseen: list[tuple[Graph, Use, ByteRange, bool]] = []  # reported uses by kernels; borrowed or not

    def captured(self, graph: Graph) -> None:
        self._held = {serial: held for serial, held in self._held.items() if serial in self.context.graphs}
        self._makers.add(graph.serial)
        uses = uses_of(graph)
        borrowed = (use.buffer.serial for use in uses if use.buffer.role is Role.FOREIGN and is_borrowed(use.buffer))
        if uses:
            self._held[graph.serial] = _Held(uses, frozenset(borrowed))

    def replay_begins(self, checkpoint: Checkpoint) -> None:
        self._look_away()
        held = self._held.get(checkpoint.graph.serial) if checkpoint.graph is not None else None
        if held is None:
            return
        ledger = self.context.ledger
        if held.frees != ledger.frees:
            held.frees = ledger.frees
            held.end_freed()
        for use in tuple(held.ended):
            self._judge(use, held, checkpoint)
        if held.vacant and held.version != ledger.version and held.looks < _LOOKS:
            held.version, held.looks = ledger.version, held.looks + 1
            for use in tuple(held.vacant):
                self._look_again(use, held, checkpoint)

    def _judge(self, use: Use, held: _Held, checkpoint: Checkpoint) -> None:
        assert checkpoint.graph is not None
        if self._is_as_it_was(use.buffer, checkpoint.graph):
            return
        held.ended.remove(use)
        if use.buffer.role is Role.FOREIGN and self.context.allocator.in_private_pool(use.buffer.range):
            return  # allocated unseen in a capture, or by another graph
        span = captured_bytes(checkpoint.graph, use.buffer)
        told = self._draft(use, span, use.buffer.serial in held.borrowed, checkpoint)
        if isinstance(told.facts, Ended) and not told.facts.victims:
            held.vacant.append(use)
            held.version = self.context.ledger.version
        self.context.report(told)
        if use.pointer.access is Access.UNKNOWN and checkpoint.at == "replay_begin":
            self._watch(checkpoint.graph, use, span, use.buffer.serial in held.borrowed)

    def _watch(self, graph: Graph, use: Use, span: ByteRange, borrowed: bool) -> None:
        """Note the loads of the replay that begins, where loads are seen."""
        if self.context.engine.asynchronous:
            return
        if not self._unseen:
            triton_host.note_loads(True)
        self._unseen.append((graph, use, span, borrowed))

    def _look_away(self) -> list[tuple[Graph, Use, ByteRange, bool]]:
        """Note no loads any more; returns the uses that they were noted for."""
        uses, self._unseen = self._unseen, []
        if uses:
            triton_host.note_loads(False)
        return uses

    def checkpoint_ends(self, checkpoint: Checkpoint) -> None:
        """The loads and stores of a replay are known: what it did to the buffers that were reported before it."""
        if not self._unseen or checkpoint.at not in ("replay_end", "replay_failed"):
            return
        for graph, use, span, borrowed in self._look_away():
            if graph is checkpoint.graph and checkpoint.at == "replay_end":
                self._tell_access(use, span, borrowed, checkpoint)

    def _tell_access(self, use: Use, span: ByteRange, borrowed: bool, checkpoint: Checkpoint) -> None:
        """Report once more, with the first kernel that loaded or stored these bytes, if any did."""
        assert checkpoint.graph is not None
        kernels = [write for write in checkpoint.writes.stored() if write.node is not None]
        loads = [write for write in kernels if _loaded(write).overlaps(span)]
        stores = [write for write in kernels if write.ranges.overlaps(span)]
        if not loads and not stores:
            return
        first = min((*loads, *stores), key=lambda write: write.node or 0)
        pointers = (pointer for _, pointer in checkpoint.graph.pointing_into(use.buffer.range))
        known = any(pointer.may_write for pointer in pointers if pointer.access is not Access.UNKNOWN)
        told = self._draft(use, span, borrowed, checkpoint)
        assert isinstance(told.facts, Ended)
        facts = replace(told.facts, live_in=first in loads, written=bool(stores) or known, known=True)
        write = msgspec.structs.replace(first, opaque=False, hull=False)
        confidence = "medium" if borrowed else "high"
        self.context.report(replace(told, culprits=(write,), confidence=confidence, facts=facts))

    def _look_again(self, use: Use, held: _Held, checkpoint: Checkpoint) -> None:
        """Report the finding once more, with the buffers that occupy the bytes, if there are any by now."""
        assert checkpoint.graph is not None
        span = captured_bytes(checkpoint.graph, use.buffer)
        if self._victims(use.buffer, span):
            held.vacant.remove(use)
            self.context.report(self._draft(use, span, use.buffer.serial in held.borrowed, checkpoint))

    def _is_as_it_was(self, buffer: Buffer, graph: Graph) -> bool:
        """Whether the memory of a freed buffer is unchanged since the capture."""
        if buffer.role is Role.FOREIGN:  # a storage that has another size may be where it was
            now = whereabouts(buffer)
            return now is not None and now.start == buffer.start and now.stop >= captured_bytes(graph, buffer).stop
        if buffer.role is not Role.POOL:
            return False
        if buffer.graph not in self._makers or buffer.graph in self.context.graphs:
            return True  # the graph that allocated it writes it at each replay, and its pool holds the memory
        # On a device an entry stands for a block of a pool; the entry of a later capture replaces it.
        return buffer.pool is None and any(
            other.role is Role.POOL and other.start == buffer.start
            for other in self.context.ledger.overlapping(buffer.start, buffer.stop)
        )

    def _victims(self, buffer: Buffer, span: ByteRange) -> tuple[Buffer, ...]:
        """Live buffers that occupy the bytes now and were allocated after the free."""
        since = buffer.freed_at or 0
        return tuple(b for b in self.context.ledger.overlapping(span.start, span.stop) if b.serial > since)

    def _draft(self, use: Use, span: ByteRange, borrowed: bool, checkpoint: Checkpoint) -> Detection:
        graph, buffer = checkpoint.graph, use.buffer
        assert graph is not None
        unknown = use.pointer.access is Access.UNKNOWN
        write = msgspec.structs.replace(write_of(use.node.launch, None, use.node.index), opaque=unknown, hull=False)
        refused = checkpoint.at == "replay_refused"  # for this very reason: then it is an error, not a note
        return Detection(
            code=CODE,
            checkpoint=checkpoint,
            buffer=buffer,
            first=span.start,
            last=span.stop - 1,
            count=0,
            ranges=(),
            culprits=(write,),
            phase=Phase.REPLAY,
            graph=graph,
            replay=checkpoint.replay,
            severity=Severity.NOTE if borrowed and not refused else Severity.ERROR,
            confidence="medium" if unknown or borrowed else "high",
            key=str(graph.serial),
            facts=Ended(
                live_in=use.live_in,
                written=any(pointer.may_write for _, pointer in graph.pointing_into(buffer.range)),
                moved=buffer.resized or (buffer.role is Role.FOREIGN and whereabouts(buffer) is not None),
                known=not unknown,
                victims=self._victims(buffer, span),
            ),
        )


def _loaded(write: Write) -> RangeSet:
    """The bytes that a kernel was seen to load."""
    return write.stores.loads.ranges if write.stores is not None and write.stores.loads is not None else RangeSet()
