"""The bytes that must not matter to a graph: guards, slack, memory that nothing has written, declared padding.

Called by `UndefinedInfluence` as a replay begins, under the debugger's lock. Reads no memory of the program.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from shadowgraph.checks.base import Context
from shadowgraph.checks.undefined.facts import Source
from shadowgraph.checks.undefined.values import patterns, small
from shadowgraph.graphs.dispatch.schemas import puts_over
from shadowgraph.model.buffers import Buffer, Role
from shadowgraph.model.device_nodes import DeviceNode, Sureness
from shadowgraph.model.graphs import Access, Graph, Node, Pointer
from shadowgraph.model.guards import Side, guards_of
from shadowgraph.model.ranges import ByteRange, RangeSet
from shadowgraph.model.reruns import Fill
from shadowgraph.tracking.foreign import hold, still_there
from shadowgraph.tracking.readable import readable
from shadowgraph.tracking.writes import extent

MOST = 64 << 20  # bytes that are filled
_BYSTANDERS = 256 << 20  # bytes that are restored although the graph must not write them
_NEAR = 64 << 10  # bytes of slack on either side of a captured view, and of a guard, that are filled


@dataclass(frozen=True, slots=True, eq=False)
class Filled:
    """Bytes of one buffer, or next to it, that must not matter.

    Attributes
    ----------
    skipped
        Whether an operator that stores in some rows was given them, and no replay so far has defined them.
    """

    buffer: Buffer
    where: ByteRange
    source: Source
    dtype: str
    itemsize: int
    side: Side | None = None
    skipped: bool = False

    def fill(self, which: int, part: ByteRange | None = None) -> Fill:
        """The fill with the first (0) or the second value (1), or with small ones (3, 4), of all of it or of a part."""
        where = part or self.where
        pattern = (patterns if which < 2 else small)(self.dtype, self.itemsize)[which % 3]
        shift = (where.start - self.buffer.start) % self.itemsize  # elements count from the buffer's start
        return Fill(where, pattern[shift:] + pattern[:shift])


@dataclass(slots=True)
class _Room:
    left: int = MOST

    def take(self, filled: Filled) -> bool:
        fits = 0 < filled.where.nbytes <= self.left
        self.left -= filled.where.nbytes if fits else 0
        return fits


def fills_of(
    graph: Graph,
    context: Context,
    touched: Sequence[RangeSet],
    padding: Mapping[int, RangeSet],
    unsure: bool,
    defined: RangeSet | None,
) -> list[Filled]:
    """What is filled before a run of a graph, disjoint, the bytes of one buffer one after the other.

    Parameters
    ----------
    touched
        Memory that eager code, or another graph that was given it, may write.
    padding
        By the buffer's serial: bytes declared not to matter.
    unsure
        Whether writes passed unseen since the capture, so that no memory of it is known to be unwritten.
    defined
        What earlier replays left of the rows that operators may skip (`defined_by`); None where that is not known.
    """
    own, claimed = own_buffers(graph, context), context.allocator.guards.claimed()
    alone = [buffer for buffer in own.values() if len(claimed.get(buffer.start, ())) < 2]
    inputs = [b for b in graph.inputs.values() if b.nbytes and still_there(b) and b.serial not in own]
    room, taken, found = _Room(), RangeSet(), list[Filled]()
    candidates = [
        *(each for buffer in inputs for each in _padding(graph, buffer, padding)),
        *(() if unsure else _unwritten(graph, own, touched, defined)),
        *(each for buffer in inputs if buffer.role is not Role.POOL for each in _slack(graph, buffer)),
        *(each for buffer in (*inputs, *alone) for each in _guards(graph, buffer, context)),
    ]
    for each in candidates:
        if not taken.overlaps(each.where) and room.take(each):
            taken.add(each.where)
            found.append(each)
    return found


def own_buffers(graph: Graph, context: Context) -> dict[int, Buffer]:
    """The buffers that a graph's capture allocated, by serial; also those of tensors that are gone, whose memory the
    graph keeps."""
    guards = context.allocator.guards
    claimed = (buffer for buffers in guards.claimed().values() for buffer in buffers)
    known = (*context.ledger, *guards.tenants.values(), *claimed)
    mine = (b for b in known if b.role is Role.POOL and b.graph == graph.serial and b.nbytes)
    return {buffer.serial: buffer for buffer in mine if readable(buffer, context.allocator)}


def bystanders(context: Context, held: list[object]) -> list[ByteRange]:
    """Memory that a graph must not write and may damage, to be restored as well, so that its replay damages it as
    without: guards, and buffers as far as there is room, small ones first. Of a device only what is certainly mapped.

    Parameters
    ----------
    held
        Receives references that keep the memory in place.
    """
    allocator, left = context.allocator, min(_BYSTANDERS, context.settings.locate_memory // 4)
    found: list[ByteRange] = []

    def mapped(buffer: Buffer) -> bool:
        ours = buffer.role is Role.STATIC or not context.engine.asynchronous
        return ours and buffer.device == allocator.device and not buffer.lent

    for buffer in sorted(filter(mapped, context.ledger), key=lambda each: each.nbytes):
        left -= buffer.nbytes
        kept = hold(buffer) if left >= 0 and readable(buffer, allocator) else None
        if kept is not None and buffer.nbytes:
            held.append(kept)
            found.append(buffer.range)
    for buffer in filter(mapped, list(allocator.guards.tenants.values())):
        for guard in guards_of(buffer, context.settings.near_guard):
            left -= guard.whole.nbytes
            if left >= 0:
                found.append(guard.whole)
    return found


def typed(graph: Graph, buffer: Buffer, where: ByteRange) -> tuple[str, int]:
    """Dtype and size of the elements that a graph has in some bytes of a buffer, or next to them."""
    near = graph.pointing_into(where) or graph.pointing_into(buffer.range)
    views = [p.view for _, p in near if (p.view.address - buffer.start) % p.view.itemsize == 0]
    return (views[0].dtype, views[0].itemsize) if views else (buffer.dtype, buffer.itemsize)


def _made(graph: Graph, buffer: Buffer, where: ByteRange, source: Source, side: Side | None = None) -> Filled:
    return Filled(buffer, where, source, *typed(graph, buffer, where), side)


def _padding(graph: Graph, buffer: Buffer, padding: Mapping[int, RangeSet]) -> Iterator[Filled]:
    for part in padding.get(buffer.serial, RangeSet()).intersection(buffer.range):
        for where in graph.captured(part):
            yield _made(graph, buffer, where, Source.PADDING)


def _slack(graph: Graph, buffer: Buffer) -> Iterator[Filled]:
    """Bytes beyond the captured views, near these. Of a buffer that a node was given in a way that is not known, none:
    its kernel may read anywhere."""
    if not graph.touches(buffer.range) or _is_led_elsewhere(graph, buffer):
        return
    for gap in RangeSet.of([buffer.range]) - graph.spans:
        for where in _ends(gap, gap.start > buffer.start, gap.stop < buffer.stop):
            yield _made(graph, buffer, where, Source.SLACK, Side.SLACK)


def _ends(gap: ByteRange, at_start: bool, at_stop: bool) -> Iterator[ByteRange]:
    """The ends of a gap that lie next to captured views."""
    if gap.nbytes <= 2 * _NEAR:
        yield gap
        return
    if at_start:
        yield ByteRange(gap.start, gap.start + _NEAR)
    if at_stop:
        yield ByteRange(gap.stop - _NEAR, gap.stop)


def _guards(graph: Graph, buffer: Buffer, context: Context) -> Iterator[Filled]:
    """Guards that are checked; none where another allocator may have given the bytes to others."""
    if (
        context.allocator.guards.tenants.get(buffer.start) is not buffer
        or buffer.lent
        or not graph.touches(buffer.range)
    ):
        return
    for guard in guards_of(buffer, context.settings.near_guard):
        whole, before = guard.whole, guard.side is Side.BEFORE
        nbytes = min(whole.nbytes, _NEAR)
        where = ByteRange(whole.stop - nbytes, whole.stop) if before else ByteRange(whole.start, whole.start + nbytes)
        yield _made(graph, buffer, where, Source.GUARD, guard.side)


def may_skip(graph: Graph, own: Mapping[int, Buffer]) -> bool:
    """Whether an operator stores in some rows of memory of the capture and may skip others."""
    put = _put(graph)
    return any(put.overlaps(buffer.range) for buffer in own.values()) if put else False


def _put(graph: Graph) -> RangeSet:
    """Bytes of which an operator stores in some, by an index or a mask."""
    return RangeSet.of(part for node, p in graph.pointers() if _puts(node, p) for part in extent(p.view)[0])


def _puts(node: Node, pointer: Pointer) -> bool:
    return pointer.access is Access.READ_WRITE and puts_over(node.launch.name, node.launch.accumulates)


def _unwritten(
    graph: Graph, own: Mapping[int, Buffer], by_others: Sequence[RangeSet], earlier: RangeSet | None
) -> Iterator[Filled]:
    """Memory of the capture that nothing is known to write before it is read.

    Rows that an operator stores by an index may be a state that is built over several replays, so that they count until
    a replay has defined them; what a kernel was given counts always.
    """
    defined, state, touched = _accesses(graph)
    put = _put(graph)
    kept = put if earlier is None else RangeSet.of(part for one in put for part in earlier.intersection(one))
    for buffer in own.values():
        if buffer.alive and not any(p.may_write for _, p in graph.pointing_into(buffer.range)):
            continue  # an input that lies in the capture's memory
        rest = RangeSet.of([buffer.range])
        for known in (defined, state, kept, *by_others):
            rest -= known
        for skipped, parts in ((False, rest - put), (True, rest - (rest - put))):
            for part in parts:
                if touched.overlaps(part):
                    yield replace(_made(graph, buffer, part, Source.UNWRITTEN), skipped=skipped)


def _accesses(graph: Graph) -> tuple[RangeSet, RangeSet, RangeSet]:
    """Bytes that an operator certainly overwrites before any other access; bytes that carry values from one replay to
    the next, read before they are written; all bytes of captured views. A kernel may read and write what it is given,
    and is taken for the first writer, as is an operator that stores by an index or a mask."""
    defined, early, written, touched = RangeSet(), RangeSet(), RangeSet(), RangeSet()
    for _, pairs in groupby(graph.pointers(), key=lambda pair: pair[0].index):
        given = list(pairs)
        pointers = [pointer for _, pointer in given]
        for node, pointer in given:
            if pointer.access in (Access.READ, Access.READ_WRITE) and not _puts(node, pointer):
                _add(early, extent(pointer.view)[0] - written)
        for pointer in pointers:
            ranges, gaps = extent(pointer.view)
            if pointer.access is Access.WRITE and not gaps:
                _add(defined, ranges - touched)
            if pointer.may_write:
                _add(written, ranges)
        for pointer in pointers:
            touched.add(pointer.view.hull)
    state = RangeSet.of(part for one in early for part in written.intersection(one))
    return defined, state, touched


def _add(known: RangeSet, ranges: RangeSet) -> None:
    for part in ranges:
        known.add(part)


def _is_led_elsewhere(graph: Graph, buffer: Buffer) -> bool:
    """Whether a node has a pointer into a buffer that is no view of its launch: kernels that are launched where no view
    is seen."""
    return any(_leads_elsewhere(graph, node, buffer.range) for node in graph.read_nodes or ())


def _leads_elsewhere(graph: Graph, node: DeviceNode, where: ByteRange) -> bool:
    launch = graph.launch_of(node) if node.launch is not None else None
    hulls = [p.view.hull for p in launch.pointers] if launch is not None else []
    for word in node.words:
        led = word.sureness is not Sureness.LOW and where.contains(word.address)
        if led and not any(hull.contains(word.address) for hull in hulls):
            return True
    return any(_leads_elsewhere(graph, inner, where) for inner in node.inner)
