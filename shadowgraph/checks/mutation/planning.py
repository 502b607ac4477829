"""Whether host code plans from values that a graph changed: index pointers, or values that go on as indices.

`InGraphMutation` calls it at a read by the host, in the reading thread, and at boundaries, under the debugger's lock. A
read alone shows nothing: outputs, counters and tokens that are fed back are meant to be read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import msgspec
import numpy as np
import numpy.typing as npt

from shadowgraph.checks.base import Checkpoint, Context, Detection
from shadowgraph.graphs.dataflow import Indexing, advances, indexed_by, is_integer, reads_back
from shadowgraph.model.buffers import Buffer, Role
from shadowgraph.model.findings import Severity
from shadowgraph.model.ranges import ByteRange, RangeSet
from shadowgraph.tracking.foreign import still_there

_READS = 64  # reads followed between two replays
_PLAIN = 3  # distinct values whose equality is no chance
_MATCHES = 256  # kept matches of fewer values
_BEFORE = 4096  # bytes before a read that are compared as well

Values = npt.NDArray[np.int64]


@dataclass(slots=True, eq=False)
class Followed:
    """A host read of bytes that a replay had changed, and the host's writes since.

    Attributes
    ----------
    changed, where
        The bytes that the replay changed among those read, and all bytes read.
    """

    draft: Detection
    changed: RangeSet
    where: RangeSet
    values: Values
    written: dict[int, tuple[Buffer, RangeSet]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class Written:
    """Key of requested bytes: the host's writes into a buffer after such a read."""

    read: Followed
    buffer: Buffer
    where: ByteRange


class Planning:
    """Follows reads of integer buffers into the writes that come before the next replay.

    Parameters
    ----------
    dated
        A detection that is about to be reported, dated to the first replay of its kind.
    """

    def __init__(self, context: Context, dated: Callable[[Detection], Detection]) -> None:
        self._context, self._dated = context, dated
        self._reads: dict[tuple[int, str], Followed] = {}  # by buffer and replay, until the next replay
        self._matches: dict[tuple[int, int, str], bytes] = {}  # by buffers and relation: bytes written once

    def held_offsets(self, draft: Detection, changed: RangeSet) -> bool:
        """Whether a buffer held index pointers before a replay overwrote them: ascending from 0, in one row or more.

        Steps of one, as in positions, do not count. Nor do pointers that the graph itself advances.
        """
        buffer, graph = draft.buffer, draft.graph
        if draft.window is None or graph is None or not is_integer(buffer.dtype):
            return False
        known = ByteRange(buffer.start, min(buffer.stop, draft.window + len(draft.expected)))
        return _go_up(self._before(draft, known), buffer.dtype) and not advances(graph, changed)

    def follow(self, draft: Detection, changed: RangeSet, where: RangeSet) -> None:
        """The host reads bytes, as its own, that a replay changed."""
        key = draft.buffer.serial, f"{draft.key} {draft.replay}"
        known = self._reads.get(key)
        if known is not None:  # element by element
            changed, where = known.changed | changed, known.where | where
        elif len(self._reads) >= _READS:
            return
        followed = Followed(draft, changed, where, self._values(draft.buffer, where))
        followed.written = known.written if known is not None else {}
        self._reads[key] = followed

    def wrote(self, ranges: RangeSet) -> None:
        """The host wrote memory."""
        for read in self._reads.values():
            for part in ranges:
                for buffer in self._context.ledger.overlapping(part.start, part.stop):
                    if buffer is not read.draft.buffer and is_integer(buffer.dtype) and buffer.role is not Role.POOL:
                        _, known = read.written.setdefault(buffer.serial, (buffer, RangeSet()))
                        known.add(part.intersect(buffer.range) or part)

    def boundary(self, checkpoint: Checkpoint) -> None:
        """Compare the writes so far; later writes are too late to plan for the next replay once it has begun."""
        for read in list(self._reads.values()) if self._reads else ():
            self._compare_writes(read, checkpoint)
        if checkpoint.at == "replay_begin":
            self._reads.clear()

    def _compare_writes(self, read: Followed, checkpoint: Checkpoint) -> None:
        engine = self._context.engine
        keys = [Written(read, buffer, part) for buffer, parts in read.written.values() for part in parts]
        if engine.asynchronous and keys:
            engine.fetch(checkpoint, [(key, key.where) for key in keys])
            return
        for key in keys:
            self.compare(key, engine.read(key.where) if still_there(key.buffer) else b"")

    def compare(self, key: Written, data: bytes) -> None:
        """The bytes that the host wrote have arrived: report the read if the values come from it."""
        read, graph = key.read, key.read.draft.graph
        count = read.where.nbytes // read.draft.buffer.itemsize
        how = _relation(read.values, _integers(data, key.buffer.dtype), count)
        if how is None or not self._is_sure(key, how, data):
            return
        if self._is_used(key, how) and graph is not None and not advances(graph, read.changed):
            self._report(key)

    def _is_used(self, key: Written, how: str) -> bool:
        """Whether graphs use the written values: lengths as offsets, a copy as indices into memory that changes."""
        graphs, where = list(self._context.graphs.values()), RangeSet.of([key.where])
        uses = [use for graph in graphs for use in indexed_by(graph, where)]
        if how == "lengths":
            return any(not use.lookup for use in uses)
        # unchanged: tokens, unless they lead to memory that a graph writes
        if not uses or not all(self._leads_to_memory(use) for use in uses):
            return False
        return any(reads_back(graph, part) for graph in graphs for part in key.read.changed)

    def _report(self, key: Written) -> None:
        name = self._context.names.name_of(key.buffer, key.where)[0]
        reader = key.read.draft.reader
        assert reader is not None
        told = msgspec.structs.replace(reader, wrote=name)
        sure = replace(key.read.draft, severity=Severity.ERROR, inferred=False, reader=told)
        self._context.report(self._dated(sure))

    def _is_sure(self, key: Written, how: str, data: bytes) -> bool:
        """Whether the match is no chance: several different values, or other values a second time."""
        if len(np.unique(_integers(data, key.buffer.dtype))) >= _PLAIN:
            return True
        pair = key.read.draft.buffer.serial, key.buffer.serial, how
        known = self._matches.get(pair)
        if len(self._matches) >= _MATCHES:
            self._matches.clear()
        self._matches[pair] = data
        return known is not None and known != data

    def _leads_to_memory(self, use: Indexing) -> bool:
        """Whether the indexed memory is written by a graph; a table that stays constant is a vocabulary."""
        if use.lookup or use.table is None:
            return not use.lookup
        where = use.table.hull
        return any(graph.writers(where) for graph in self._context.graphs.values())

    def _before(self, draft: Detection, where: ByteRange) -> bytes:
        """Bytes as before the replay; bytes before its first change are unchanged."""
        assert draft.window is not None
        data = bytearray(self._context.engine.read(where))
        known = where.intersect(ByteRange(draft.window, draft.window + len(draft.expected)))
        if known is not None:
            old = draft.expected[known.start - draft.window : known.stop - draft.window]
            data[known.start - where.start : known.stop - where.start] = old
        return bytes(data)

    def _values(self, buffer: Buffer, where: RangeSet) -> Values:
        """The values read, with the values before them: they may have been read one by one."""
        first, last = min(part.start for part in where), max(part.stop for part in where)
        size = buffer.itemsize
        start = max(buffer.start, first - max(0, _BEFORE - (last - first)) // size * size)
        return _integers(self._context.engine.read(ByteRange(start, last)), buffer.dtype)


def _go_up(data: bytes, dtype: str) -> bool:
    """Whether values are index pointers of at least two entries; trailing zeros are not in use."""
    values = _integers(data, dtype)
    if values.size < 3 or values[0] or np.count_nonzero(values) < 2:
        return False
    steps = np.diff(values)
    return bool((values[1:][steps < 0] == 0).all() and (steps > 1).any())


def _relation(read: Values, wrote: Values, count: int) -> str | None:
    """How written values follow from read values: as ``lengths`` between them, or as a ``copy``.

    Indices into the `count` elements themselves are no copy: they permute rows, as beam search does.
    """
    if not wrote.size or not read.size:
        return None
    lengths = np.diff(read)
    if lengths.any() and _stems(wrote, lengths):
        return "lengths"
    among_themselves = bool(((read[-count:] >= 0) & (read[-count:] < count)).all())
    return "copy" if not among_themselves and _stems(wrote, read) else None


def _stems(wrote: Values, made: Values) -> bool:
    """Whether the written values are a stretch of others, or equal them with padding behind."""
    rest = wrote[made.size :]
    whole = wrote.size >= made.size and bool((wrote[: made.size] == made).all() and (rest == rest[:1]).all())
    return whole or _is_part(made, wrote)


def _is_part(whole: Values, part: Values) -> bool:
    return any(at % whole.itemsize == 0 for at in _places(whole.tobytes(), part.tobytes()))


def _places(data: bytes, part: bytes) -> Iterator[int]:
    at = data.find(part)
    while at >= 0:
        yield at
        at = data.find(part, at + 1)


def _integers(data: bytes, dtype: str) -> Values:
    size = np.dtype(dtype).itemsize
    return np.frombuffer(data[: len(data) // size * size], dtype=dtype).astype(np.int64)
