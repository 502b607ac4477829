"""Device resources that the parts of the CUDA engine share: streams, events, uploads, zeroed memory.

The caller holds the engine's lock or that of one of its parts, in any thread that checks, allocates or frees. Waits run
without the engine's lock.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from shadowgraph.common.compat import require_cupy
from shadowgraph.engines.context import primary_context
from shadowgraph.engines.losses import is_device_loss
from shadowgraph.model.host_copies import HostKind
from shadowgraph.tracking.captures import captures

_HANDLES = 1024  # cached stream handles


class Device:
    """One CUDA device, with two streams of the engine that no work of the program waits for.

    Parameters
    ----------
    expandable
        Whether torch's allocator uses expandable segments.

    Attributes
    ----------
    context
        The primary context, made current around every call.
    arming
        The stream that writes canaries; checks wait for it on the device (see `CanaryStream`).
    loading
        The stream of uploads; the host waits for each of them.
    lasting
        First and end address of mappings of ours, which are never unmapped.
    """

    def __init__(self, index: int, expandable: bool = False) -> None:
        self.cp: Any = require_cupy()
        self.index, self._expandable = index, expandable
        self.runtime: Any = self.cp.cuda.runtime
        self.context = primary_context(index)
        with self.context.current():
            self.arming = self.cp.cuda.Stream(non_blocking=True)
            self.loading = self.cp.cuda.Stream(non_blocking=True)
        self.lasting: list[tuple[int, int]] = []
        self._known: dict[int, Any] = {}
        self._lasting: dict[int, Any] = {}  # torch's own, whose handles stay valid
        self._events: deque[Any] = deque()  # free list: creating and destroying events costs driver calls

    def raw_stream(self) -> int:
        """The program's current stream, as a handle."""
        return int(torch._C._cuda_getCurrentRawStream(self.index))

    def stream(self) -> Any:
        """The program's current stream."""
        handle = self.raw_stream()
        known = self._known.get(handle)
        if known is None:
            if len(self._known) >= _HANDLES:
                self._known = dict(self._lasting)
            known = self._known[handle] = self.cp.cuda.Stream.from_external(_Handle(handle))
            if _is_torchs(torch.cuda.current_stream(self.index)):
                self._lasting[handle] = known
        return known

    def note_stream(self) -> None:
        """Record the current stream, so that `wait` waits for it."""
        if self.raw_stream() not in self._known:
            self.stream()

    @property
    def captures(self) -> bool:
        """Whether the current stream captures."""
        stream = self.raw_stream()
        context = self.context
        entered = context.enter()
        try:
            return context.captures(stream)
        finally:
            context.leave(entered)

    def event(self) -> Any:
        """An event without timing, to be returned by `done_with`. The context must be current."""
        try:
            return self._events.popleft()
        except IndexError:
            return self.cp.cuda.Event(disable_timing=True)

    def done_with(self, event: Any) -> None:
        """Return an event that is no longer waited for."""
        self._events.append(event)

    def wait(self) -> bool:
        """Wait for the work queued on torch's streams and the current one, but not for the whole device.

        Returns
        -------
        bool
            False while a capture runs: then there is no wait, since a stream may be the capturing one.
        """
        with self.context.current():
            events = self._now()
            for event in events or ():  # does not invalidate a capture that begins meanwhile
                event.synchronize()
                self.done_with(event)
        return events is not None

    def passed(self) -> bool:
        """Whether `wait` would return True at once."""
        with self.context.current():
            events = self._now()
            passed = events is not None and all(event.done for event in events)
            for event in events or ():
                self.done_with(event)
        return passed

    def _now(self) -> list[Any] | None:
        """An event for each stream, behind its queued work; None while a capture runs."""
        return captures.between(lambda: [self._recorded(stream) for stream in self._to_wait_for()])

    def _to_wait_for(self) -> list[Any]:
        streams = {**self._lasting, self.raw_stream(): self.stream()}
        return [stream for handle, stream in streams.items() if not self.context.captures(handle)]

    def _recorded(self, stream: Any) -> Any:
        event = self.event()
        event.record(stream)
        return event

    def wait_here(self) -> None:
        """Wait for the work queued on the current stream."""
        with self.context.current():
            self.stream().synchronize()

    def malloc(self, nbytes: int) -> int:
        """Allocate device memory, owned by the caller for the life of the process; returns its address.

        Raises
        ------
        MemoryError
            When the device is out of memory.
        """
        with self.context.current():
            try:
                return int(self.runtime.malloc(nbytes))
            except self.runtime.CUDARuntimeError as error:
                if is_device_loss(error):
                    raise
                raise MemoryError(f"cudaMalloc of {nbytes} bytes: {error}") from None

    def may_be_unmapped(self, address: int) -> bool:
        """Whether an address lies in memory of a memory saver or a sleep mode. An allocator with expandable segments
        does not count: it unmaps only free memory."""
        if self._expandable or any(first <= address < end for first, end in self.lasting):
            return False
        with self.context.current():
            return self.context.may_be_unmapped(address)

    def lies_on_host(self, address: int) -> bool:
        """Whether a tensor of the device is a view of the host's memory, which every access reads over the bus."""
        with self.context.current():
            block = self.context.host_block(address)
        return block is not None and block.kind is HostKind.PINNED

    def upload(self, rows: npt.NDArray[Any]) -> Any:
        """Copy an array to the device, for use on every stream; the host waits for this copy only."""
        with self.context.current():
            made = self.cp.empty(max(1, rows.nbytes), dtype=self.cp.uint8)
            if rows.nbytes:
                flat = np.ascontiguousarray(rows).view(np.uint8).reshape(-1)
                self.runtime.memcpyAsync(made.data.ptr, flat.ctypes.data, rows.nbytes, 1, self.loading.ptr)
                self.loading.synchronize()
        return made

    def zeros(self, nbytes: int) -> Any:
        """Zeroed device memory, for use on every stream."""
        with self.context.current():
            made = self.cp.empty(max(16, nbytes), dtype=self.cp.uint8)
            self.runtime.memsetAsync(made.data.ptr, 0, made.nbytes, self.loading.ptr)
            self.loading.synchronize()
        return made

    def write(self, address: int, rows: npt.NDArray[Any]) -> None:
        """Copy an array to device memory that no queued work uses; the host waits for this copy only."""
        with self.context.current():
            flat = np.ascontiguousarray(rows).view(np.uint8).reshape(-1)
            self.runtime.memcpyAsync(address, flat.ctypes.data, rows.nbytes, 1, self.loading.ptr)
            self.loading.synchronize()

    def pinned(self, nbytes: int) -> Any:
        """Zeroed pinned host memory."""
        with self.context.current():
            made = self.cp.cuda.alloc_pinned_memory(max(16, nbytes))
        np.frombuffer(made, dtype=np.uint8, count=max(16, nbytes))[:] = 0
        return made


def _is_torchs(stream: Any) -> bool:
    """Whether a stream is a default one or from torch's pool, which lives as long as the process."""
    return stream.cuda_stream in (0, 1, 2) or bool(stream.stream_id & 1)


class _Handle:
    """A raw stream handle with the CUDA stream protocol."""

    def __init__(self, handle: int) -> None:
        self._handle = handle

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self._handle
