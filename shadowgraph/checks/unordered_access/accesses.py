"""The bytes that a launch writes, and those that a graph reads from outside, each with how sure that is.

Pure functions over the model. A kernel's argument says where its accesses may lie, not where they do: many leave a part
of it alone on purpose, such as the pages of a cache that belong to other requests. So an overlap of two arguments is no
overlap of two accesses.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from itertools import groupby

from shadowgraph.checks.row_epochs import is_sure
from shadowgraph.model.graphs import Graph
from shadowgraph.model.launches import Access, Launch, LaunchKind, Pointer
from shadowgraph.model.ranges import ByteRange, RangeSet
from shadowgraph.tracking.writes import Write, extent

# In names of operators that may leave elements of an argument unread.
_PARTIAL = ("index", "gather", "scatter", "embedding", "take", "put", "attention", "mask", "bag", "resize", "set_")
_IN_FULL = {"index", "indices", "mask"}  # arguments that these read in full


class Reach(IntEnum):
    """How much of the bytes is accessed."""

    PART = 0  # some of them
    LIKELY = 1  # all of them, as far as the kernel's code tells
    ALL = 2


@dataclass(frozen=True, slots=True)
class Accessed:
    """Bytes that are accessed.

    Attributes
    ----------
    ranges
        Where the accesses lie.
    given
        All bytes of the argument, of which `ranges` may be a part.
    """

    ranges: RangeSet
    given: ByteRange
    reach: Reach


def writes_of(write: Write) -> Iterator[Accessed]:
    """What a launch writes. Nothing where it is not known that it writes, or that it does so on the current stream: a
    library's operator may have streams, and waits, of its own."""
    launch, parts = write.launch, list(write.ranges)
    if not parts:
        return
    if write.stores is not None or (launch.kind is LaunchKind.ATEN and launch.name.startswith("aten.")):
        given = ByteRange(parts[0].start, parts[-1].stop)
        yield Accessed(write.ranges, given, Reach.ALL if is_sure(write) else Reach.PART)
    elif launch.kind is LaunchKind.TRITON:
        for pointer in launch.pointers:
            reach = _stores(launch, pointer)
            if reach is not None and pointer.view.nbytes:
                yield Accessed(RangeSet.of([pointer.view.hull]), pointer.view.hull, reach)


def _stores(launch: Launch, pointer: Pointer) -> Reach | None:
    if pointer.access is not Access.UNKNOWN:  # of compiled code
        return Reach.PART if pointer.may_write else None
    use = launch.code.use(pointer.argument) if launch.code is not None else None
    if use is None or not use.stores:
        return None
    return Reach.LIKELY if use.whole and pointer.view.contiguous else Reach.PART


def reads_of(graph: Graph, where: ByteRange) -> Iterator[Accessed]:
    """What a graph reads of a range before it overwrites it; equal arguments once."""
    overwritten, known = RangeSet(), set[tuple[ByteRange, Reach]]()
    for _, pairs in groupby(graph.pointing_into(where), key=lambda pair: pair[0].index):
        uses = [(node.launch, pointer) for node, pointer in pairs]
        for launch, pointer in uses:
            reach, hull = _loads(launch, pointer), pointer.view.hull
            if reach is None or (hull, reach) in known:
                continue
            ranges = extent(pointer.view)[0] - overwritten
            if ranges:
                known.add((hull, reach))
                yield Accessed(ranges, hull, reach)
        for launch, pointer in uses:
            if pointer.access is Access.WRITE and launch.kind is LaunchKind.ATEN:
                _overwrite(overwritten, pointer)


def _overwrite(overwritten: RangeSet, pointer: Pointer) -> None:
    ranges, gaps = extent(pointer.view)
    for part in ranges if not gaps else ():
        overwritten.add(part)


def _loads(launch: Launch, pointer: Pointer) -> Reach | None:
    if not pointer.may_read:
        return None
    if launch.kind is LaunchKind.ATEN:
        namespace, _, rest = launch.name.partition(".")
        partial = any(word in rest.split(".")[0] for word in _PARTIAL) and _argument(pointer) not in _IN_FULL
        partial |= namespace != "aten"
        return Reach.PART if partial or extent(pointer.view)[1] else Reach.ALL
    use = launch.code.use(pointer.argument) if launch.code is not None else None
    if use is None:
        return Reach.PART
    if not use.loads:
        return None
    return Reach.LIKELY if use.whole and pointer.view.contiguous else Reach.PART


def _argument(pointer: Pointer) -> str:
    return pointer.argument.partition("[")[0]


def meeting(written: Accessed, read: Accessed) -> tuple[RangeSet, bool] | None:
    """The bytes that a write and a read have in common, and whether that is certain; None where they may well have
    none."""
    common = RangeSet.of(part for each in written.ranges for part in read.ranges.intersection(each))
    if not common:
        return None
    if written.reach is read.reach is Reach.ALL:
        return common, True
    within = not written.ranges - read.ranges  # whatever is written is read
    around = _covers(written.ranges, read.given)  # whatever is read is written
    if read.reach is Reach.ALL:
        return (common, False) if within else None
    if written.reach is Reach.ALL:
        return (common, False) if around else None
    likely = written.reach is read.reach is Reach.LIKELY
    return (common, False) if likely and (within or around) else None


def _covers(ranges: RangeSet, where: ByteRange) -> bool:
    return any(part.covers(where) for part in ranges)
