"""Memory that is unmapped behind its owner's back, as memory savers and sleep modes do: no check reads it.

The allocator here is what those are made of: ``cuMemMap`` behind a `torch.cuda.MemPool`. It runs in a child process,
since one read of such memory kills the context.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers_cuda import capture, fill, guarded, only, overflow, warm_kernels

import shadowgraph as sg

pytestmark = pytest.mark.gpu

HERE = Path(__file__).resolve().parent
GRANULE = 2 << 20
_Alloc = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p)
_Free = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p)


class Saver:
    """A pool whose memory can be paused: unmapped, with the addresses kept."""

    def __init__(self) -> None:
        from cuda.bindings import driver

        self.driver: Any = driver
        self.regions: dict[int, tuple[int, Any]] = {}
        self._callbacks = _Alloc(self._allocate), _Free(self._free)
        addresses = [ctypes.cast(callback, ctypes.c_void_p).value for callback in self._callbacks]
        self._allocator = torch._C._cuda_customAllocator(*addresses)
        self.pool = torch.cuda.MemPool(self._allocator)

    def _call(self, name: str, *arguments: Any) -> Any:
        code, *results = getattr(self.driver, name)(*arguments)
        assert int(code) == 0, f"{name}: {code}"
        return results[0] if results else None

    def _allocate(self, nbytes: int, device: int, stream: int | None) -> int:
        size = -(-nbytes // GRANULE) * GRANULE
        address = self._call("cuMemAddressReserve", size, 0, 0, 0)
        self.regions[int(address)] = size, None
        self._map(int(address))
        return int(address)

    def _free(self, address: int, nbytes: int, device: int, stream: int | None) -> None:
        """The process ends soon."""

    def _map(self, address: int) -> None:
        driver, (size, _) = self.driver, self.regions[address]
        properties = driver.CUmemAllocationProp()
        properties.type = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        properties.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        access = driver.CUmemAccessDesc()
        access.location, access.flags = properties.location, driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
        handle = self._call("cuMemCreate", size, properties, 0)
        self._call("cuMemMap", address, size, 0, handle, 0)
        self._call("cuMemSetAccess", address, size, [access], 1)
        self.regions[address] = size, handle

    def pause(self) -> None:
        """Unmap all of it."""
        torch.cuda.synchronize()
        for address, (size, handle) in self.regions.items():
            self._call("cuMemUnmap", address, size)
            self._call("cuMemRelease", handle)


def child() -> None:
    warm_kernels()
    saver = Saver()
    with sg.debug(backend="cuda", layout="faithful") as debugger:
        table = guarded(debugger, 64)
        with torch.cuda.use_mem_pool(saver.pool):
            weights = torch.arange(64, dtype=torch.int32, device="cuda")
        assert weights.data_ptr() in saver.regions, "invalid: the pool was not used"
        debugger.protect(weights)
        paused, kept = capture(lambda: weights * 2, pool=saver.pool.id)
        other, _ = capture(lambda: fill(table))
        for _ in range(3):
            paused.replay()
            other.replay()
        assert debugger.check() == ()
        saver.pause()
        for _ in range(100):
            other.replay()
        overflow(table)
        other.replay()
        found = only(debugger.check())
        assert (found.code, found.past_end) == ("SG101", 4)
        debugger.dump("paused.safetensors")
        torch.cuda.synchronize()  # raises if the context has died
        facts = debugger.facts()
        print(sorted(reason for reason in facts.left_alone if "unmapped" in reason), debugger._work.lost)
    del kept
    os._exit(0)


def test_what_a_memory_saver_unmaps_is_neither_guarded_nor_read(tmp_path: Path) -> None:
    paths = [str(HERE), str(HERE.parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    command = [sys.executable, "-X", "faulthandler", "-c", "import sys, test_unmapped_cuda as t; t.child()"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, cwd=tmp_path)
    assert done.returncode == 0, done.stdout[-1000:] + done.stderr[-4000:]
    assert "unmapped" in done.stdout
    assert done.stdout.rstrip().endswith("None")
