"""Whether host code plans from what a graph changed: the buffer held offsets, or what was read went on as indices.

`InGraphMutation` asks at a read by the host, in the thread that reads, and at boundaries, under the debugger's lock. A
read alone shows nothing: to read what a graph wrote is what outputs, counters and tokens that are fed back are for.
"""

from __future__ import annotations

from collections.abc import Iterator
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

_READS = 64  # followed between two replays
_PLAIN = 3  # different values that are not alike by chance
_MATCHES = 256  # remembered of fewer
_BEFORE = 4096  # bytes in front of what was read that are looked at as well

Values = npt.NDArray[np.int64]


@dataclass(slots=True, eq=False)
class Followed:
    """What the host read of a buffer after a replay had changed it, and what it has written since.

    Attributes
    ----------
    changed, where
        Bytes that the replay changed, of those that were read.
    """

    draft: Detection
    changed: RangeSet
    where: RangeSet
    values: Values
    written: dict[int, tuple[Buffer, RangeSet]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class Written:
    """Key of bytes asked for: what the host wrote into a buffer after such a read."""

    read: Followed
    buffer: Buffer
    where: ByteRange


class Planning:
    """Follows reads of integer buffers into the writes that come before the next replay."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._reads: dict[tuple[int, str], Followed] = {}  # by buffers and what changed them, until the next replay
        self._matches: dict[tuple[int, int, str], bytes] = {}  # by both buffers: what was written there once

    def held_offsets(self, draft: Detection, changed: RangeSet) -> bool:
        """Whether a buffer held index pointers before a replay overwrote them: from 0 upwards, in one row or more.

        Steps of one, as positions have them, count as none. Nor do pointers that the graph itself advances.
        """
        buffer, graph = draft.buffer, draft.graph
        if draft.window is None or graph is None or not is_integer(buffer.dtype):
            return False
        known = ByteRange(buffer.start, min(buffer.stop, draft.window + len(draft.expected)))
        return _go_up(self._before(draft, known), buffer.dtype) and not advances(graph, changed)

    def follow(self, draft: Detection, changed: RangeSet, where: RangeSet) -> None:
        """The host reads, as its own, what a replay changed."""
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
        """Judge what was written until now; what comes after the next replay has begun was not planned for it."""
        for read in list(self._reads.values()) if self._reads else ():
            keys = [Written(read, buffer, part) for buffer, parts in read.written.values() for part in parts]
            if self._context.engine.asynchronous and keys:
                self._context.engine.fetch(checkpoint, [(key, key.where) for key in keys])
                continue
            for key in keys:
                self.compare(key, self._context.engine.read(key.where) if still_there(key.buffer) else b"")
        if checkpoint.at == "replay_begin":
            self._reads.clear()

    def compare(self, key: Written, data: bytes) -> None:
        """What the host wrote has arrived: report the read if that is where the values come from."""
        read, graphs = key.read, list(self._context.graphs.values())
        count = read.where.nbytes // read.draft.buffer.itemsize
        how = _relation(read.values, _integers(data, key.buffer.dtype), count)
        if how is None or not self._is_sure(key, how, data):
            return
        where = RangeSet.of([key.where])
        uses = [use for graph in graphs for use in indexed_by(graph, where)]
        if how == "lengths":
            used = any(not use.lookup for use in uses)
        else:  # as they are: tokens, unless what they lead to is memory that a graph writes
            used = bool(uses) and all(self._leads_to_memory(use) for use in uses)
            used = used and any(reads_back(graph, part) for graph in graphs for part in read.changed)
        if used and not (read.draft.graph is None or advances(read.draft.graph, read.changed)):
            self._report(key)

    def _report(self, key: Written) -> None:
        name = self._context.names.name_of(key.buffer, key.where)[0]
        reader = key.read.draft.reader
        assert reader is not None
        told = msgspec.structs.replace(reader, wrote=name)
        self._context.report(replace(key.read.draft, severity=Severity.ERROR, inferred=False, reader=told))

    def _is_sure(self, key: Written, how: str, data: bytes) -> bool:
        """Whether it is no chance: several different values, or other ones a second time."""
        if len(np.unique(_integers(data, key.buffer.dtype))) >= _PLAIN:
            return True
        pair = key.read.draft.buffer.serial, key.buffer.serial, how
        known = self._matches.get(pair)
        if len(self._matches) >= _MATCHES:
            self._matches.clear()
        self._matches[pair] = data
        return known is not None and known != data

    def _leads_to_memory(self, use: Indexing) -> bool:
        """Whether what is indexed is memory that some graph writes; a table that stays is a vocabulary."""
        if use.lookup or use.table is None:
            return not use.lookup
        where = use.table.hull
        return any(graph.writers(where) for graph in self._context.graphs.values())

    def _before(self, draft: Detection, where: ByteRange) -> bytes:
        """Bytes as they were before the replay; what lies before its first change is as it was."""
        assert draft.window is not None
        data = bytearray(self._context.engine.read(where))
        known = where.intersect(ByteRange(draft.window, draft.window + len(draft.expected)))
        if known is not None:
            old = draft.expected[known.start - draft.window : known.stop - draft.window]
            data[known.start - where.start : known.stop - where.start] = old
        return bytes(data)

    def _values(self, buffer: Buffer, where: RangeSet) -> Values:
        """The values that were read, with those before them: they may have been read one by one."""
        first, last = min(part.start for part in where), max(part.stop for part in where)
        size = buffer.itemsize
        start = max(buffer.start, first - max(0, _BEFORE - (last - first)) // size * size)
        return _integers(self._context.engine.read(ByteRange(start, last)), buffer.dtype)


def _go_up(data: bytes, dtype: str) -> bool:
    """Whether values are index pointers of at least two entries; zeros behind them are not in use."""
    values = _integers(data, dtype)
    if values.size < 3 or values[0] or np.count_nonzero(values) < 2:
        return False
    steps = np.diff(values)
    return bool((values[1:][steps < 0] == 0).all() and (steps > 1).any())


def _relation(read: Values, wrote: Values, count: int) -> str | None:
    """How values that were written follow from those that were read: as ``lengths`` between them, as a ``copy``.

    Places among the `count` elements themselves are no copy: they say which row takes whose place, as beams have it.
    """
    if not wrote.size or not read.size:
        return None
    lengths = np.diff(read)
    if lengths.any() and _stems(wrote, lengths):
        return "lengths"
    among_themselves = bool(((read[-count:] >= 0) & (read[-count:] < count)).all())
    return "copy" if not among_themselves and _stems(wrote, read) else None


def _stems(wrote: Values, made: Values) -> bool:
    """Whether values that were written are a stretch of others, or are those and then padding."""
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
