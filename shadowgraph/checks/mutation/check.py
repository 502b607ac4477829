"""SG102: a replay changed a buffer that host code owns.

A change of a buffer declared with `protect()` is reported at the first replay that changes a value. Without a
declaration, a host read of bytes that a replay changed is an inference: counted, and listed on request. Reading back
the output of a graph is normal, and so is a token that is fed back.

The host's use of the values turns an inference into an error. It takes four facts: the host wrote more than a constant
into an integer buffer, the host read these values unchanged, a replay changed them, each by a different amount, and the
host reads them again with no write of its own in between. Then one of three: an adapter knows that a planner reads
them; they were index pointers, and the graph does not make the new ones from the old; or the host wrote them, or the
lengths between them, into another buffer that a graph reads as indices or offsets (`planning`).

Check nodes compare declared buffers at every replay, and those that the host plans from: buffers with values of its own
that it has read, and that no replay was seen to change. Whether the host reads such a change is seen only while it is
observed. So the first change of each ends the steady state, and a finding that follows is dated to that replay.

The hooks run as described in `checks.base`; `host_read` runs in the reading thread without the debugger's lock.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np

from shadowgraph.checks.attribution import suspects
from shadowgraph.checks.base import Check, Checkpoint, Context, Detection, host_reader
from shadowgraph.checks.mutation import CODE
from shadowgraph.checks.mutation.planning import Planning, Written
from shadowgraph.checks.mutation.story import Candidate, Dirty, Protected, Story
from shadowgraph.common.finalizer_safe_lock import weak_callback
from shadowgraph.common.words import plural
from shadowgraph.engines.base import Evidence, NodePart
from shadowgraph.model.buffers import Buffer, Role
from shadowgraph.model.findings import Severity
from shadowgraph.model.graphs import Access, Graph
from shadowgraph.model.launches import LaunchKind
from shadowgraph.model.phases import Phase
from shadowgraph.model.ranges import ByteRange, RangeSet
from shadowgraph.model.stacks import Stack
from shadowgraph.model.views import TensorView
from shadowgraph.tracking.foreign import still_there
from shadowgraph.tracking.writes import Write, extent

_HOST_WRITES = 512  # kept for evidence that arrives late
_INTEGERS = {"int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "bool"}
_ARITHMETIC = {"add_", "sub_", "index_add_", "scatter_add_", "_foreach_add_", "_foreach_sub_"}
_DIRTY = 64  # replays kept for each buffer
PLANNER = "plan"  # `how` of a read by a planner, as reported by an adapter
_EAGER_JUDGINGS = 8  # after these, a device's buffer that the host fills with constants is read ever more seldom


class InGraphMutation(Check):
    """Compares protected buffers and candidates across each replay.

    Attributes
    ----------
    declared
        Incremented with every declaration, and with every host write that may make a buffer a candidate.
    stirs
        First changes by unobserved replays of what the host plans from: each is a reason to observe.
    """

    needs_every_write = True

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._protected: list[Protected] = []
        self._stories: dict[int, Story] = {}
        self._followed: dict[int, list[tuple[Story, RangeSet]]] = {}  # by graph, with overwritten bytes
        self._planning = Planning(context, weak_callback(self._dated))
        self.declared = self.stirs = 0
        self._versions = itertools.count(1)
        self._host_writes: deque[tuple[int, RangeSet]] = deque(maxlen=_HOST_WRITES)
        self._begun = 0  # when the last observed replay began
        self._since = 0  # changes of replays before this may have been rewritten by the host, unseen

    def invalidate_writers(self) -> None:
        """After unseen writes: the current content may be a graph's until the host is seen to write it.

        An earlier read by the host of its own values stays on record. A read of a graph's values does not become one.
        """
        self._since = next(self.context.clock)
        for story in self._stories.values():
            story.invalidate_writers()

    def protect(self, buffer: Buffer, where: ByteRange) -> None:
        """Declare bytes that no graph may change."""
        self._protected.append(Protected(buffer, where))
        self.declared += 1
        self._list_anew()

    @property
    def protects(self) -> bool:
        """Whether any declaration holds."""
        return any(declared.buffer.alive for declared in self._protected)

    def _list_anew(self) -> None:
        self.node_version = next(self._versions)

    def planned(self, view: TensorView, given: bytes) -> None:
        """An adapter saw a planner that was given these bytes, which are known to stand for the view."""
        for buffer in self.context.ledger.overlapping(view.start, view.stop):
            story = self._stories.get(buffer.serial)
            for draft, changed in tuple(story.read) if story is not None else ():
                if changed.overlaps(view.hull) and _is_given(draft, view, given):
                    self.context.report(self._dated(_sure(draft)))

    def parts(self, graph: Graph) -> Iterable[tuple[object, ByteRange]]:
        self._drop_ended()
        protected = [declared for declared in self._protected if declared.buffer.alive]
        for declared in protected:
            yield declared, declared.where
        if not self.context.settings.infer:
            return
        covered = RangeSet.of(declared.where for declared in protected)
        followed = []
        for buffer in self._candidates(graph, covered):
            followed.append((self._story(buffer), _overwritten(graph, buffer)))
            yield Candidate(buffer), buffer.range
        self._followed = {serial: each for serial, each in self._followed.items() if serial in self.context.graphs}
        self._followed[graph.serial] = followed

    def node_parts(self, graph: Graph) -> Iterator[NodePart]:
        protected = [declared for declared in self._protected if declared.buffer.alive]
        for declared in protected:
            yield NodePart(declared, declared.where, declared.buffer.serial)
        covered = RangeSet.of(declared.where for declared in protected)
        for story in list(self._stories.values()):
            buffer = story.buffer
            if story.planned_from and not covered.overlaps(buffer.range) and self._is_written(buffer, graph):
                yield NodePart(Candidate(buffer), buffer.range, buffer.serial, undecided=True)

    def is_damage(self, key: object) -> bool | None:
        if not isinstance(key, Candidate):
            return True if isinstance(key, Protected) else None
        story = self._stories.get(key.buffer.serial)
        return False if story is not None and story.planned_from else None

    def replay_begins(self, checkpoint: Checkpoint) -> None:
        """From here on, the bytes that the graph overwrites count as the graph's, even where the values stay."""
        self._begun = checkpoint.order
        serial = checkpoint.graph.serial if checkpoint.graph is not None else 0
        for story, overwritten in self._followed.get(serial, ()):
            story.read.clear()
            if checkpoint.observed:
                story.overwritten(serial)
            if story.replayed != serial:
                story.graph_made, story.replayed = story.graph_made | overwritten, serial

    def checkpoint_ends(self, checkpoint: Checkpoint) -> None:
        self._planning.boundary(checkpoint)

    def reads(self, graph: Graph) -> bool:
        return self.context.settings.infer and any(self._is_unread(buffer, graph) for buffer in self.context.ledger)

    def owns(self, key: object) -> bool:
        return isinstance(key, Protected | Candidate | Written)

    def fetched(self, key: object, data: bytes, checkpoint: Checkpoint) -> None:
        assert isinstance(key, Written)
        self._planning.compare(key, data)

    def changed(self, evidence: Evidence[object], checkpoint: Checkpoint) -> None:
        subject = evidence.subject
        assert isinstance(subject, Protected | Candidate)
        draft = self._draft(evidence, subject.buffer, checkpoint)
        if isinstance(subject, Protected):
            self.context.report(draft)
            return
        if not subject.buffer.alive:
            return
        story = self._story(subject.buffer)
        first = self._is_first(story, draft)
        if checkpoint.order < self._since:
            return
        ranges = _elements(evidence.ranges, subject.buffer)
        beyond = _elements([(evidence.ranges[-1][0], evidence.last)], subject.buffer)  # more than 16 are not listed
        story.graph_made = story.graph_made | ranges | beyond
        for part in ranges:
            story.clean_dirt(part)
        # Evidence may arrive after the host has written again; of an unobserved replay it is not known when it was.
        since = checkpoint.order if checkpoint.observed else self._begun
        for order, written in self._host_writes:
            if order > since:
                ranges, story.graph_made = ranges - written, story.graph_made - written
        if ranges:
            story.dirty = [*story.dirty[1 - _DIRTY :], Dirty(draft, ranges, _counts(evidence, draft), first)]

    def _is_first(self, story: Story, draft: Detection) -> bool:
        """Note a change; returns whether it is the first one of what the host plans from, and passed unobserved."""
        if story.changed:
            return False
        planned, story.changed = story.planned_from, True
        if planned:
            self._list_anew()
        if not planned or draft.checkpoint.observed:
            return False
        story.first, story.opens = draft, True
        self.stirs += 1
        return True

    def _dated(self, draft: Detection) -> Detection:
        """A finding on a change by an observed replay, dated to the unobserved one by the same graph that was the first
        to change these bytes; its writer is the one that was observed."""
        story = self._stories.get(draft.buffer.serial)
        if story is None or story.first is None or not story.dates(draft):
            return draft
        return replace(
            story.first,
            checkpoint=draft.checkpoint,
            culprits=draft.culprits or story.first.culprits,
            reader=draft.reader,
            severity=draft.severity,
            confidence=draft.confidence,
            inferred=draft.inferred,
        )

    def sentence(self) -> str | None:
        """How often a first change ended the steady state, for the report; None for never."""
        if not self.stirs:
            return None
        return (
            f"{plural(self.stirs, 'buffer')} that the host plans from changed for the first time in a replay that "
            "passed unobserved; the host was observed after that"
        )

    def host_read(self, view: TensorView, how: str, stack: Stack, checkpoint: Checkpoint) -> None:
        where, _ = extent(view)
        for buffer in self.context.ledger.overlapping(view.start, view.stop):
            if not _may_be_owned(buffer):
                continue
            story = self._story(buffer)
            self._judge_read(story, where, how, stack)
            before = story.planned_from
            for part in where:
                for piece in RangeSet.of(filter(None, [part.intersect(buffer.range)])) - story.graph_made:
                    story.clean_reads.add(piece)
            if story.planned_from is not before:
                self._list_anew()

    @property
    def wants_known_writes(self) -> bool:
        return False

    def written(self, write: Write, phase: Phase | None, graph: Graph | None) -> None:
        if graph is not None:
            return
        self._planning.wrote(write.ranges)
        self._host_writes.append((next(self.context.clock), write.ranges))
        for story in self._stories.values():
            pieces = write.ranges.intersection(story.buffer.range)
            if not pieces or not still_there(story.buffer):
                continue
            if story.host_made is False:
                self._reopen(story, pieces)
            story.replayed, story.first = 0, None
            story.read.clear()
            for part in pieces:
                story.graph_made.discard(part)
                story.clean_dirt(part)

    def _story(self, buffer: Buffer) -> Story:
        if buffer.serial not in self._stories:
            if len(self._stories) % 64 == 63:
                self._drop_ended()
            self._stories[buffer.serial] = Story(buffer)
        return self._stories[buffer.serial]

    def _drop_ended(self) -> None:
        self._stories = {serial: story for serial, story in self._stories.items() if story.buffer.alive}

    def _reopen(self, story: Story, pieces: list[ByteRange]) -> None:
        """The host wrote a buffer that was constant: have it checked again before the next replay."""
        if not story.rewrites:
            story.openings += 1
            late = story.openings > _EAGER_JUDGINGS and self.context.engine.asynchronous
            if late and story.openings & (story.openings - 1):
                return
            self.declared += 1
        for part in RangeSet.of(pieces) - story.rewrites:
            story.clean_reads.discard(part)  # they were reads of a constant, or of an untracked write by a graph
            story.rewrites.add(part)

    def _judge_read(self, story: Story, where: RangeSet, how: str, stack: Stack) -> None:
        latest: dict[str, tuple[Dirty, list[ByteRange]]] = {}  # the last replay of a graph stands for the earlier ones
        for dirty in story.dirty:
            hit = [piece for part in where for piece in dirty.ranges.intersection(part)]
            if hit and not self._rewritten_unseen(dirty):
                latest[dirty.draft.key] = dirty, hit
        for dirty, hit in latest.values():
            self._report_read(story, dirty, hit, where, how, stack)
        for part in where if any(not dirty.unsure for dirty, _ in latest.values()) else ():
            story.clean_dirt(part)

    def _report_read(
        self, story: Story, dirty: Dirty, hit: list[ByteRange], where: RangeSet, how: str, stack: Stack
    ) -> None:
        draft, changed = dirty.draft, RangeSet.of(hit)
        draft = replace(
            draft,
            reader=host_reader(how, stack),
            checkpoint=Checkpoint("host_read", draft.phase, draft.graph, draft.replay),
            severity=Severity.NOTE,
            confidence="medium",
            inferred=True,
        )
        own = not dirty.counter and not dirty.unsure and any(story.clean_reads.overlaps(part) for part in hit)
        if own and (how == PLANNER or self._planning.held_offsets(draft, changed)):
            draft = self._dated(_sure(draft))
        elif own:
            story.read.append((draft, changed))
            mine = RangeSet.of(piece for part in where if (piece := part.intersect(story.buffer.range)))
            self._planning.follow(draft, changed, mine)
        self.context.report(draft)

    def _draft(self, evidence: Evidence[object], buffer: Buffer, checkpoint: Checkpoint) -> Detection:
        culprits = suspects(self.context, checkpoint, buffer, evidence.parts)
        return Detection.of(
            CODE,
            checkpoint,
            buffer,
            evidence,
            culprits=culprits,
            phase=Phase.REPLAY,
            graph=checkpoint.graph,
            replay=checkpoint.replay,
            key=f"{checkpoint.graph.serial if checkpoint.graph else ''}",
        )

    def _is_written(self, buffer: Buffer, graph: Graph) -> bool:
        """Whether a graph writes a buffer that host code may own."""
        if not _may_be_owned(buffer) or buffer.nbytes > self.context.settings.shadow_limit:
            return False
        return bool(graph.writers(buffer.range))

    def _is_unread(self, buffer: Buffer, graph: Graph) -> bool:
        """Whether the buffer's bytes must be read to tell whether it is a candidate."""
        story = self._stories.get(buffer.serial)
        known = story is not None and story.host_made is not None and (story.host_made or not story.rewrites)
        return not known and self._is_written(buffer, graph)

    def _candidates(self, graph: Graph, covered: RangeSet) -> Iterator[Buffer]:
        """Buffers that may prove to be host-owned, without those that are declared in part."""
        for buffer in self.context.ledger:
            if self._is_candidate(buffer, graph) and not covered.overlaps(buffer.range):
                yield buffer

    def _is_candidate(self, buffer: Buffer, graph: Graph) -> bool:
        if not self._is_written(buffer, graph):
            return False
        story = self._story(buffer)
        before = story.planned_from
        if story.host_made is None:
            story.host_made = self._varies(buffer, RangeSet.of([buffer.range]))
        elif not story.host_made and story.rewrites:
            if self._varies(buffer, story.rewrites):
                story.adopt()
            story.rewrites = RangeSet()
        if story.planned_from is not before:
            self._list_anew()
        return story.host_made

    def _varies(self, buffer: Buffer, where: RangeSet) -> bool:
        """Whether two elements in some bytes of a buffer differ; the read waits for a device."""
        values = np.frombuffer(self.context.engine.read(buffer.range), dtype=np.uint8)
        size = buffer.itemsize if buffer.nbytes % buffer.itemsize == 0 else 1
        chosen = np.zeros(len(values), dtype=bool)
        for part in where:
            chosen[part.start - buffer.start : part.stop - buffer.start] = True
        elements = values.reshape(-1, size)[chosen.reshape(-1, size).any(axis=1)]
        return bool((elements != elements[:1]).any())

    def _rewritten_unseen(self, dirty: Dirty) -> bool:
        """Whether the bytes no longer hold the replay's values: the host wrote them in a way that was not seen."""
        start, found = dirty.draft.window, dirty.draft.found
        if start is None or not found:
            return False
        window = ByteRange(start, start + len(found))
        now = self.context.engine.read(window)
        places = [slice(part.start - start, part.stop - start) for part in dirty.ranges.intersection(window)]
        return any(now[place] != found[place] for place in places)


def _sure(draft: Detection) -> Detection:
    return replace(draft, severity=Severity.ERROR, inferred=False)


def _is_given(draft: Detection, view: TensorView, given: bytes) -> bool:
    """Whether the bytes that a planner was given in place of a view equal the bytes that a replay left there, as far as
    known."""
    window = draft.window if draft.window is not None else view.start
    first, last = max(window, view.start), min(window + len(draft.found), view.start + len(given))
    found = draft.found[first - window : last - window]
    return first >= last or found == given[first - view.start : last - view.start]


def _overwritten(graph: Graph, buffer: Buffer) -> RangeSet:
    """Bytes of a buffer that a graph certainly writes: operators do, a kernel may only read the memory that it is
    given."""
    pointers = [p for _, p in graph.pointing_into(buffer.range) if p.access in (Access.WRITE, Access.READ_WRITE)]
    extents = [extent(pointer.view) for pointer in pointers]
    return RangeSet.of(
        piece for ranges, gaps in extents if not gaps for part in ranges if (piece := part.intersect(buffer.range))
    )


def _may_be_owned(buffer: Buffer) -> bool:
    return buffer.role is not Role.POOL and buffer.dtype in _INTEGERS


def _elements(ranges: Iterable[tuple[int, int]], buffer: Buffer) -> RangeSet:
    """Inclusive byte ranges widened to whole elements of a buffer."""
    size = buffer.itemsize
    whole = RangeSet()
    for first, last in ranges:
        low = (first - buffer.start) // size * size
        high = -(-(last + 1 - buffer.start) // size) * size
        whole.add(ByteRange(buffer.start + low, buffer.start + high))
    return whole


def _counts(evidence: Evidence[object], draft: Detection) -> bool:
    """Whether every element that the culprits wrote changed by one and the same amount.

    For in-place sums, elements may also stay: masked counters step like that. With any other operator, unchanged
    elements could mean a recomputed table.
    """
    buffer = draft.buffer
    skip = (buffer.start - evidence.window) % buffer.itemsize
    usable = (len(evidence.found) - skip) // buffer.itemsize * buffer.itemsize
    if usable <= 0 or buffer.dtype == "bool":
        return False
    before = np.frombuffer(evidence.expected[skip : skip + usable], dtype=buffer.dtype)
    after = np.frombuffer(evidence.found[skip : skip + usable], dtype=buffer.dtype)
    addresses = evidence.window + skip + np.arange(before.size) * buffer.itemsize
    written = np.zeros(before.size, dtype=bool)
    for write in draft.culprits:
        for part in write.ranges:
            written |= (addresses >= part.start) & (addresses < part.stop)
    steps = np.unique((after - before)[written | (after != before)])
    summed = bool(draft.culprits) and all(_sums(write) for write in draft.culprits)
    return bool(steps.size == 1 or (summed and np.count_nonzero(steps) == 1))


def _sums(write: Write) -> bool:
    operator = write.launch.name.removeprefix("aten.").split(".")[0]
    return write.launch.kind is LaunchKind.ATEN and operator in _ARITHMETIC
