"""The stores of one Triton launch, as the interpreter made them: which program wrote which bytes, in order."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from shadowgraph.tracking.ranges import ByteRange, RangeSet

Addresses = npt.NDArray[np.uint64]
ProgramId = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Store:
    """One vector store of one program: an address and a value for each active lane."""

    program: ProgramId
    addresses: Addresses
    values: npt.NDArray[np.generic]
    itemsize: int

    @property
    def start(self) -> int:
        return int(self.addresses.min())

    @property
    def stop(self) -> int:
        return int(self.addresses.max()) + self.itemsize


class StoreLog:
    """All stores of a launch in the order they ran."""

    def __init__(self) -> None:
        self.stores: list[Store] = []
        self._ranges: RangeSet | None = None

    def add(self, program: ProgramId, addresses: Addresses, values: npt.NDArray[np.generic], itemsize: int) -> None:
        """Note a store's active lanes; the arrays are kept, so pass copies."""
        if addresses.size:
            self.stores.append(Store(program, addresses, values, itemsize))
            self._ranges = None

    @property
    def ranges(self) -> RangeSet:
        """Every byte written."""
        if self._ranges is None:
            self._ranges = RangeSet.of(part for itemsize in self._sizes() for part in self._runs(itemsize))
        return self._ranges

    def within(self, where: ByteRange) -> list[Store]:
        """The stores' lanes that reach into a range, in order."""
        found = []
        for store in self.stores:
            if store.stop <= where.start or where.stop <= store.start:
                continue
            ends = store.addresses + np.uint64(store.itemsize)
            inside = (ends > np.uint64(where.start)) & (store.addresses < np.uint64(where.stop))
            if inside.any():
                found.append(Store(store.program, store.addresses[inside], store.values[inside], store.itemsize))
        return found

    def _sizes(self) -> set[int]:
        return {store.itemsize for store in self.stores}

    def _runs(self, itemsize: int) -> list[ByteRange]:
        every = np.concatenate([store.addresses for store in self.stores if store.itemsize == itemsize])
        distinct = np.unique(every)
        breaks = np.flatnonzero(np.diff(distinct) > np.uint64(itemsize)) + 1
        runs = np.split(distinct, breaks)
        return [ByteRange(int(run[0]), int(run[-1]) + itemsize) for run in runs if run.size]
