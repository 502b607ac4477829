"""Byte ranges, sets of bytes, and an index from addresses to ranges.

Addresses and sizes are Python integers, in bytes. Every range is half open: ``start`` belongs to it, ``stop`` does not.
Independent of tensors and devices. No locks: the owner of a set or an index serialises access.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from math import inf
from typing import Generic, TypeVar

import msgspec

T = TypeVar("T")


class ByteRange(msgspec.Struct, frozen=True, order=True):
    """The bytes from `start` up to, not including, `stop`; ordered by start, then stop.

    An empty range (``start == stop``) has a position but no bytes, so it overlaps nothing.

    Raises
    ------
    ValueError
        If `stop` is less than `start`.
    """

    start: int
    stop: int

    def __post_init__(self) -> None:
        if self.stop < self.start:
            raise ValueError(f"a range cannot stop ({self.stop:#x}) before it starts ({self.start:#x})")

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return self.stop - self.start

    def overlaps(self, other: ByteRange) -> bool:
        """Whether at least one byte is in both; touching ranges share none."""
        return max(self.start, other.start) < min(self.stop, other.stop)

    def intersect(self, other: ByteRange) -> ByteRange | None:
        """The bytes in both, or None where there are none."""
        start, stop = max(self.start, other.start), min(self.stop, other.stop)
        return ByteRange(start, stop) if start < stop else None

    def contains(self, address: int) -> bool:
        """Whether the byte at `address` is in the range."""
        return self.start <= address < self.stop

    def covers(self, other: ByteRange) -> bool:
        """Whether `other` lies within the bounds of this range; an empty `other` may sit on either bound."""
        return self.start <= other.start and other.stop <= self.stop

    def shift(self, n: int) -> ByteRange:
        """The range moved by `n` bytes, up if positive."""
        return ByteRange(self.start + n, self.stop + n)


class RangeSet:
    """A mutable set of bytes, held as sorted, disjoint ranges; touching ranges merge, empty ones vanish.

    Each operation on one range costs O(log n + k) for n ranges held and k of them touched, apart from the move
    of list elements. Iteration yields `ByteRange` in ascending order; ``len`` counts ranges, `nbytes` bytes.
    """

    __slots__ = ("_nbytes", "_starts", "_stops")

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._stops: list[int] = []
        self._nbytes = 0

    @classmethod
    def of(cls, ranges: Iterable[ByteRange]) -> RangeSet:
        """The union of `ranges`, which may overlap and come in any order."""
        return cls.spanning((piece.start, piece.stop) for piece in ranges)

    @property
    def nbytes(self) -> int:
        """Number of bytes in the set."""
        return self._nbytes

    def add(self, span: ByteRange) -> None:
        """Put every byte of `span` into the set."""
        if not span.nbytes:
            return
        lo, hi = bisect_left(self._stops, span.start), bisect_right(self._starts, span.stop)
        start, stop = min([span.start, *self._starts[lo:hi]]), max([span.stop, *self._stops[lo:hi]])
        self._splice(lo, hi, [start], [stop])

    @classmethod
    def spanning(cls, pairs: Iterable[tuple[int, int]]) -> RangeSet:
        """The bytes from each start up to its stop: `of` without `ByteRange` objects."""
        made = cls()
        starts, stops = made._starts, made._stops
        for start, stop in sorted(pairs):
            if start >= stop:
                continue
            if not stops or start > stops[-1]:
                starts.append(start)
                stops.append(stop)
            elif stop > stops[-1]:
                stops[-1] = stop
        made._nbytes = sum(stops) - sum(starts)
        return made

    def discard(self, span: ByteRange) -> None:
        """Remove every byte of `span` from the set; bytes that are not in it are no error."""
        lo, hi = self._touched(span)
        if lo == hi:
            return
        first, last = self._starts[lo], self._stops[hi - 1]
        starts, stops = ([first], [span.start]) if first < span.start else ([], [])
        if span.stop < last:
            starts.append(span.stop)
            stops.append(last)
        self._splice(lo, hi, starts, stops)

    def intersection(self, span: ByteRange) -> list[ByteRange]:
        """The parts of `span` that are in the set, ascending."""
        lo, hi = self._touched(span)
        pairs = zip(self._starts[lo:hi], self._stops[lo:hi], strict=True)
        return [ByteRange(max(start, span.start), min(stop, span.stop)) for start, stop in pairs]

    def overlaps(self, span: ByteRange) -> bool:
        """Whether any byte of `span` is in the set."""
        lo, hi = self._touched(span)
        return lo < hi

    def clear(self) -> None:
        """Remove every byte."""
        self._splice(0, len(self._starts), [], [])

    def copy(self) -> RangeSet:
        """An independent set of the same bytes."""
        twin = RangeSet()
        twin._starts, twin._stops, twin._nbytes = self._starts[:], self._stops[:], self._nbytes
        return twin

    def _touched(self, span: ByteRange) -> tuple[int, int]:
        """The slice of the held ranges that share a byte with `span`."""
        lo = bisect_right(self._stops, span.start)
        return (lo, bisect_left(self._starts, span.stop)) if span.nbytes else (lo, lo)

    def _splice(self, lo: int, hi: int, starts: list[int], stops: list[int]) -> None:
        gone = sum(self._stops[lo:hi]) - sum(self._starts[lo:hi])
        self._nbytes += sum(stops) - sum(starts) - gone
        self._starts[lo:hi] = starts
        self._stops[lo:hi] = stops

    def __contains__(self, address: int) -> bool:
        i = bisect_right(self._stops, address)
        return i < len(self._starts) and self._starts[i] <= address

    def __iter__(self) -> Iterator[ByteRange]:
        return map(ByteRange, self._starts[:], self._stops[:])

    def __len__(self) -> int:
        return len(self._starts)

    def __bool__(self) -> bool:
        return bool(self._starts)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, RangeSet):
            return NotImplemented
        return self._starts == other._starts and self._stops == other._stops

    def __or__(self, other: RangeSet) -> RangeSet:
        return RangeSet.of(chain(self, other))

    def __sub__(self, other: RangeSet) -> RangeSet:
        rest = self.copy()
        cut = other if len(other) <= len(self) else chain.from_iterable(map(other.intersection, self))
        for piece in cut:
            rest.discard(piece)
        return rest

    def __repr__(self) -> str:
        return f"RangeSet({', '.join(f'[{r.start:#x}, {r.stop:#x})' for r in self)})"


class RangeIndex(Generic[T]):
    """Ranges that may overlap, each with a value, found by address.

    With k of n ranges found, a query after a bulk build costs O(log n + k) where the found are neighbours in order
    of start, and O(log n) for each found at worst. Ranges added later sit in up to log n further levels, each
    searched likewise. Changes cost O(log² n) amortised; the next query pays, so adds in a row cost one build.

    Parameters
    ----------
    items : iterable of (ByteRange, T)
        Loaded in bulk, with handles 0, 1, 2 and so on in their order.

    Notes
    -----
    Empty ranges overlap nothing, but `before` and `after` see them. A value is kept alive until its handle is
    removed; handles are never used twice. Queries reorganise the index: threads that share it need a lock around
    them too, and a finalizer, which the garbage collector can run in the middle of one, must queue its removals.
    """

    __slots__ = ("_items", "_levels", "_next", "_settled")

    def __init__(self, items: Iterable[tuple[ByteRange, T]] = ()) -> None:
        self._items: dict[int, tuple[ByteRange, T]] = dict(enumerate((span, value) for span, value in items))
        # Levels shrink by at least half from one to the next, and all handles of one are below those of the next.
        self._levels: list[_Level] = []
        self._next = len(self._items)
        self._settled = 0  # handles from here to _next are not in a level yet
        self._settle()

    def add(self, span: ByteRange, value: T) -> int:
        """Hold `span` with `value`, beside any equal one, and return the handle that removes it."""
        handle = self._next
        self._items[handle] = (span, value)
        self._next += 1
        return handle

    def remove(self, handle: int) -> None:
        """Drop one range and its value.

        Raises
        ------
        KeyError
            If `handle` was never issued or is removed already.
        """
        span, _ = self._items.pop(handle)
        if handle >= self._settled:
            return
        at = next(i for i, level in enumerate(self._levels) if handle <= level.newest)
        level = self._levels[at]
        level.remove(span, handle)
        if 2 * level.dead > len(level.handles):
            self._stack(at, [])

    def at(self, address: int) -> list[T]:
        """The values of the ranges that hold the byte at `address`, in order of start, then handle."""
        return [self._items[handle][1] for handle in self._hits(address, address + 1)]

    def overlapping(self, start: int, stop: int) -> list[tuple[ByteRange, T]]:
        """The ranges that share a byte with ``[start, stop)``, in order of start, then handle.

        Raises
        ------
        ValueError
            If `stop` is less than `start`.
        """
        if start < stop:
            return [self._items[handle] for handle in self._hits(start, stop)]
        ByteRange(start, stop)  # rejects a reversed query
        return []

    def before(self, address: int) -> tuple[ByteRange, T] | None:
        """The range with the largest stop that is at most `address`; of several the latest start, then handle."""
        return self._nearest(_ending, address)

    def after(self, address: int) -> tuple[ByteRange, T] | None:
        """The range with the smallest start that is at least `address`; of several the lowest handle."""
        return self._nearest(_beginning, -address)

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[tuple[ByteRange, T]]:
        """Iterate over a snapshot of the ranges and values, in order of start, then handle."""
        return iter(sorted(self._items.values(), key=lambda item: item[0].start))  # stable: handles ascend

    def _hits(self, start: int, stop: int) -> list[int]:
        self._settle()
        if len(self._levels) == 1:
            return self._levels[0].hits(start, stop)
        found = [handle for level in self._levels for handle in level.hits(start, stop)]
        found.sort(key=lambda handle: self._items[handle][0].start)  # stable, and handles ascend by level
        return found

    def _nearest(self, key: _Key, bound: int) -> tuple[ByteRange, T] | None:
        self._settle()
        entries = [level.floor(key, self._items).last(bound) for level in self._levels]
        best = max(filter(None, entries), default=None)
        return self._items[best[-1]] if best else None

    def _settle(self) -> None:
        if self._settled < self._next:
            self._stack(len(self._levels), [h for h in range(self._settled, self._next) if h in self._items])
            self._settled = self._next

    def _stack(self, keep: int, batch: list[int]) -> None:
        """Merge `batch`, the levels from `keep` on, and levels before that are less than twice as big into one."""
        items, levels = self._items, self._levels
        batch = [handle for level in levels[keep:] for handle in level.handles if handle in items] + batch
        while keep and len(levels[keep - 1].handles) < 2 * len(batch):
            keep -= 1
            batch = [handle for handle in levels[keep].handles if handle in items] + batch
        levels[keep:] = [_Level(batch, items)] if batch else []


_Items = Mapping[int, tuple[ByteRange, object]]
_Entry = tuple[int, int, int]  # search key, tie break, handle
_Key = Callable[[ByteRange, int], _Entry]


def _ending(span: ByteRange, handle: int) -> _Entry:
    return span.stop, span.start, handle


def _beginning(span: ByteRange, handle: int) -> _Entry:
    return -span.start, -handle, handle  # mirrored, so that one kind of search serves both directions


class _Level:
    """Ranges in order of start, under a tree of the furthest stop in each subtree; ranges leave, none join.

    The tree is a heap over the positions: children of node i are 2i and 2i + 1, the leaf of position p is
    ``size + p``. Its leaf is minus infinity where a range has no bytes or is removed, so no search meets it.
    `outer` spares most searches the tree: it leads from a range to the nearest before it that stopped later when the
    level was made, often the one around it, or to -1, as among disjoint ranges; from a removed range, one step back.
    """

    __slots__ = ("dead", "floors", "handles", "newest", "outer", "size", "starts", "tree")

    def __init__(self, handles: list[int], items: _Items) -> None:
        self.newest = max(handles)
        self.handles = sorted(handles, key=lambda handle: items[handle][0].start)
        spans = [items[handle][0] for handle in self.handles]
        self.starts = [span.start for span in spans]
        stops = [span.stop if span.nbytes else -inf for span in spans]
        self.size = 1 << (len(stops) - 1).bit_length()
        rows = [stops + [-inf] * (self.size - len(stops))]
        while len(rows[-1]) > 1:
            rows.append(list(map(max, rows[-1][::2], rows[-1][1::2])))
        self.tree = [-inf, *chain.from_iterable(reversed(rows))]
        self.outer: list[int] = []
        for at, stop in enumerate(stops):
            at -= 1
            while at >= 0 and stops[at] <= stop:
                at = self.outer[at]
            self.outer.append(at)
        self.dead = 0
        self.floors: dict[_Key, _Floor] = {}

    def hits(self, start: int, stop: int) -> list[int]:
        """Handles of the ranges with bytes in ``[start, stop)``, which must not be empty, in order."""
        handles, tree, outer, size = self.handles, self.tree, self.outer, self.size
        found = []
        at = bisect_left(self.starts, stop) - 1
        while at >= 0:
            if tree[size + at] > start:
                found.append(handles[at])
                at -= 1
            else:
                at = outer[at]
                if at >= 0 and tree[size + at] <= start:
                    at = self._latest(at, start)
        found.reverse()
        return found

    def _latest(self, end: int, start: int) -> int:
        """The last position before `end` whose range stops after `start`, or -1."""
        tree, size = self.tree, self.size
        node = size + end
        while node & (node - 1):  # powers of two are the left edge of the tree
            node = node // (node & -node) - 1  # the largest subtree that ends where this one begins
            if tree[node] > start:
                while node < size:
                    node = 2 * node + (tree[2 * node + 1] > start)
                return node - size
        return -1

    def remove(self, span: ByteRange, handle: int) -> None:
        first, last = bisect_left(self.starts, span.start), bisect_right(self.starts, span.start)
        at = bisect_left(self.handles, handle, first, last)  # of one start, handles ascend
        self.outer[at] = at - 1
        tree, node = self.tree, self.size + at
        tree[node] = -inf
        while node := node >> 1:
            tree[node] = max(tree[2 * node], tree[2 * node + 1])
        self.dead += 1
        for key, floor in self.floors.items():
            floor.remove(key(span, handle))

    def floor(self, key: _Key, items: _Items) -> _Floor:
        """The order by `key`, built at its first use: most indexes never need it."""
        if key not in self.floors:
            self.floors[key] = _Floor(sorted(key(items[h][0], h) for h in self.handles if h in items))
        return self.floors[key]


class _Floor:
    """Sorted entries, to find the last one at or below a bound; entries leave, none join."""

    __slots__ = ("entries", "links")

    def __init__(self, entries: list[_Entry]) -> None:
        self.entries = entries
        # Link i + 1 stands for entry i, link 0 for none. A removed entry points down, at or above the next live one.
        self.links = list(range(len(entries) + 1))

    def remove(self, entry: _Entry) -> None:
        at = bisect_left(self.entries, entry)
        self.links[at + 1] = at

    def last(self, bound: int) -> _Entry | None:
        links = self.links
        at = bisect_left(self.entries, (bound + 1,))
        while links[at] != at:
            links[at] = links[links[at]]  # shorten the path for the next search
            at = links[at]
        return self.entries[at - 1] if at else None
