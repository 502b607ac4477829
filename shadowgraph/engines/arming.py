"""Canary fills on the device, on a stream of their own, so that a capture or a busy queue never blocks them.

Called by the engine, in any thread that allocates, frees or checks; has its own lock.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

from shadowgraph.engines.device import Device
from shadowgraph.engines.launcher import Launcher
from shadowgraph.model.ranges import ByteRange

THREADS = 256


class Arming:
    """Fills ranges with their canary, in the order of the calls. Thread-safe.

    A check may run on any stream of the program, so each stream waits, on the device, for the last fill before its next
    check: `order`. Fills wait for work of the program only after `after`: no kernel may write a guard, so queued work
    does not matter, except where the memory was the program's own just before.

    Parameters
    ----------
    table, kept
        Device addresses of the canary table, and of the records of broken guards.

    Attributes
    ----------
    ordered
        Streams that already wait for the last fill.
    """

    def __init__(self, device: Device, one: int, many: int, table: int, kept: int) -> None:
        wide = ctypes.c_uint64
        self._device, self._table, self._kept_guards = device, table, kept
        context = device.context
        self._one = Launcher(context, one, (wide, wide, wide, wide))
        self._many = Launcher(context, many, (wide, wide, wide))
        self._lock = threading.RLock()
        with context.current():
            self._filled, self._queued = device.event(), device.event()
        self.ordered: set[int] = set()
        self._kept: list[Any] = []  # range tables that fills in flight read

    def fill(self, where: ByteRange) -> None:
        """Fill one range."""
        if where.nbytes:
            with self._lock:
                self._fill_on(where, self._device.arming.ptr)
                self._mark()

    def fill_here(self, where: ByteRange) -> None:
        """Fill one range on the current stream, in order with its work."""
        with self._lock:
            self._fill_on(where, self._device.raw_stream())

    def _fill_on(self, where: ByteRange, stream: int) -> None:
        blocks = min(1024, -(-where.nbytes // (16 * THREADS)) + 1)
        self._one.set((where.start, where.nbytes, self._table, self._kept_guards))
        self._one.launch(blocks, THREADS, stream)

    def fill_many(self, ranges: Sequence[ByteRange]) -> None:
        """Fill many ranges in one launch."""
        if ranges:
            rows = np.array([(where.start, where.stop) for where in ranges], dtype=np.uint64)
            with self._lock:
                if self._kept:
                    self._let_go()
                table = self._device.upload(rows)
                self._many.set((int(table.data.ptr), self._table, self._kept_guards))
                self._many.launch(len(ranges), THREADS, self._device.arming.ptr)
                self._kept.append(table)
                self._mark()

    def after(self) -> None:
        """Order later fills behind all work queued on the current stream."""
        with self._lock, self._device.context.current():
            self._queued.record(self._device.stream())
            self._device.arming.wait_event(self._queued)

    def order(self, stream: int) -> None:
        """Make a stream wait for the fills so far; cheap when it already does."""
        if stream not in self.ordered:
            with self._lock, self._device.context.current():
                self._device.runtime.streamWaitEvent(stream, self._filled.ptr)
                self.ordered.add(stream)

    def check_alive(self) -> None:
        """Raise if the context is dead."""
        with self._lock, self._device.context.current():
            self._filled.done  # noqa: B018  it asks the driver

    def _let_go(self) -> None:
        with self._device.context.current():
            if self._filled.done:
                self._kept.clear()

    def _mark(self) -> None:
        with self._device.context.current():
            self._filled.record(self._device.arming)
        self.ordered.clear()
