"""The memory whose use is measured: static buffers that graphs read, in the parts in which they read them.

A graph that reads ``buf[:bs]`` leaves the rest to larger batches, so that the whole buffer is one region. Graphs that
read disjoint parts, such as a row for each draft step or inputs carved out of one tensor, divide the buffer: each part
is a region, since a part that is full overflows into the next. What a step has written of a region is a use of it only
where it begins at the region's usual place and has no gaps: a ring or a cache is filled elsewhere in each step, and
bytes say nothing of how full it is.

Used by `Headroom`, under the debugger's lock.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import msgspec

from shadowgraph.checks.row_epochs import is_constant, is_sure
from shadowgraph.model.buffers import Buffer, Role
from shadowgraph.model.graphs import Graph
from shadowgraph.model.launches import Access
from shadowgraph.model.ranges import ByteRange, RangeIndex, RangeSet
from shadowgraph.model.views import TensorView
from shadowgraph.tracking.writes import Write

_PARTS = 1024  # of one region in one step; the use of one that is written in more is not known
_HITS = 4096  # written ranges whose regions are kept
_ROWS = 256  # parts of one buffer; one that is read in more is left out


@dataclass(slots=True, eq=False)
class Region:
    """A part of a buffer, and what was written of it since the last replay that reads it.

    Attributes
    ----------
    where
        Its bytes: their number is its capacity.
    itemsize, dtype
        Of an entry, as graphs read it.
    pitch
        Bytes of one row of a table of several rows; 0 for others.
    readers
        Serials of the graphs that read it.
    since
        When it became known, or when writes were last missed, by the clock: what was written before the first replay
        after that is not all known, or belongs to no step.
    base
        Where the written bytes begin, from the start; None before the first ones.
    by_row
        Whether rows are filled in part, so that the use counts within a row.
    moves
        Whether steps write it at different places, so that its use is not known.
    wrote, write, inside
        Parts that were written since, in order of the writes, the last launch that did, and whether a node of a graph
        did.
    blurred
        Whether a launch may have written it whose bytes are not known.
    planned
        Bytes that a plan has said the coming replay uses.
    """

    buffer: Buffer
    where: ByteRange
    dtype: str
    itemsize: int
    pitch: int
    since: int
    readers: set[int] = field(default_factory=set)
    base: int | None = None
    by_row: bool = False
    moves: bool = False
    wrote: list[ByteRange] = field(default_factory=list)
    write: Write | None = None
    inside: bool = False
    blurred: bool = False
    planned: int | None = None
    by_plan: bool = False

    @property
    def capacity(self) -> int:
        """Entries of the region, or of one row where the use counts within rows."""
        return (self.pitch if self.by_row else self.where.nbytes) // self.itemsize

    @property
    def row(self) -> int | None:
        """Its number, if it is one of several rows of its buffer."""
        pitch = _pitch(self.buffer)
        if self.is_whole or pitch != self.where.nbytes:
            return None
        return (self.where.start - self.buffer.start) // pitch

    @property
    def is_whole(self) -> bool:
        """Whether it is all of its buffer."""
        return self.where.nbytes == self.buffer.nbytes

    def view(self) -> TensorView:
        """The region as a flat tensor."""
        return TensorView(
            address=self.where.start,
            storage_address=self.buffer.start,
            storage_nbytes=self.buffer.nbytes,
            shape=(self.where.nbytes // self.itemsize,),
            stride=(1,),
            dtype=self.dtype,
            itemsize=self.itemsize,
            device=self.buffer.device,
        )

    def note(self, parts: list[ByteRange], write: Write, inside: bool, sure: bool) -> None:
        """A launch has written, or may have written, some bytes."""
        self.blurred = self.blurred or not sure
        if self.inside and not inside:
            self.wrote.clear()  # host code fills it: what graphs add is no use of its own
        if inside and not self.inside and (self.wrote or self.base is not None):
            return
        self.inside = inside
        self.wrote += parts
        if len(self.wrote) > _PARTS:
            self.wrote = list(RangeSet.of(self.wrote))
            self.blurred = self.blurred or len(self.wrote) > _PARTS
        # Without its stores: they are of a budget that all launches share.
        self.write = write if write.stores is None else msgspec.structs.replace(write, stores=None)

    def take(self, complete: bool) -> int | None:
        """The entries in use at a replay that begins, or None where they are not known; starts over.

        Parameters
        ----------
        complete
            Whether all writes since the last replay were seen.
        """
        wrote, blurred, planned = self.wrote, self.blurred, self.planned
        self.wrote, self.blurred, self.planned = [], False, None
        if planned is not None:
            return min(planned, self.where.nbytes) // self.itemsize
        if self.by_plan or self.moves or blurred or not complete:
            return None
        parts = wrote if len(wrote) < 2 else list(RangeSet.of(wrote))
        nbytes = self._extent(parts) if parts else None
        return nbytes // self.itemsize if nbytes is not None else None

    def _extent(self, parts: list[ByteRange]) -> int | None:
        """How far some written bytes reach: within a row, or from the start."""
        start, pitch = self.where.start, self.pitch
        if pitch and all((part.start - start) % pitch == 0 for part in parts):
            if self.by_row or len(parts) > 1:
                self.by_row = self.by_row or any(part.nbytes % pitch for part in parts)
                if self.by_row:
                    return max(min(part.nbytes, pitch) for part in parts)
            elif parts[0].nbytes < pitch:
                self.by_row = True
                return parts[0].nbytes
            elif parts[0].nbytes % pitch:
                return None  # full rows and a part of one, or a part of all rows as one
        elif self.by_row:
            self.moves = True
            return None
        return self._reach(parts)

    def _reach(self, parts: list[ByteRange]) -> int | None:
        """How far the only written stretch reaches from the start, if it begins where it always does."""
        base = parts[0].start - self.where.start
        if self.base is None:
            self.base = base
        if len(parts) > 1 or base != self.base:
            self.moves = len(parts) == 1
            return None
        return parts[0].stop - self.where.start


class Regions:
    """The regions of all live graphs."""

    def __init__(self) -> None:
        self._parts: dict[int, dict[int, dict[ByteRange, TensorView]]] = {}  # by serials of graph and buffer
        self._buffers: dict[int, Buffer] = {}  # by serial
        self._seen: dict[int, set[ByteRange]] = {}  # parts that graphs read, by the buffer's serial
        self._known: dict[int, dict[ByteRange, Region]] = {}  # by the buffer's serial
        self._planned: dict[int, dict[ByteRange, Region]] = {}  # of buffers that only a plan has named
        self._index: RangeIndex[Region] = RangeIndex()
        self._hits: dict[ByteRange, list[tuple[Region, list[ByteRange]]]] = {}

    def __iter__(self) -> Iterator[Region]:
        for regions in (*self._known.values(), *self._planned.values()):
            yield from regions.values()

    def captured(self, graph: Graph, now: int) -> list[Region]:
        """Add the static buffers that a new graph reads and does not write itself; returns the regions that have
        ended, where the graph divides a buffer in another way."""
        static = [b for b in graph.inputs.values() if b.nbytes and b.role is not Role.POOL and b.alive]
        found, made = _read_by(graph, static)
        ended: list[Region] = []
        divided = False
        for buffer in static:
            if buffer.serial in found and not made.overlaps(buffer.range):
                self._buffers[buffer.serial] = buffer
                self._parts.setdefault(graph.serial, {})[buffer.serial] = found[buffer.serial]
                if self._is_new(graph.serial, buffer, found[buffer.serial]):
                    ended += self._divide(buffer, now)
                    divided = True
        if divided:
            self._rebuild()
        return ended

    def _is_new(self, serial: int, buffer: Buffer, parts: dict[ByteRange, TensorView]) -> bool:
        """Whether a graph reads parts of a buffer that no other one reads; if not, it reads the same regions."""
        seen = self._seen.setdefault(buffer.serial, set())
        if parts.keys() <= seen:
            self._note_reader(serial, buffer, parts)
            return False
        seen.update(parts)
        return True

    def _note_reader(self, serial: int, buffer: Buffer, parts: Iterable[ByteRange]) -> None:
        """A graph reads parts of a buffer that others read as well."""
        span = RangeSet.of(parts)
        for where, region in self._known.get(buffer.serial, {}).items():
            if span.overlaps(where):
                region.readers.add(serial)

    def keep(self, graphs: Iterable[int]) -> list[Region]:
        """Forget freed buffers, and graphs other than these; returns the regions that have ended."""
        live = set(graphs)
        self._parts = {serial: parts for serial, parts in self._parts.items() if serial in live}
        read = {buffer for parts in self._parts.values() for buffer in parts}
        ended: list[Region] = []
        for known in (self._known, self._planned):
            for serial, regions in list(known.items()):
                of_live = known is self._planned and any(each.readers & live for each in regions.values())
                if not self._buffers[serial].alive or (serial not in read and not of_live):
                    ended += known.pop(serial).values()
        left = {*self._known, *self._planned}
        self._seen = {serial: parts for serial, parts in self._seen.items() if serial in self._known}
        self._buffers = {serial: buffer for serial, buffer in self._buffers.items() if serial in left}
        if ended:
            self._rebuild()
        return ended

    def _divide(self, buffer: Buffer, now: int) -> list[Region]:
        """Divide a buffer into regions anew, and keep those that stay the same; returns the others."""
        before = self._known.get(buffer.serial, {})
        read = {serial: parts[buffer.serial] for serial, parts in self._parts.items() if buffer.serial in parts}
        views = {part: view for parts in read.values() for part, view in parts.items()}
        spans = {serial: RangeSet.of(parts) for serial, parts in read.items()}
        pitch, made, index = _pitch(buffer), {}, RangeIndex(views.items())
        for where in _filled(buffer, _joined(views), pitch):
            inner = index.overlapping(where.start, where.stop)
            view = max(inner, key=lambda each: each[0].nbytes)[1] if inner else next(iter(views.values()))
            region = before.get(where)
            if region is None or region.itemsize != view.itemsize:
                rows = pitch if pitch and where.nbytes > pitch else 0
                region = Region(buffer, where, view.dtype, view.itemsize, rows, now)
            region.readers.update(serial for serial, span in spans.items() if span.overlaps(where) or not inner)
            made[where] = region
        self._known[buffer.serial] = made
        return [region for region in before.values() if made.get(region.where) is not region]

    def _rebuild(self) -> None:
        regions = (region for of_buffer in self._known.values() for region in of_buffer.values())
        self._index, self._hits = RangeIndex((region.where, region) for region in regions), {}

    def written(self, write: Write, inside: bool) -> list[Region]:
        """Note a launch's writes; returns the regions that it has written, or may have. One value everywhere is
        padding, or a reset, and no use."""
        if is_constant(write):
            return []
        sure, hit = is_sure(write), []
        for region, parts in self._hit(write.ranges):
            region.note(parts, write, inside, sure)
            hit.append(region)
        return hit

    def _hit(self, ranges: RangeSet) -> Sequence[tuple[Region, list[ByteRange]]]:
        """The regions with some of these bytes, and which; kept for single ranges, as most steps write the same."""
        parts = tuple(ranges)
        if not parts:
            return ()
        known = self._hits.get(parts[0]) if len(parts) == 1 else None
        if known is None:
            found = self._index.overlapping(parts[0].start, parts[-1].stop)
            inner = [(region, ranges.intersection(where)) for where, region in found]
            known = [(region, within) for region, within in inner if within]
            if len(parts) == 1:
                if len(self._hits) >= _HITS:
                    self._hits.clear()
                self._hits[parts[0]] = known
        return known

    def planned(self, buffer: Buffer, view: TensorView, nbytes: int, serial: int, now: int) -> Region:
        """Note how many of the first bytes of a view a plan uses for the next replay of a graph."""
        where = view.hull
        regions = self._known.get(buffer.serial, {})
        if where not in regions:
            regions = self._planned.setdefault(buffer.serial, {})
            self._buffers[buffer.serial] = buffer
        region = regions.get(where)
        if region is None:
            region = regions[where] = Region(buffer, where, view.dtype, view.itemsize, 0, now)
        region.readers.add(serial)
        region.planned, region.by_plan = nbytes, True
        return region


def _views(graph: Graph) -> Iterable[tuple[TensorView, set[Access]]]:
    """Each view that a graph was given, with the accesses that its launches may make."""
    found: dict[TensorView, set[Access]] = {}
    for _, pointer in graph.pointers():
        found.setdefault(pointer.view, set()).add(pointer.access)
    return found.items()


def _pitch(buffer: Buffer) -> int:
    """Bytes of a row of a buffer with several dimensions; 0 for others."""
    return buffer.shape[-1] * buffer.itemsize if len(buffer.shape) > 1 else 0


def _joined(parts: Iterable[ByteRange]) -> list[ByteRange]:
    """The parts, those that overlap as one. Parts that only touch stay apart."""
    made: list[ByteRange] = []
    for part in sorted(set(parts), key=lambda each: each.start):
        if made and part.start < made[-1].stop:
            made[-1] = ByteRange(made[-1].start, max(made[-1].stop, part.stop))
        else:
            made.append(part)
    return made


def _filled(buffer: Buffer, spans: list[ByteRange], pitch: int) -> Iterator[ByteRange]:
    """The regions that spans which graphs read stand for. Where these are rows, each row is one, those that no graph
    reads too. Else a region goes up to the next span, or to the buffer's end: what lies between may be for larger
    batches."""
    if len(spans) > _ROWS:
        return
    few = pitch > 0 and pitch * _ROWS >= buffer.nbytes
    if few and all(span.nbytes == pitch and (span.start - buffer.start) % pitch == 0 for span in spans):
        yield from (ByteRange(start, start + pitch) for start in range(buffer.start, buffer.stop, pitch))
        return
    for span, following in zip(spans, [*spans[1:], None], strict=True):
        yield ByteRange(span.start, following.start if following is not None else buffer.stop)


def _read_by(graph: Graph, static: list[Buffer]) -> tuple[dict[int, dict[ByteRange, TensorView]], RangeSet]:
    """The parts of static buffers that a graph was given views of, by serial, and the bytes that it writes itself."""
    found: dict[int, dict[ByteRange, TensorView]] = {}
    index = RangeIndex((buffer.range, buffer) for buffer in static)
    made = RangeSet()
    for view, accesses in _views(graph):
        if accesses & {Access.WRITE, Access.READ_WRITE}:
            made.add(view.hull)
        elif view.nbytes:
            for where, buffer in index.overlapping(view.start, view.stop):
                part = ByteRange(max(where.start, view.start), min(where.stop, view.stop))
                found.setdefault(buffer.serial, {})[part] = view
    return found, made
