"""SG116: a graph reads memory whose contents were dropped while its address stayed.

A memory saver, or an engine's sleep mode, gives the physical memory of a pool back and maps other memory at the same
addresses later. Graphs replay as ever, and read what is there now. An adapter, or the user, tells which bytes lose
their contents. Of these, the bytes that a graph is known to read before it writes them must be written before its next
replay: by any launch, copy or graph. Where the contents before the loss could be read, equal first bytes say that a
writer that was not seen has restored them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from shadowgraph.checks.base import Check, Checkpoint, Context, Detection, bytes_in
from shadowgraph.checks.contents_lost import CODE
from shadowgraph.checks.contents_lost.facts import ContentsLostDetail
from shadowgraph.checks.contents_lost.reads import Read, may_write, sure_reads
from shadowgraph.model.buffers import Buffer
from shadowgraph.model.graphs import Graph
from shadowgraph.model.phases import Phase
from shadowgraph.model.ranges import ByteRange, RangeSet
from shadowgraph.model.stacks import Stack
from shadowgraph.tracking.foreign import still_there
from shadowgraph.tracking.writes import Write, write_of

SAMPLE = 256  # first bytes of a read that are compared
MOST_READS = 1024  # of all graphs, for one loss


@dataclass(frozen=True, slots=True, eq=False)
class Loss:
    """An event that dropped contents.

    Attributes
    ----------
    how
        For example ``torch_memory_saver pause("weights")``.
    """

    how: str
    stack: Stack


@dataclass(frozen=True, slots=True, eq=False)
class Endangered:
    """Bytes that a graph reads and that are about to lose their contents, with the first of them as they are."""

    graph: Graph
    read: Read
    buffer: Buffer
    sample: ByteRange
    before: bytes

    def value_of(self, where: ByteRange) -> bytes:
        """Some of the bytes before the loss."""
        return self.before[where.start - self.sample.start : where.stop - self.sample.start]


@dataclass(slots=True, eq=False)
class _Awaited:
    """A read that must be preceded by a write of its bytes; those in `left` were not written since the loss."""

    endangered: Endangered
    loss: Loss
    left: RangeSet
    whole: bool = True  # nothing of it was written

    def wrote(self, ranges: RangeSet) -> None:
        """Some of the bytes may have been written."""
        rest = self.left - ranges
        if rest != self.left:
            self.left, self.whole = rest, False

    @property
    def reads_lost_bytes(self) -> bool:
        """Whether the node certainly reads bytes that were not written: one that picks some of them by an index does
        where none was."""
        return bool(self.left) and (self.whole or not self.endangered.read.picks)


@dataclass(frozen=True, slots=True, eq=False)
class _Compared:
    """Key of bytes that were requested at the start of a replay."""

    awaited: _Awaited
    where: ByteRange


class ContentsLost(Check):
    """Waits, after each loss, for a write of what graphs read; costs nothing before the first one."""

    needs_every_write = True

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._awaited: list[_Awaited] = []
        self._left = RangeSet()  # what any of them waits for: most writes touch none of it
        self._coming: deque[_Awaited] = deque()  # from any thread, without the debugger's lock
        self._replayed: set[int] = set()  # serials of graphs whose writes were counted since the latest loss

    # -- reports of losses -------------------------------------------------------------------------------------

    def endangered(self, ranges: Iterable[ByteRange], read: bool = True) -> list[Endangered]:
        """What graphs read of bytes that are about to lose their contents. Waits for a device if `read` is set."""
        lost, found = RangeSet.of(ranges), list[tuple[Graph, Read, Buffer, ByteRange]]()
        for graph in list(self.context.graphs.values()):
            for each in sure_reads(graph):
                parts = [part for one in each.bytes_read for part in lost.intersection(one)]
                buffer = self.context.ledger.owner(parts[0].start, parts[0].stop) if parts else None
                if buffer is not None and len(found) < MOST_READS:
                    first = parts[0].start
                    found.append((graph, each, buffer, ByteRange(first, min(parts[0].stop, first + SAMPLE))))
        values: Sequence[bytes | memoryview] = [b""] * len(found)
        if read and found:
            values = self.context.engine.read_many([sample for *_, sample in found])
        return [Endangered(*each, bytes(value)) for each, value in zip(found, values, strict=True)]

    def lost(self, ranges: Iterable[ByteRange], endangered: Iterable[Endangered], loss: Loss) -> None:
        """The contents are gone: what is written from here on counts."""
        gone = RangeSet.of(ranges)
        for each in endangered:
            left = RangeSet.of(part for one in each.read.bytes_read for part in gone.intersection(one))
            self._coming.append(_Awaited(each, loss, left))

    # -- events ------------------------------------------------------------------------------------------------

    @property
    def wants_known_writes(self) -> bool:
        return bool(self._awaited or self._coming)

    def written(self, write: Write, phase: Phase | None, graph: Graph | None) -> None:
        self._take()
        if any(map(self._left.overlaps, write.ranges)):
            self._wrote(write.ranges)

    def _wrote(self, ranges: RangeSet) -> None:
        for each in self._awaited:
            if any(map(each.left.overlaps, ranges)):
                each.wrote(ranges)
        self._await([each for each in self._awaited if each.left])

    def _await(self, awaited: list[_Awaited]) -> None:
        self._awaited = awaited
        self._left = RangeSet.of(part for each in awaited for part in each.left)

    def invalidate_writers(self) -> None:
        """After unseen writes nothing is known to be lost still."""
        self._take()
        self._await([])

    def replay_begins(self, checkpoint: Checkpoint) -> None:
        self._take()
        graph = checkpoint.graph
        if not self._awaited or graph is None:
            return
        live = self.context.graphs
        due = [each for each in self._awaited if each.endangered.graph is graph]
        others = [each for each in self._awaited if each.endangered.graph is not graph]
        if due or any(each.endangered.graph.serial not in live for each in others):
            self._await([each for each in others if each.endangered.graph.serial in live])
        for each in _one_per_buffer(due):
            self._judge(each, checkpoint)
        if self._awaited and graph.serial not in self._replayed:
            self._replayed.add(graph.serial)
            self._wrote(may_write(graph))

    def _take(self) -> None:
        """Enter reports of losses. Bytes of a read that is awaited already are awaited anew, as far as they are lost
        again."""
        if self._coming:
            self._replayed.clear()
            awaited: dict[int, list[_Awaited]] = {}  # by id of the pointer that is read through
            for each in self._awaited:
                awaited.setdefault(id(each.endangered.read.pointer), []).append(each)
            while self._coming:
                new = self._coming.popleft()
                earlier = awaited.setdefault(id(new.endangered.read.pointer), [])
                for each in earlier:
                    new = _lost_again(each, new)
                    each.left -= new.left
                earlier[:] = [*(each for each in earlier if each.left), new]
            self._await([each for reads in awaited.values() for each in reads])

    def _judge(self, awaited: _Awaited, checkpoint: Checkpoint) -> None:
        endangered = awaited.endangered
        if not awaited.reads_lost_bytes or not still_there(endangered.buffer):
            return
        known = awaited.left.intersection(endangered.sample) if endangered.before else []
        if known:
            self.context.engine.fetch(checkpoint, [(_Compared(awaited, known[0]), known[0])])
        else:
            self._report(awaited, None, b"", checkpoint)

    def owns(self, key: object) -> bool:
        return isinstance(key, _Compared)

    def fetched(self, key: object, data: bytes, checkpoint: Checkpoint) -> None:
        assert isinstance(key, _Compared)
        if data != key.awaited.endangered.value_of(key.where):
            self._report(key.awaited, key.where, data, checkpoint)

    def _report(self, awaited: _Awaited, where: ByteRange | None, found: bytes, checkpoint: Checkpoint) -> None:
        """`found` are the bytes at `where`, which differ from those before the loss; None where these are not known."""
        each = awaited.endangered
        node, parts = each.read.node, list(awaited.left)
        inside = [part for whole in parts if (part := whole.intersect(each.buffer.range))]
        if not inside:
            return
        self.context.report(
            Detection(
                code=CODE,
                checkpoint=checkpoint,
                buffer=each.buffer,
                **bytes_in(inside),
                window=where.start if where is not None else None,
                expected=each.value_of(where) if where is not None else b"",
                found=found,
                culprits=(write_of(node.launch, None, node.index),),
                phase=Phase.REPLAY,
                graph=each.graph,
                replay=checkpoint.replay,
                confidence="high" if where is not None else "medium",
                key=f"{each.graph.serial} {awaited.loss.how}",
                facts=ContentsLostDetail(awaited.loss.how, awaited.loss.stack, where is not None),
            )
        )


def _lost_again(earlier: _Awaited, new: _Awaited) -> _Awaited:
    """A read whose bytes are lost before they were written since an earlier loss: these must hold what they held before
    that one. They are not compared where it is not known. Bytes that are not all equal were put there in between, by a
    writer that is not seen: newly mapped memory is uniform."""
    old, each = earlier.endangered, new.endangered
    missing = earlier.left.intersection(each.sample) if each.before else []
    if any(len(set(each.value_of(part))) > 1 for part in missing):
        return new
    before = bytearray(each.before)
    for part in missing:
        if not old.before or not old.sample.covers(part):
            return replace(new, endangered=replace(each, before=b""))
        before[part.start - each.sample.start : part.stop - each.sample.start] = old.value_of(part)
    return replace(new, endangered=replace(each, before=bytes(before)))


def _one_per_buffer(reads: Iterable[_Awaited]) -> list[_Awaited]:
    """The first of several reads of one buffer that reads lost bytes for sure."""
    found: dict[int, _Awaited] = {}
    for each in reads:
        if each.reads_lost_bytes:
            found.setdefault(each.endangered.buffer.serial, each)
    return list(found.values())
