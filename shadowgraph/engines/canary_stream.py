"""Canaries written on the device, on a stream of their own, so that a capture or a busy queue never blocks them.

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


class CanaryStream:
    """Writes canaries over ranges, in the order of the calls. Thread-safe.

    A check may run on any stream of the program, so each stream waits, on the device, for the last write before its
    next check: `let_wait`. Writes wait for work of the program only after `wait_for_current`: no kernel may write a
    guard, so queued work does not matter, except where the memory was the program's own just before.

    Parameters
    ----------
    one, many
        ``arm`` and ``arm_many`` of kernels.cu.
    table, kept
        Device addresses of the canary table, and of the records of broken guards.

    Attributes
    ----------
    ordered
        Streams that already wait for the last write.
    """

    def __init__(self, device: Device, one: int, many: int, table: int, kept: int) -> None:
        wide = ctypes.c_uint64
        self._device, self._table, self._kept_guards = device, table, kept
        context = device.context
        self._one = Launcher(context, one, (wide, wide, wide, wide))
        self._many = Launcher(context, many, (wide, wide, wide))
        self._lock = threading.RLock()
        with context.current():
            self._written, self._queued = device.event(), device.event()
        self.ordered: set[int] = set()
        self._kept: list[Any] = []  # range tables that writes in flight read

    def write(self, ranges: Sequence[ByteRange]) -> None:
        """Write over ranges in one launch."""
        if not ranges:
            return
        with self._lock:
            if len(ranges) == 1:
                self._write_one(ranges[0], self._device.arming.ptr)
            else:
                self._write_many(ranges, self._device.arming.ptr)
            with self._device.context.current():
                self._written.record(self._device.arming)
            self.ordered.clear()

    def write_here(self, ranges: Sequence[ByteRange]) -> None:
        """Write over ranges on the current stream, in order with its work."""
        with self._lock:
            for where in ranges:
                self._write_one(where, self._device.raw_stream())

    def wait_for_current(self) -> None:
        """Order later writes behind all work queued on the current stream."""
        with self._lock, self._device.context.current():
            self._queued.record(self._device.stream())
            self._device.arming.wait_event(self._queued)

    def mark(self) -> None:
        """Let streams wait for all that is queued here, not only for the last write."""
        with self._lock, self._device.context.current():
            self._written.record(self._device.arming)
            self.ordered.clear()

    def let_wait(self, stream: int) -> None:
        """Make a stream wait for the writes so far; cheap when it already does."""
        if stream not in self.ordered:
            with self._lock, self._device.context.current():
                self._device.runtime.streamWaitEvent(stream, self._written.ptr)
                self.ordered.add(stream)

    def check_alive(self) -> None:
        """Raise if the context is dead."""
        with self._lock, self._device.context.current():
            self._written.done  # noqa: B018  it asks the driver

    def _write_one(self, where: ByteRange, stream: int) -> None:
        blocks = min(1024, -(-where.nbytes // (16 * THREADS)) + 1)
        self._one.set((where.start, where.nbytes, self._table, self._kept_guards))
        self._one.launch(blocks, THREADS, stream)

    def _write_many(self, ranges: Sequence[ByteRange], stream: int) -> None:
        rows = np.array([(where.start, where.stop) for where in ranges], dtype=np.uint64)
        if self._kept:
            self._drop_finished()
        table = self._device.upload(rows)
        self._many.set((int(table.data.ptr), self._table, self._kept_guards))
        self._many.launch(len(ranges), THREADS, stream)
        self._kept.append(table)

    def _drop_finished(self) -> None:
        """Free the range tables of finished writes."""
        with self._device.context.current():
            if self._written.done:
                self._kept.clear()
