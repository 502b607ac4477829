"""What an engine is tested on: the engine itself and memory that it can reach."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from shadowgraph.engines.base import Engine
from shadowgraph.engines.numpy_engine import NumpyEngine

SIZE = 1 << 16


class Bench(Protocol):
    """An engine and `SIZE` bytes from `base` on, which canary positions count from."""

    engine: Engine
    base: int

    def write(self, address: int, data: bytes) -> None:
        """Overwrite memory, as a kernel of the program would."""

    def bytes_at(self, address: int, nbytes: int) -> bytes:
        """What memory holds, without the engine's help."""


class HostBench:
    """Memory of this process and the numpy engine."""

    def __init__(self, keeps: bool = False) -> None:
        self._memory = np.full(SIZE, 0x11, dtype=np.uint8)
        self.base = int(self._memory.ctypes.data)
        self.engine: Engine = NumpyEngine(self.base, keeps)

    def write(self, address: int, data: bytes) -> None:
        offset = address - self.base
        self._memory[offset : offset + len(data)] = np.frombuffer(data, dtype=np.uint8)

    def bytes_at(self, address: int, nbytes: int) -> bytes:
        offset = address - self.base
        return self._memory[offset : offset + nbytes].tobytes()


class CudaBench:
    """Memory of a CUDA device and the cupy engine."""

    def __init__(self) -> None:
        import cupy

        from shadowgraph.engines.cupy_engine import CupyEngine

        self._memory = cupy.full(SIZE + 4096, 0x11, dtype=cupy.uint8)
        self.base = -(-self._memory.data.ptr // 4096) * 4096  # the canary's period, so that positions agree
        self.engine: Engine = CupyEngine()
        cupy.cuda.Device().synchronize()

    def write(self, address: int, data: bytes) -> None:
        import cupy

        source = np.frombuffer(data, dtype=np.uint8).copy()
        cupy.cuda.runtime.memcpy(address, source.ctypes.data, len(data), 1)
        cupy.cuda.Device().synchronize()

    def bytes_at(self, address: int, nbytes: int) -> bytes:
        import cupy

        cupy.cuda.Device().synchronize()
        host = np.empty(nbytes, dtype=np.uint8)
        cupy.cuda.runtime.memcpy(host.ctypes.data, address, nbytes, 2)
        return host.tobytes()
