"""What the cupy engine's parts share of a device: streams, uploads, cleared memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from shadowgraph.compat import relaxed_capture, require_cupy


class Device:
    """One CUDA device, and two streams of our own on it that no program's work waits for.

    Attributes
    ----------
    arming
        The stream that writes canaries; checks wait for it on the device (see `Arming`).
    loading
        The stream of uploads, each of which the host waits for.
    """

    def __init__(self, index: int) -> None:
        self.cp: Any = require_cupy()
        self.index = index
        self.runtime: Any = self.cp.cuda.runtime
        with relaxed_capture(), self.cp.cuda.Device(index):
            self.arming = self.cp.cuda.Stream(non_blocking=True)
            self.loading = self.cp.cuda.Stream(non_blocking=True)
        self._known: dict[int, Any] = {}

    def raw_stream(self) -> int:
        """The program's current stream, as a handle."""
        return int(torch._C._cuda_getCurrentRawStream(self.index))

    def stream(self) -> Any:
        """The program's current stream."""
        handle = self.raw_stream()
        known = self._known.get(handle)
        if known is None:
            known = self._known[handle] = self.cp.cuda.Stream.from_external(_Handle(handle))
        return known

    def upload(self, rows: npt.NDArray[Any]) -> Any:
        """A device copy that every stream may read: the host waits for it, and only for it."""
        with relaxed_capture(), self.cp.cuda.Device(self.index):
            made = self.cp.empty(max(1, rows.nbytes), dtype=self.cp.uint8)
            if rows.nbytes:
                flat = np.ascontiguousarray(rows).view(np.uint8).reshape(-1)
                self.runtime.memcpyAsync(made.data.ptr, flat.ctypes.data, rows.nbytes, 1, self.loading.ptr)
                self.loading.synchronize()
        return made

    def zeros(self, nbytes: int) -> Any:
        """Cleared device memory that every stream may use."""
        with relaxed_capture(), self.cp.cuda.Device(self.index):
            made = self.cp.empty(max(16, nbytes), dtype=self.cp.uint8)
            self.runtime.memsetAsync(made.data.ptr, 0, made.nbytes, self.loading.ptr)
            self.loading.synchronize()
        return made

    def pinned(self, nbytes: int) -> Any:
        """Cleared pinned host memory."""
        with relaxed_capture(), self.cp.cuda.Device(self.index):
            made = self.cp.cuda.alloc_pinned_memory(max(16, nbytes))
        np.frombuffer(made, dtype=np.uint8, count=max(16, nbytes))[:] = 0
        return made


class _Handle:
    """A raw stream under the CUDA stream protocol."""

    def __init__(self, handle: int) -> None:
        self._handle = handle

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self._handle
