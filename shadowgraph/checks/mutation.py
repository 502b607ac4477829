"""SG102: a replay changed a buffer that host code owns.

Declared with `protect()`, it is reported at the first replay that changes a value. Inferred, it takes four facts: the
host initialised an integer buffer with more than a constant, the host read those values as they were, a replay changed
them, and the host reads them again with no write of its own in between. Without the earlier read, and for a counter
(every changed element moved by the same amount), it is a note: reading back what a graph wrote is what outputs are for.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from shadowgraph.checks.base import Check, Checkpoint, Context, Draft
from shadowgraph.checks.blame import suspects
from shadowgraph.engines.base import Evidence
from shadowgraph.findings import Reader, Severity
from shadowgraph.graphs.model import Graph
from shadowgraph.tracking.buffers import Buffer, Role
from shadowgraph.tracking.phases import Phase
from shadowgraph.tracking.ranges import ByteRange, RangeSet
from shadowgraph.tracking.stacks import Stack
from shadowgraph.tracking.views import TensorView
from shadowgraph.tracking.writes import Write

_HOST_WRITES = 512  # remembered for evidence that arrives late
_INTEGERS = {"int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "bool"}


@dataclass(frozen=True, slots=True)
class _Protected:
    """Key of a declared range."""

    buffer: Buffer
    where: ByteRange


@dataclass(frozen=True, slots=True)
class _Candidate:
    """Key of a buffer that may turn out to be host-owned."""

    buffer: Buffer


@dataclass(slots=True)
class _Dirty:
    """Bytes that a replay changed and the host has not rewritten."""

    draft: Draft
    ranges: RangeSet
    counter: bool


class InGraphMutation(Check):
    """Compares protected buffers and candidates across each replay."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._protected: list[_Protected] = []
        self._dirty: dict[int, _Dirty] = {}
        self._graph_made = RangeSet()  # changed by a graph, not rewritten by the host since
        self._clean_reads = RangeSet()  # read by the host while they held what the host had written
        self._host_made: dict[int, bool] = {}
        self._host_writes: deque[tuple[int, RangeSet]] = deque(maxlen=_HOST_WRITES)

    def protect(self, buffer: Buffer, where: ByteRange) -> None:
        """Declare bytes that no graph may change."""
        self._protected.append(_Protected(buffer, where))

    @property
    def declared(self) -> int:
        """How many declarations were made."""
        return len(self._protected)

    def parts(self, graph: Graph) -> Iterable[tuple[object, ByteRange]]:
        for declared in self._protected:
            if declared.buffer.alive:
                yield declared, declared.where
        if not self.context.settings.infer:
            return
        covered = RangeSet.of(declared.where for declared in self._protected)
        for buffer in self.context.ledger:
            if self._is_candidate(buffer, graph) and not covered.overlaps(buffer.range):
                yield _Candidate(buffer), buffer.range

    def owns(self, key: object) -> bool:
        return isinstance(key, _Protected | _Candidate)

    def changed(self, evidence: Evidence[object], checkpoint: Checkpoint) -> None:
        subject = evidence.subject
        assert isinstance(subject, _Protected | _Candidate)
        draft = self._draft(evidence, subject.buffer, checkpoint)
        if isinstance(subject, _Protected):
            self.context.report(draft)
            return
        ranges = _elements(evidence.ranges, subject.buffer)
        beyond = _elements([(evidence.ranges[-1][0], evidence.last)], subject.buffer)  # more than 16 are not listed
        self._graph_made = self._graph_made | ranges | beyond
        for order, written in self._host_writes:  # evidence may arrive after the host has written again
            if order > checkpoint.order:
                ranges, self._graph_made = ranges - written, self._graph_made - written
        if not ranges:
            return
        self._dirty[subject.buffer.serial] = _Dirty(draft, ranges, _counts(evidence, draft))

    def host_read(self, view: TensorView, how: str, stack: Stack, checkpoint: Checkpoint) -> None:
        where = ByteRange(view.start, view.stop)
        for dirty in list(self._dirty.values()):
            hit = dirty.ranges.intersection(where)
            if hit and dirty.draft.buffer.alive and not self._rewritten_unseen(dirty.draft):
                self._report_read(dirty, hit, how, stack)
        for part in RangeSet.of([where]) - self._graph_made:
            self._clean_reads.add(part)

    def written(self, write: Write, phase: Phase | None, graph: Graph | None) -> None:
        if graph is not None:
            return
        self._host_writes.append((next(self.context.clock), write.ranges))
        for part in write.ranges:
            self._graph_made.discard(part)
        for serial, dirty in list(self._dirty.items()):
            for part in write.ranges:
                dirty.ranges.discard(part)
            if not dirty.ranges:
                del self._dirty[serial]

    def _report_read(self, dirty: _Dirty, hit: list[ByteRange], how: str, stack: Stack) -> None:
        known = any(self._clean_reads.overlaps(part) for part in hit)
        sure = known and not dirty.counter
        frame = stack[0] if stack else None
        reader = Reader("host", how, None, frame.file if frame else None, frame.line if frame else None)
        draft = dirty.draft
        self.context.report(
            replace(
                draft,
                reader=reader,
                checkpoint=Checkpoint("host_read", draft.phase, draft.graph, draft.replay),
                severity=Severity.ERROR if sure else Severity.NOTE,
                confidence="medium",
            )
        )
        for part in hit:
            dirty.ranges.discard(part)

    def _draft(self, evidence: Evidence[object], buffer: Buffer, checkpoint: Checkpoint) -> Draft:
        culprits = suspects(self.context, checkpoint, buffer, evidence.parts)
        return Draft(
            code="SG102",
            checkpoint=checkpoint,
            buffer=buffer,
            first=evidence.first,
            last=evidence.last,
            count=evidence.count,
            ranges=evidence.ranges,
            ranges_total=evidence.ranges_total,
            window=evidence.window,
            expected=evidence.expected,
            found=evidence.found,
            culprits=culprits,
            phase=Phase.REPLAY,
            graph=checkpoint.graph,
            replay=checkpoint.replay,
            key=f"{checkpoint.graph.serial if checkpoint.graph else ''}",
        )

    def _is_candidate(self, buffer: Buffer, graph: Graph) -> bool:
        if buffer.role is Role.POOL or buffer.dtype not in _INTEGERS:
            return False
        if buffer.nbytes > self.context.settings.shadow_limit or not graph.writers(buffer.range):
            return False
        if buffer.serial not in self._host_made:
            values = np.frombuffer(self.context.engine.read(buffer.range), dtype=np.uint8)
            elements = values.reshape(-1, buffer.itemsize) if buffer.nbytes % buffer.itemsize == 0 else values[:, None]
            self._host_made[buffer.serial] = bool((elements != elements[0]).any())
        return self._host_made[buffer.serial]

    def _rewritten_unseen(self, draft: Draft) -> bool:
        """Whether the bytes are no longer what the replay left: the host wrote them where we could not see it."""
        if draft.window is None or not draft.found:
            return False
        return self.context.engine.read(ByteRange(draft.window, draft.window + len(draft.found))) != draft.found


def _elements(ranges: Iterable[tuple[int, int]], buffer: Buffer) -> RangeSet:
    """Inclusive byte ranges widened to whole elements of a buffer."""
    size = buffer.itemsize
    whole = RangeSet()
    for first, last in ranges:
        low = (first - buffer.start) // size * size
        high = -(-(last + 1 - buffer.start) // size) * size
        whole.add(ByteRange(buffer.start + low, buffer.start + high))
    return whole


def _counts(evidence: Evidence[object], draft: Draft) -> bool:
    """Whether every element that the culprits wrote moved by one and the same amount."""
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
    return bool(steps.size == 1)
