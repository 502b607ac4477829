"""Copies of device memory to the host: synchronous, or queued and fetched later.

A memory saver or a sleep mode may have unmapped the memory since it was tracked. A device read of unmapped memory kills
the context, so that each range is queried before it is read. Called by the engine.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from shadowgraph.engines.base import Result
from shadowgraph.engines.device import Device
from shadowgraph.model.ranges import ByteRange

_TO_HOST, _BY_ADDRESS = 2, 4  # cudaMemcpyDeviceToHost, cudaMemcpyDefault


@dataclass(slots=True, eq=False)
class Fetch:
    """Queued copies of bytes to the host. The caller holds the engine's lock."""

    tag: object
    parts: tuple[tuple[object, ByteRange], ...]
    pinned: Any
    event: Any
    over: bool = False

    def arrived(self, device: Device) -> bool:
        """Whether the bytes have arrived; then the event is returned to the device."""
        if not self.over:
            with device.context.current():
                if not self.event.done:
                    return False
            self.over = True
            device.done_with(self.event)
        return True

    def passed(self, device: Device) -> bool:
        """Whether the bytes have arrived, or will not any more; leaves the event."""
        if self.over:
            return True
        with device.context.current():
            return bool(self.event.done)

    def result(self) -> Result:
        """The bytes that arrived, by key; empty ranges are left out."""
        data, at, fetched = memoryview(self.pinned), 0, []
        for key, where in self.parts:
            if where.nbytes:
                fetched.append((key, bytes(data[at : at + where.nbytes])))
                at += where.nbytes
        return Result(self.tag, (), tuple(fetched))


def fetched(device: Device, tag: object, parts: Sequence[tuple[object, ByteRange]]) -> Fetch:
    """Queue copies into one block of pinned memory on the current stream, which must not capture."""
    readable = tuple((key, where) for key, where in parts if where.nbytes)
    _check(device, (where for _, where in readable))
    with device.context.current():
        pinned = device.cp.cuda.alloc_pinned_memory(sum(where.nbytes for _, where in readable))
        stream, at, event = device.stream(), 0, device.event()
        for _, where in readable:
            _queue(device, pinned.ptr + at, where, stream)
            at += where.nbytes
        event.record(stream)
    return Fetch(tag, readable, pinned, event)


def read(device: Device, where: ByteRange) -> bytes:
    """Read a range behind the work queued on the current stream; waits for it.

    Raises
    ------
    LookupError
        When no memory is mapped there now.
    """
    host = np.empty(where.nbytes, dtype=np.uint8)
    if where.nbytes:
        _check(device, (where,))
        with device.context.current():
            stream = device.stream()
            _queue(device, host.ctypes.data, where, stream)
            stream.synchronize()
    return host.tobytes()


def read_many(device: Device, ranges: Sequence[ByteRange]) -> list[memoryview]:
    """`read` for several ranges, into one pinned block; on another stream while the current one captures."""
    _check(device, (where for where in ranges if where.nbytes))
    views: list[memoryview] = []
    total, at = max(1, sum(where.nbytes for where in ranges)), 0
    stream = device.loading if device.captures else device.stream()
    with device.context.current():
        pinned = device.cp.cuda.alloc_pinned_memory(total)
        room = np.frombuffer(pinned, dtype=np.uint8, count=total).data
        for where in ranges:
            if where.nbytes:
                _queue(device, pinned.ptr + at, where, stream)
            views.append(room[at : at + where.nbytes])
            at += where.nbytes
        stream.synchronize()
    return views


def _queue(device: Device, target: int, where: ByteRange, stream: Any) -> None:
    """Queue the copy of a range, which is the host's own memory where a tensor of the device is a view of that."""
    kind = _BY_ADDRESS if device.lies_on_host(where.start) else _TO_HOST
    device.runtime.memcpyAsync(target, where.start, where.nbytes, kind, stream.ptr)


def _check(device: Device, ranges: Iterable[ByteRange]) -> None:
    for where in ranges:
        _check_readable(device, where)


def _check_readable(device: Device, where: ByteRange) -> None:
    """Raise unless a whole range is mapped now: a read of unmapped memory would kill the context.

    Raises
    ------
    LookupError
        When it is not.
    """
    with device.context.current():
        if not (device.context.is_mapped(where.start) and device.context.is_mapped(where.stop - 1)):
            raise LookupError(f"no memory is mapped at 0x{where.start:x} any more")
