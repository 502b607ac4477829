"""Write log: the launches that wrote memory since the last checkpoint, with their ranges, to find the culprit of a
broken byte.

Not thread-safe: the caller holds the debugger's lock.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from shadowgraph.model.launches import Launch, LaunchKind
from shadowgraph.model.ranges import ByteRange, RangeSet
from shadowgraph.model.views import TensorView
from shadowgraph.tracking.stores import StoreLog

LIMIT = 4096  # writes remembered between two checkpoints
ROWS = 1024  # most contiguous runs of a strided view that are kept apart; computed for every eager launch


class Write(msgspec.Struct, frozen=True):
    """The writes of one launch.

    Attributes
    ----------
    ranges
        Written bytes: exact from a store log, else the bytes of the arguments that the launch may write.
    node
        Index in the replayed graph, or None for an eager launch.
    opaque
        It may have written anywhere: a callable, regardless of its declaration.
    hull
        `ranges` include the gaps of a strided argument, which the launch may have left unwritten.
    prepares
        Serial of the graph whose next replay this was declared to prepare, or None.
    """

    launch: Launch
    ranges: RangeSet
    stores: StoreLog | None = None
    node: int | None = None
    opaque: bool = False
    hull: bool = False
    prepares: int | None = None


def extent(view: TensorView) -> tuple[RangeSet, bool]:
    """The bytes of a view, and whether they include its gaps, as for more than `ROWS` contiguous runs."""
    exact = view.ranges(ROWS)
    return (RangeSet.of([view.hull]), True) if exact is None else (RangeSet.of(exact), False)


def _joint_extent(views: Sequence[TensorView]) -> tuple[RangeSet, bool]:
    extents = [extent(view) for view in views]
    ranges = extents[0][0] if len(extents) == 1 else RangeSet.of(part for each, _ in extents for part in each)
    return ranges, any(hull for _, hull in extents)


def write_of(launch: Launch, stores: StoreLog | None, node: int | None = None, *, prepares: int | None = None) -> Write:
    """The writes of a launch, from its stores, or from its pointers where stores are unknown."""
    if stores is not None:
        return Write(launch, stores.ranges, stores, node, prepares=prepares)
    written = [p.view for p in launch.pointers if launch.may_store(p)]
    if launch.kind is LaunchKind.ATEN:
        ranges, hull = _joint_extent(written)
        return Write(launch, ranges, None, node, hull=hull, prepares=prepares)
    # A kernel gets an address and its own strides: it may write into any gap.
    gaps = any(not view.contiguous and view.ranges(1) is None for view in written)
    opaque = launch.kind is LaunchKind.CALLABLE
    ranges = RangeSet.spanning([(view.address, view.stop) for view in written])
    return Write(launch, ranges, None, node, opaque=opaque, hull=gaps, prepares=prepares)


_Deferred = tuple[Launch, int | None]  # the launch, and the later `Write.prepares`


class WriteLog:
    """Writes in order, bounded. Not thread-safe: one for each debugger, under its lock.

    Attributes
    ----------
    entries
        The writes, deferred ones in their raw form; read-only for callers. The replay path tests whether it is empty,
        where a method would cost more.
    dropped
        Writes dropped because too many came between two checkpoints.
    """

    def __init__(self, dropped: int = 0) -> None:
        self.entries: list[Write | _Deferred] = []
        self.dropped = dropped
        self._stores_known = False

    def add(self, write: Write) -> None:
        """Add a write."""
        if write.stores is not None:
            self._stores_known = True
        self._append(write)

    def extend(self, writes: Sequence[Write]) -> None:
        """Add writes whose stores are unknown, in order."""
        self.entries += writes
        past = len(self.entries) - LIMIT
        if past > 0:
            del self.entries[:past]
            self.dropped += past

    def _append(self, write: Write | _Deferred) -> None:
        if len(self.entries) >= LIMIT:
            del self.entries[0]
            self.dropped += 1
        self.entries.append(write)

    def defer(self, launch: Launch, prepares: int | None) -> None:
        """Add the write of a launch whose stores are unknown; it is computed when read."""
        self._append((launch, prepares))

    def _all(self) -> list[Write]:
        entries = tuple(self.entries)  # other threads may add meanwhile
        return [write_of(each[0], None, prepares=each[1]) if isinstance(each, tuple) else each for each in entries]

    def culprits(self, *parts: ByteRange) -> list[Write]:
        """Writes that hit one of the ranges, in order; opaque ones only when no other write did."""
        writes = self._all()
        hits = [write for write in writes if any(write.ranges.overlaps(part) for part in parts)]
        return hits or [write for write in writes if write.opaque]

    def stored(self) -> list[Write]:
        """Writes with known stores; deferred ones have none."""
        entries = tuple(self.entries)
        return [each for each in entries if not isinstance(each, tuple) and each.stores is not None]

    def clear(self) -> None:
        self.entries.clear()

    def __iter__(self) -> Iterator[Write]:
        return iter(self._all())

    def __len__(self) -> int:
        return len(self.entries)
