"""The primary CUDA context of a device, made current in any thread that calls the driver for the engine.

A plain thread that frees a guarded tensor has device 0 current, or no device at all. There a launch is refused, or runs
on the wrong device, and `cudaSetDevice` to restore device 0 afterwards would create a context of hundreds of megabytes
on it. So the context is pushed, and popped afterwards. Thread-safe; no lock.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from shadowgraph.common.compat import relaxed_capture
from shadowgraph.engines.losses import error_of
from shadowgraph.model.host_copies import HostBlock, HostKind

_RELAXED = 2  # CUstreamCaptureMode
_NOT_IDLE = 600  # CUDA_ERROR_NOT_READY
_CAPTURES_ELSEWHERE = 906  # CUDA_ERROR_STREAM_CAPTURE_IMPLICIT: of the legacy stream, while a blocking stream captures
# A stream queues about a thousand launches before the next one blocks, and each takes a microsecond of host time. So
# for half a millisecond after it was idle, no launch on it blocks.
_SHALLOW = 500_000  # nanoseconds
_BUSY = 200_000  # nanoseconds before a busy stream is queried again: its program is bound by the device anyway


class PrimaryContext:
    """The primary context of one device, retained for the life of the process."""

    def __init__(self, index: int) -> None:
        self.index = index
        # The interpreter's lock is held during calls that return at once, and released in calls that may block.
        self._calls: Any = ctypes.PyDLL("libcuda.so.1")
        self._handle, self._current = ctypes.c_void_p(), ctypes.c_void_p()
        device = ctypes.c_int()
        self.check("cuInit", self._calls.cuInit(0))
        self.check("cuDeviceGet", self._calls.cuDeviceGet(ctypes.byref(device), index))
        retained = self._calls.cuDevicePrimaryCtxRetain(ctypes.byref(self._handle), device)
        self.check("cuDevicePrimaryCtxRetain", retained)
        self._asked: tuple[int, int, bool] = (-1, 0, False)  # a stream, the time of its query, and whether it was idle

    def check(self, name: str, code: int) -> None:
        """Raise `DeviceLostError` or `CudaCallError` unless a call succeeded."""
        if code:
            raise error_of(f"{name}: {self.name_of(code)}", code)

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function of the driver, with the context current; raises as `check`."""
        self.check(name, getattr(self._calls, name)(*arguments))

    def name_of(self, code: int) -> str:
        """CUDA's name of an error."""
        text = ctypes.c_char_p()
        if self._calls.cuGetErrorName(code, ctypes.byref(text)) or text.value is None:
            return f"error {code}"
        return f"{text.value.decode()} ({code})"

    def enter(self) -> bool:
        """Make the context current in this thread; pass the result to `leave`."""
        current = ctypes.c_void_p()
        self._calls.cuCtxGetCurrent(ctypes.byref(current))
        if current.value == self._handle.value:
            return False
        self.check("cuCtxPushCurrent", self._calls.cuCtxPushCurrent_v2(self._handle))
        return True

    def leave(self, entered: bool) -> None:
        """Restore the context that was current before `enter`."""
        if entered:
            self._calls.cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p()))

    @contextmanager
    def current(self) -> Iterator[None]:
        """Make the context current in the block, and allow calls that a capture elsewhere would forbid."""
        entered = self.enter()
        try:
            with relaxed_capture():
                yield
        finally:
            self.leave(entered)

    def captures(self, stream: int) -> bool:
        """Whether a stream captures, or is unusable because another one does. The context must be current."""
        status = ctypes.c_int()
        code = self._calls.cuStreamIsCapturing(ctypes.c_void_p(stream), ctypes.byref(status))
        if code == _CAPTURES_ELSEWHERE:
            return True
        self.check("cuStreamIsCapturing", code)
        return bool(status.value)

    def takes_launches(self, stream: int) -> bool:
        """Whether the next launch on a stream returns at once, since its queue cannot be full.

        A launch into a full queue blocks until the device catches up. A Python host callback queued before it would
        wait for the interpreter's lock meanwhile, so that the lock must be released around such a launch. The context
        must be current.
        """
        known, when, idle = self._asked
        now = time.perf_counter_ns()
        if stream == known and now - when < (_SHALLOW if idle else _BUSY):
            return idle
        mode = ctypes.c_int(_RELAXED)
        exchange = self._calls.cuThreadExchangeStreamCaptureMode
        exchange(ctypes.byref(mode))  # a query would invalidate another thread's capture
        try:
            code = self._calls.cuStreamQuery(ctypes.c_void_p(stream))
        finally:
            exchange(ctypes.byref(mode))
        idle = bool(code != _NOT_IDLE)
        if idle:
            self.check("cuStreamQuery", code)
        self._asked = stream, now, idle
        return idle

    def may_be_unmapped(self, address: int) -> bool:
        """Whether an address lies in memory of ``cuMemMap``, which a memory saver, a sleep mode or an expandable
        allocator may unmap at any time, or in unmapped memory."""
        allocation = ctypes.c_uint64()
        if not self._calls.cuMemRetainAllocationHandle(ctypes.byref(allocation), ctypes.c_void_p(address)):
            self._calls.cuMemRelease(allocation)
            return True
        return not self.is_mapped(address)

    def is_mapped(self, address: int) -> bool:
        """Whether memory is mapped at an address now."""
        mapped = ctypes.c_int()
        pointer = ctypes.c_uint64(address)
        code = self._calls.cuPointerGetAttribute(ctypes.byref(mapped), _MAPPED, pointer)
        return not code and bool(mapped.value)

    def host_block(self, address: int) -> HostBlock | None:
        """What the driver knows of an address of the host; None for memory of a device and managed memory. The context
        must be current."""
        kind = self._attribute(_MEMORY_TYPE, address)
        if kind is None:
            return HostBlock(HostKind.PAGEABLE)
        if kind != _HOST or self._attribute(_MANAGED, address):
            return None
        return HostBlock(HostKind.PINNED, self._attribute(_ALLOCATION, address) or 0)

    def _attribute(self, number: int, address: int) -> int | None:
        """An attribute of an address; None where the driver does not know the address, or the attribute."""
        value = ctypes.c_uint64()  # the widest of them, on a machine that stores the lowest byte first
        code = self._calls.cuPointerGetAttribute(ctypes.byref(value), number, ctypes.c_uint64(address))
        return None if code else value.value


_MEMORY_TYPE, _ALLOCATION, _MANAGED, _MAPPED = 2, 7, 8, 13  # CUpointer_attribute
_HOST = 1  # CUmemorytype


@cache
def primary_context(index: int) -> PrimaryContext:
    """The primary context of a device; the same object at each call.

    Raises
    ------
    CudaCallError
        When the driver refuses the context.
    """
    return PrimaryContext(index)
