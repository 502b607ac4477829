"""Static inputs of graphs: the rows that each graph reads, and the last write to each byte with its time.

Used by `StaleRows`, mostly under the debugger's lock (see `checks.base`); any thread may call `StaticInputs.known`.
"""

from __future__ import annotations

import ctypes
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from shadowgraph.checks.base import Context
from shadowgraph.checks.row_epochs import Epochs, Rows, Run, is_constant, is_sure, rows_of
from shadowgraph.model.buffers import Buffer, Role
from shadowgraph.model.graphs import Graph
from shadowgraph.model.launches import Access, LaunchKind
from shadowgraph.model.ranges import ByteRange, RangeIndex, RangeSet
from shadowgraph.model.views import TensorView
from shadowgraph.tracking.writes import Write, extent

_RECENT = 1024  # writes kept for graphs that the checks meet later
REBINDS = "aten.set_."  # gives a tensor object other memory and writes none of it
_SNAPSHOT = 4096  # bytes of a buffer that are compared from replay to replay on the host


@dataclass(slots=True, eq=False)
class Story:
    """The history of one static buffer.

    Attributes
    ----------
    made
        Bytes that any graph may write.
    snapshot
        The bytes when a graph that reads the buffer last began to replay; on the host, and up to `_SNAPSHOT` bytes.
    unseen
        When the values were last found changed without a write that was seen.
    """

    buffer: Buffer
    epochs: Epochs = field(default_factory=Epochs)
    readers: set[int] = field(default_factory=set)
    made: RangeSet = field(default_factory=RangeSet)
    snapshot: bytes | None = None
    unseen: int = 0


@dataclass(frozen=True, slots=True)
class Input:
    """Rows of a static buffer that a graph reads."""

    rows: Rows
    story: Story


class StaticInputs:
    """Tracks the static buffers that graphs read, from the first capture that was given them.

    Attributes
    ----------
    writes
        Eager writes so far that hit any of these buffers.
    version
        Changes with what `known` gives, after it has changed.
    """

    def __init__(self, context: Context) -> None:
        self.context = context
        self.writes = self.version = 0
        self._stories: dict[int, Story] = {}  # by the buffer's serial
        self._index: RangeIndex[Story] = RangeIndex()
        self._inputs: dict[int, list[Input]] = {}  # by the graph's serial
        self._read: dict[int, list[Story]] = {}
        self._made: dict[int, RangeSet] = {}
        self._recent: deque[tuple[int, Write]] = deque(maxlen=_RECENT)
        self._frees = 0

    def of(self, graph: Graph) -> list[Input]:
        """The rows that a graph reads of live buffers."""
        if self._frees != self.context.ledger.frees:
            self._frees = self.context.ledger.frees
            if any(story.buffer.freed_at is not None for story in self._stories.values()):
                self._drop_ended()
        return self._inputs.get(graph.serial, [])

    def known(self) -> dict[int, list[Input]]:
        """The rows that live graphs read, by the graphs' serials; changes nothing, so that any thread may call it."""
        return {serial: list(each) for serial, each in list(self._inputs.items())}

    def read_by(self, graph: Graph) -> list[Story]:
        """The buffers of `of`."""
        return self._read.get(graph.serial, [])

    def begins(self, graph: Graph, time: int) -> None:
        """A replay is about to begin, and all graphs are known: look for unseen writes."""
        self._recent.clear()
        if not self.context.engine.asynchronous:
            for story in self.read_by(graph):
                _compare(story, time)

    def invalidate_writers(self) -> None:
        """After unseen writes: no row's writer is known."""
        for story in self._stories.values():
            story.epochs.runs, story.snapshot = [], None
        self._recent.clear()

    def captured(self, graph: Graph) -> None:
        """Start tracking the inputs of a new graph."""
        self._drop_ended()
        read, made = self._inputs_of(graph)
        self._inputs[graph.serial] = sorted(read, key=lambda each: (each.rows.start, each.rows.stop))
        self._read[graph.serial] = list({id(each.story): each.story for each in read}.values())
        self._made[graph.serial] = RangeSet.of(made)
        self._index_stories()
        for story in self._stories.values():
            for part in self._made[graph.serial].intersection(story.buffer.range):
                story.made.add(part)
        self.version += 1

    def _inputs_of(self, graph: Graph) -> tuple[list[Input], list[ByteRange]]:
        """The rows that a graph reads of static buffers, and the bytes of those buffers that it may write."""
        index = _static(graph)
        read: dict[tuple[int, int], Input] = {}
        made: list[ByteRange] = []
        for view, reads, writes in _uses(graph, not self.context.engine.asynchronous):
            owners = [buffer for _, buffer in index.overlapping(view.start, view.stop)]
            if owners and writes:
                made += extent(view)[0]
            rows = rows_of(view) if owners and reads else None
            if rows is not None and (rows.start, rows.stop) not in read:
                buffer = min(owners, key=lambda owner: owner.nbytes)
                read[rows.start, rows.stop] = Input(rows, self._story(buffer, graph))
        return list(read.values()), made

    def _index_stories(self) -> None:
        self._index = RangeIndex((story.buffer.range, story) for story in self._stories.values())

    def _story(self, buffer: Buffer, graph: Graph) -> Story:
        story = self._stories.get(buffer.serial)
        if story is None:
            story = self._stories[buffer.serial] = Story(buffer)
            for made in self._made.values():
                for part in made.intersection(buffer.range):
                    story.made.add(part)
            for time, write in self._recent:  # on a device the checks meet a graph at its first replay
                if time > graph.captured_at:
                    note(story, write, time)
        story.readers.add(graph.serial)
        return story

    def _drop_ended(self) -> None:
        """Forget buffers that were freed and graphs that are gone."""
        self._stories = {story.buffer.serial: story for story in _living(self._stories.values())}
        self._index_stories()
        live = [serial for serial in self._inputs if serial in self.context.graphs]
        self._made = {serial: self._made[serial] for serial in live}
        self._inputs = {s: [each for each in self._inputs[s] if each.story.buffer.alive] for s in live}
        self._read = {s: _living(self._read[s]) for s in live}
        self.version += 1

    def written(self, write: Write, graph: Graph | None) -> None:
        """A launch wrote tracked memory; `graph` for a node of its replay."""
        if graph is not None and (write.stores is None or not self._stories):
            return  # the writes of its signature are known
        if write.launch.name.startswith(REBINDS):
            return
        time = next(self.context.clock)
        if graph is not None:
            self._note_made(write)
            return
        if self.context.engine.asynchronous:
            self._recent.append((time, write))
        if not self._stories:
            return
        sure, constant = is_sure(write), is_constant(write)
        for part in write.ranges:
            for where, story in self._index.overlapping(part.start, part.stop):
                self.writes += 1
                start, stop = max(part.start, where.start), min(part.stop, where.stop)
                story.epochs.note(Run(start, stop, time, write, sure, constant))

    def _note_made(self, write: Write) -> None:
        for part in write.ranges:
            for _, story in self._index.overlapping(part.start, part.stop):
                known = story.made.nbytes
                story.made.add(part)
                self.version += story.made.nbytes != known


def _static(graph: Graph) -> RangeIndex[Buffer]:
    """The live buffers that a graph was given and that no graph's pool holds."""
    static = [b for b in graph.inputs.values() if b.nbytes and b.role is not Role.POOL and b.alive]
    return RangeIndex((buffer.range, buffer) for buffer in static)


def _living(stories: Iterable[Story]) -> list[Story]:
    return [story for story in stories if story.buffer.alive]


def _uses(graph: Graph, stores_seen: bool) -> Iterable[tuple[TensorView, bool, bool]]:
    """Each view that a graph was given, with whether it may be read and whether it may be written.

    A kernel's use of a pointer is not known, unless its code shows that it does not store there; where its stores are
    seen when it runs, it need not be guessed.
    """
    found: dict[TensorView, tuple[bool, bool]] = {}
    for node, pointer in graph.pointers():
        guessed = stores_seen and node.launch.kind is LaunchKind.TRITON and pointer.access is Access.UNKNOWN
        reads, writes = found.get(pointer.view, (False, False))
        stores = not guessed and node.launch.may_store(pointer)
        found[pointer.view] = reads or pointer.may_read, writes or stores
    return [(view, reads, writes) for view, (reads, writes) in found.items()]


def note(story: Story, write: Write, time: float) -> None:
    """Add a write to a buffer's history, as far as it hits the buffer."""
    sure, constant = is_sure(write), is_constant(write)
    for part in write.ranges.intersection(story.buffer.range):
        story.epochs.note(Run(part.start, part.stop, time, write, sure, constant))


def _compare(story: Story, now: int) -> None:
    """Look for values that changed since the last replay without a write that was seen; the writer is unknown."""
    buffer, before = story.buffer, story.snapshot
    if buffer.nbytes > _SNAPSHOT:
        return
    story.snapshot = data = ctypes.string_at(buffer.start, buffer.nbytes)
    if before is None or data == before:
        return
    for start, stop in _gaps(story):
        within = slice(start - buffer.start, stop - buffer.start)
        if data[within] != before[within]:
            for part in RangeSet.of([ByteRange(start, stop)]) - story.made:
                within = slice(part.start - buffer.start, part.stop - buffer.start)
                if data[within] != before[within]:
                    story.unseen = now
                    story.epochs.note(Run(part.start, part.stop, now - 0.5, None, False, False))


def _gaps(story: Story) -> list[tuple[int, int]]:
    """Stretches of a buffer without a seen write since the last replay."""
    at, last, gaps = story.buffer.start, story.epochs.last, []
    for run in story.epochs.runs:
        if run.time > last:
            if run.start > at:
                gaps.append((at, run.start))
            at = run.stop
    stop = story.buffer.stop
    return [*gaps, (at, stop)] if at < stop else gaps
