"""Memory history of the caching allocator, switched on while captures run: the source of requested sizes in pools.

Called in the capturing thread; has a lock of its own.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from typing import Any

import torch

_ENTRIES = 1_000_000
# All but allocations. Without them a snapshot at the end of a capture has a third of the entries.
_SKIPPED = ["free_requested", "free_completed", "segment_alloc", "segment_free", "oom", "snapshot"]
PoolHandle = tuple[int, int]


class History:
    """Counts the captures that need the history, so that the last one to end switches it off. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0

    def begin(self) -> bool:
        """Switch the history on; False where the program has it on for itself, which must not be disturbed."""
        with self._lock:
            if not self._users:
                if torch._C._cuda_isHistoryEnabled():
                    return False
                _record(enabled="all", context=None, max_entries=_ENTRIES)
            self._users += 1
            return True

    def end(self) -> None:
        """Undo one `begin` that was True."""
        with self._lock:
            self._users -= 1
            if not self._users:
                torch.cuda.memory._record_memory_history(enabled=None)


def _record(**words: Any) -> None:
    """Record allocations only, where torch can leave out the rest."""
    try:
        torch.cuda.memory._record_memory_history(**words, skip_actions=_SKIPPED)
    except TypeError:  # an older torch
        torch.cuda.memory._record_memory_history(**words)


def snapshot_of(handle: PoolHandle) -> Mapping[str, Any]:
    """The history so far, and the segments of one pool: the allocator of a server has thousands of others."""
    try:
        found: Mapping[str, Any] = torch._C._cuda_memorySnapshot(handle)
    except (TypeError, RuntimeError):  # a torch that has no such filter
        found = {}
    return found if found.get("segments") else torch.cuda.memory._snapshot()


def is_complete(tenants: Mapping[int, int], made: Iterable[int], ours: Any) -> bool:
    """Whether every tensor that a capture was seen to allocate in a pool is in the history: the program may record less
    than is needed, or may have recorded more than there was room for."""
    return all(address in tenants for address in made if address in ours)
