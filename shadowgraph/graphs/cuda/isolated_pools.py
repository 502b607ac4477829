"""Private pools in which every tensor has a segment of its own, with room for guards around it (layout ``isolate``).

Torch calls the allocation callbacks in any thread, under its own allocator's lock. `stand_in` takes a lock of its own.
"""

from __future__ import annotations

import ctypes
import threading
import weakref
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from shadowgraph.common.compat import relaxed_capture, require_cupy
from shadowgraph.common.internal_errors import internal_errors
from shadowgraph.model.alignment import round_up
from shadowgraph.tracking.arena import HostArena
from shadowgraph.tracking.captures import captures

PoolHandle = tuple[int, int]

_Alloc = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p)
_Free = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p)


@dataclass(slots=True)
class Segment:
    """Memory of one tensor: torch was given `start`; `head` guard bytes lie before it, `tail` bytes behind it."""

    start: int
    nbytes: int
    head: int
    tail: int


@dataclass(slots=True, eq=False, weakref_slot=True)
class IsolatedPool:
    """A torch `MemPool` that never splits a segment. It ends with the last graph that uses it, but never while a stream
    captures: torch would abort the process.

    Attributes
    ----------
    tenancies
        Requested bytes of the largest tenant of each segment, by address and graph serial.
    """

    pool: torch.cuda.MemPool
    segments: dict[int, Segment] = field(default_factory=dict)
    tenancies: dict[int, dict[int, int]] = field(default_factory=dict)

    def __del__(self, outlive: Callable[[object], None] = captures.outlive) -> None:  # globals end before some pools
        outlive(self.pool)

    def room(self, address: int) -> tuple[int, int] | None:
        """Where a segment's tail guard must start for all its tenants, and where it ends."""
        segment = self.segments.get(address)
        largest = max(self.tenancies.get(address, {}).values(), default=0)
        return (address + largest, segment.start + segment.nbytes + segment.tail) if segment and largest else None


class IsolatedPools:
    """Makes guarded pools, and substitutes them for the pool handles that a program uses.

    Parameters
    ----------
    arena
        The source of segments. A capture begins with a wait for the device, so that no work queued earlier can still
        write a segment that is handed out again.
    budget
        Most bytes that segments and their guards may take in all. Past it new captures keep their own pools.
    before_free
        Called with a segment's address before its memory goes back to CUDA.

    Attributes
    ----------
    added
        Bytes of the guarded segments and their guards.
    left_alone
        Captures and allocations that have no guards, by reason.
    """

    def __init__(self, arena: HostArena, head: int, tail: int, budget: int, before_free: Callable[[int], None]) -> None:
        self._arena = arena
        self._runtime: Any = require_cupy().cuda.runtime
        self.head, self.tail, self.budget = round_up(head), round_up(tail), budget
        self._before_free = before_free
        self.added = 0
        self.left_alone: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._by_handle: dict[PoolHandle, IsolatedPool] = {}
        self._by_id: dict[PoolHandle, PoolHandle] = {}
        self._private: weakref.WeakValueDictionary[PoolHandle, IsolatedPool] = weakref.WeakValueDictionary()

    def stand_in(self, handle: PoolHandle | None) -> IsolatedPool | None:
        """The guarded pool for a program's handle (a new one for None), or None past the budget."""
        with self._lock:
            given = _pair(handle) if handle is not None else None
            known = self._by_handle.get(given) if given is not None else None
            if known is not None:
                return known
            if given is not None and given in self._private:  # from another graph's pool()
                return self._private[given]
            if given is not None and torch.cuda.memory_snapshot(given):
                return None  # in use already: `InPlacePools` says so
            if self.added >= self.budget:
                self.left_alone["guard memory is used up"] += 1
                return None
            made = self._make()
            if given is not None:
                self._by_handle[given] = made
                self._by_id[made.pool.id] = given
            else:  # it lives as long as the graphs that use it
                self._private[made.pool.id] = made
            return made

    def handle_of(self, pool_id: PoolHandle) -> PoolHandle:
        """The program's name for a pool: the handle that it passed, or the pool's own id."""
        return self._by_id.get(_pair(pool_id), _pair(pool_id))

    def _make(self) -> IsolatedPool:
        segments: dict[int, Segment] = {}
        runtime, arena = self._runtime, self._arena
        head, tail = self.head, self.tail

        def allocate(nbytes: int, device: int, stream: int | None) -> int:
            try:
                base = arena.take(head + nbytes + tail)
                segments[base + head] = Segment(base + head, nbytes, head, tail)
                self.added += head + nbytes + tail
                return base + head
            except Exception as error:
                internal_errors.note("guarded segment", error, now=False)  # torch calls this under its own lock
            try:  # without guards, as torch would have
                with relaxed_capture():
                    plain = int(runtime.malloc(nbytes))
                segments[plain] = Segment(plain, nbytes, 0, 0)
                self.left_alone["cudaMalloc refused a guarded segment"] += 1
                return plain
            except Exception:
                return 0  # torch raises its own out-of-memory error

        def free(address: int, nbytes: int, device: int, stream: int | None) -> None:
            segment = segments.pop(address, None)
            try:
                self._before_free(address)
                if segment is not None and segment.head:
                    self.added -= segment.head + segment.nbytes + segment.tail
                    arena.give(address - segment.head, segment.head + segment.nbytes + segment.tail)
                    return
                with relaxed_capture():
                    runtime.free(address)
            except Exception as error:
                internal_errors.note("free of a guarded segment", error, now=False)

        callbacks = _Alloc(allocate), _Free(free)
        addresses = [ctypes.cast(callback, ctypes.c_void_p).value or 0 for callback in callbacks]
        allocator = torch._C._cuda_customAllocator(*addresses)
        pool = torch.cuda.MemPool(allocator, no_split=True)
        for kept in (*callbacks, allocator):  # called even while the interpreter ends, when modules are empty already
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept))
        return IsolatedPool(pool, segments)


def _pair(handle: PoolHandle) -> PoolHandle:
    first, second = handle
    return int(first), int(second)
