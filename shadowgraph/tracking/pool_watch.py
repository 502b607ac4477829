"""Memory of graph pools that several tensors share in turn: where reads by eager code are looked at, and storages that
point there without owning it.

One of each for the process. `Watch` is changed by the check of pool clobbers under the debugger's lock, and where a
capture ends; it is read by the hooks of operators and of host reads, in any thread, without one. `Borrowers` is used in
the thread of a capture, of an operator or of a read; two threads may at worst note one storage twice.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import NamedTuple

import torch

from shadowgraph.model.buffers import Buffer, Ledger, Role
from shadowgraph.model.ranges import ByteRange, RangeSet


class Sight(NamedTuple):
    """When a storage was first seen, by the ledger's serials.

    Attributes
    ----------
    born
        Whether it was seen as it was made: the memory is that of the tensor which was there then.
    replayed
        Serial of the graph that had begun to replay last when it was made; 0 where none had since the latest capture,
        or that is not known.
    owner
        Serial of the buffer that had the memory when it was made; 0 where none is known.
    """

    serial: int
    born: bool
    replayed: int = 0
    owner: int = 0


class Watch:
    """The watched bytes.

    Attributes
    ----------
    on
        Whether there are any: hooks ask this first.
    """

    def __init__(self) -> None:
        self.on = False
        self._ranges, self._expected = RangeSet(), RangeSet()  # replaced, never changed: other threads read them
        self._of: dict[int, RangeSet] = {}  # the watched bytes by the graph on whose account they are watched
        self._captures: set[int] = set()  # graphs that the checks do not know yet
        self._dropped = False  # whether bytes of a graph that is gone are watched still

    def begin(self) -> None:
        """A debugger starts."""
        self._ranges, self._expected, self.on = RangeSet(), RangeSet(), False
        self._of, self._captures, self._dropped = {}, set(), False

    def add(self, graph: int, *ranges: ByteRange) -> None:
        """Watch more bytes, as long as a graph lives."""
        added = RangeSet.of(ranges) - self._of.get(graph, RangeSet())
        if added:
            self._of[graph] = _joined(self._of.get(graph, RangeSet()), added)
            self._ranges = _joined(self._left() if self._dropped else self._ranges, added)
            self._dropped, self.on = False, True

    def drop(self, graph: int) -> None:
        """A graph is gone. Its bytes are watched until there are others to watch, or none are left."""
        self.arrived(graph)
        if self._of.pop(graph, None) is not None:
            self._dropped = True
            if not self._of:
                self._ranges, self._dropped, self.on = RangeSet(), False, bool(self._expected)

    def _left(self) -> RangeSet:
        return RangeSet.of(part for ranges in list(self._of.values()) for part in ranges)

    def expect(self, capture: int, ranges: Iterable[ByteRange]) -> None:
        """Watch all that a capture has allocated until the checks get to know its graph."""
        self._captures.add(capture)
        self._expected = _joined(self._expected, ranges)
        self.on = bool(self._ranges or self._expected)

    def arrived(self, capture: int) -> None:
        """The checks know a graph, or it is gone. Bytes are watched until they know all: many come at once."""
        if capture in self._captures:
            self._captures.discard(capture)
            if not self._captures:
                self._expected, self.on = RangeSet(), bool(self._ranges)

    def covers(self, address: int) -> bool:
        """Whether the byte at an address is watched."""
        return address in self._ranges or address in self._expected

    def expects(self, where: ByteRange) -> bool:
        """Whether a range has bytes of a capture whose graph the checks do not know yet."""
        return self._expected.overlaps(where)


def _joined(known: RangeSet, more: Iterable[ByteRange]) -> RangeSet:
    """A new set; costs what is added, besides a copy."""
    joined = known.copy()
    for part in more:
        joined.add(part)
    return joined


class Borrowers:
    """Storages that own no memory, each with the time at which it was first seen.

    Attributes
    ----------
    replayed
        As in `Sight`, of a storage that is made now.
    """

    def __init__(self) -> None:
        self.replayed = 0
        self._seen: dict[int, tuple[weakref.ref[torch.UntypedStorage], Sight]] = {}
        self._ends: dict[int, int] = {}  # when captures ended whose allocations are dated to their end, by graph

    def see(self, storage: torch.UntypedStorage, serial: int, born: bool = False, owner: int = 0) -> Sight:
        """When a storage was first seen; a storage that is new was first seen now, or made now with `born`."""
        key, seen = id(storage), self._seen
        known = seen.get(key)
        if known is not None and known[0]() is storage:
            return known[1]
        sight = Sight(serial, born, self.replayed if born else 0, owner)
        seen[key] = weakref.ref(storage, lambda _: seen.pop(key, None) and None), sight
        return sight

    def sight_of(self, tensor: torch.Tensor) -> Sight | None:
        """When the storage of a tensor was first seen, if that owns none of its memory and was seen."""
        if not self._seen:
            return None
        with torch._C.DisableTorchFunctionSubclass():
            storage = torch.Tensor.untyped_storage(tensor)
        known = self._seen.get(id(storage))
        return known[1] if known is not None and known[0]() is storage else None

    def lead_to(self, serial: int) -> bool:
        """Whether a storage that lives was made over the memory of a buffer, which may have been freed since."""
        return any(sight.owner == serial and storage() is not None for storage, sight in list(self._seen.values()))

    def is_older(self, sight: Sight, buffer: Buffer) -> bool:
        """Whether a storage was seen before a buffer was allocated: its memory was that of another one."""
        return sight.serial < self._ends.get(buffer.graph or 0, buffer.serial)

    def forget(self, graph: int) -> None:
        """A graph is gone."""
        self._ends.pop(graph, None)

    def any_in(self, where: ByteRange) -> bool:
        """Whether a storage that lives begins in a range."""
        living = (storage() for storage, _ in list(self._seen.values()))
        return any(storage is not None and where.contains(storage.data_ptr()) for storage in living)

    def redate(self, since: int, now: int, graph: int) -> None:
        """A capture whose allocations are dated to its end is over: what was seen from its beginning on, is as well."""
        self.replayed, self._ends[graph] = 0, now
        for key, (storage, sight) in list(self._seen.items()):
            if sight.born and sight.serial >= since:
                self._seen[key] = storage, Sight(now, True)


watch = Watch()
borrowers = Borrowers()


def note_birth(storage: torch.UntypedStorage, ledger: Ledger) -> None:
    """Note a storage that was just made and owns none of its memory. Memory of a pool is watched from here on."""
    start, nbytes = storage.data_ptr(), storage.nbytes()
    owner = ledger.owner(start, start + nbytes)
    borrowers.see(storage, ledger.next_serial(), born=True, owner=owner.serial if owner is not None else 0)
    if owner is not None and owner.role is Role.POOL:
        watch.add(owner.graph or 0, ByteRange(start, start + nbytes))
