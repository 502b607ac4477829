"""Store log of one launch in the Triton interpreter: the bytes that each program wrote, in order.

The launching thread fills a log. `Budget` has its own lock, which `StoreLog`'s finalizer does not take.
"""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from shadowgraph.common.fork_safety import fork_safe
from shadowgraph.model.ranges import ByteRange, RangeSet
from shadowgraph.model.stacks import Frame
from shadowgraph.tracking.loads import LoadLog

Addresses = npt.NDArray[np.uint64]
ProgramId = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Store:
    """One vector store of one program: an address and a value for each active lane.

    Attributes
    ----------
    atomic
        It combined its operand with the old value; `values` are the results in memory.
    line
        The line of the kernel; None where it is not known.
    """

    program: ProgramId
    addresses: Addresses
    values: npt.NDArray[np.generic]
    itemsize: int
    atomic: bool = False
    line: Frame | None = None

    @property
    def start(self) -> int:
        return int(self.addresses.min())

    @property
    def stop(self) -> int:
        return int(self.addresses.max()) + self.itemsize


class Budget:
    """Memory budget shared by all living logs, in bytes. Any thread may take and give back.

    Attributes
    ----------
    limit
        Largest number of bytes held at a time.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._taken = 0
        self._returned: deque[int] = deque()
        self._lock = fork_safe(threading.Lock())

    @property
    def held(self) -> int:
        """Bytes taken and not yet returned."""
        with self._lock:
            return self._settled()

    def take(self, nbytes: int) -> bool:
        """Reserve bytes if they fit; returns whether they did."""
        with self._lock:
            if self._settled() + nbytes > self.limit:
                return False
            self._taken += nbytes
            return True

    def give_back(self, nbytes: int) -> None:
        """Return bytes; takes no lock, because a finalizer may run while this thread holds it."""
        self._returned.append(nbytes)

    def _settled(self) -> int:
        while self._returned:
            self._taken -= self._returned.popleft()
        return self._taken


SHARED = Budget(64 << 20)
_OVERHEAD = 512  # bytes of a `Store` and its arrays beside their data


class StoreLog:
    """All stores of a launch in execution order.

    Addresses and values are kept only while all logs of the process hold less than 64 MiB of them (about 80 launches of
    65,536 lanes between two checkpoints). A log that would exceed that keeps only its written ranges: whose store hit a
    byte stays known, the rows of a table that were overrun do not. A log returns its bytes to the budget when it is
    compacted or collected.

    Parameters
    ----------
    budget
        The budget of the log; shared by the process unless given.

    Attributes
    ----------
    loads
        The loads of the launch, where they are noted as well.
    loaded
        Bytes loaded, while memory of pools is watched (`pool_watch`); empty otherwise.
    """

    def __init__(self, budget: Budget = SHARED) -> None:
        self.loads: LoadLog | None = None
        self.stores: list[Store] = []
        self.loaded = RangeSet()
        self._ranges: RangeSet | None = None
        self._compacted = False
        self._budget, self._held = budget, 0

    def __del__(self) -> None:
        self._budget.give_back(self._held)

    @property
    def compacted(self) -> bool:
        """Whether only ranges are left."""
        return self._compacted

    def add(
        self,
        program: ProgramId,
        addresses: Addresses,
        values: npt.NDArray[np.generic],
        itemsize: int,
        atomic: bool = False,
        line: Frame | None = None,
    ) -> None:
        """Record a store's active lanes; the arrays are kept, so pass copies."""
        if not addresses.size:
            return
        if not self._compacted:
            nbytes = addresses.nbytes + values.nbytes + _OVERHEAD
            if self._budget.take(nbytes):
                self._held += nbytes
                self.stores.append(Store(program, addresses, values, itemsize, atomic, line))
                self._ranges = None
                return
            self.compact()
        for part in _runs(addresses, itemsize):
            self.ranges.add(part)

    def note_load(self, addresses: Addresses, itemsize: int) -> None:
        """Record a load's active lanes."""
        for part in _runs(addresses, itemsize) if addresses.size else ():
            self.loaded.add(part)

    def compact(self) -> None:
        """Drop addresses and values for good; later stores record only their ranges."""
        self._ranges = self.ranges
        self._compacted = True
        self.stores.clear()
        self._budget.give_back(self._held)
        self._held = 0

    @property
    def any_atomic(self) -> bool:
        """Whether any of the stores that are kept is an atomic."""
        return any(store.atomic for store in self.stores)

    @property
    def ranges(self) -> RangeSet:
        """Every byte written."""
        if self._ranges is None:
            self._ranges = RangeSet.of(part for itemsize in self._sizes() for part in self._parts(itemsize))
        return self._ranges

    def within(self, where: ByteRange) -> list[Store]:
        """The stores' lanes that overlap a range, in order; none of a compacted log."""
        found = []
        for store in self.stores:
            if store.stop <= where.start or where.stop <= store.start:
                continue
            ends = store.addresses + np.uint64(store.itemsize)
            inside = (ends > np.uint64(where.start)) & (store.addresses < np.uint64(where.stop))
            if inside.any():
                lanes = store.addresses[inside], store.values[inside]
                found.append(Store(store.program, *lanes, store.itemsize, store.atomic, store.line))
        return found

    def _sizes(self) -> set[int]:
        return {store.itemsize for store in self.stores}

    def _parts(self, itemsize: int) -> list[ByteRange]:
        every = [store.addresses for store in self.stores if store.itemsize == itemsize]
        return _runs(np.concatenate(every), itemsize)


def _runs(addresses: Addresses, itemsize: int) -> list[ByteRange]:
    """The bytes at one or more addresses, merged where they touch."""
    distinct = np.unique(addresses)
    breaks = np.flatnonzero(np.diff(distinct) > np.uint64(itemsize)) + 1
    return [ByteRange(int(run[0]), int(run[-1]) + itemsize) for run in np.split(distinct, breaks)]
