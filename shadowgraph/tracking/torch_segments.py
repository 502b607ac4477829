"""Segments of torch's caching allocator with room for a tail behind a large tensor.

An operator's memory comes from a private pool that only this one allocation uses. First the pool gets a segment that
is larger than the tensor by the tail: an allocation, freed at once. The allocator then serves the operator from the
front of it and splits the rest off, which is allocated as the tail. After that the pool has no user, so that torch
gives a dead segment back to CUDA as any other: at ``torch.cuda.empty_cache()``, and before it reports that memory is
out.

The tensor starts where ``cudaMalloc`` put the segment: IPC handles, ``record_stream`` and ``resize_`` work as ever.
Called in the allocating thread, without the allocator's lock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch.utils import deterministic

from shadowgraph.common.compat import relaxed_capture
from shadowgraph.tracking.captures import captures
from shadowgraph.tracking.large_buffers import OTHER_PLACE, UNMAPPABLE, Laid

EXPANDABLE = "expandable segments are on"
OTHER_ALLOCATOR = "torch's allocator is not its native one"
FILLED = "torch fills fresh memory (torch.utils.deterministic)"  # the tail as well, on the program's stream
CAPTURE = "a capture was running"
# As in c10/cuda/CUDACachingAllocator.cpp
BLOCK = 512  # granularity of blocks
SEGMENT = 2 << 20  # granularity of segments from 10 MiB on
_LARGE_POOL = 1 << 20  # a block is split if more than this is left, and smaller tails come from another pool


def fills_fresh_memory() -> bool:
    """Whether torch writes memory that an operator leaves uninitialised."""
    fills: bool = deterministic.fill_uninitialized_memory  # type: ignore[attr-defined, unused-ignore]
    return fills and torch.are_deterministic_algorithms_enabled()


def _up(nbytes: int, step: int) -> int:
    return -(-nbytes // step) * step


class TorchSegments:
    """`SegmentSource` on one device.

    Parameters
    ----------
    expandable
        Whether torch's allocator uses expandable segments.
    may_be_unmapped
        Whether the memory at an address may be unmapped while its owner keeps it.
    """

    def __init__(self, index: int, expandable: bool, may_be_unmapped: Callable[[int], bool]) -> None:
        self._index, self._expandable, self._may_be_unmapped = index, expandable, may_be_unmapped

    def refusal(self) -> str | None:
        """Why the program's allocation must stay as it is, or None."""
        if self._expandable:
            return EXPANDABLE
        if torch.cuda.get_allocator_backend() != "native":
            return OTHER_ALLOCATOR
        if fills_fresh_memory():
            return FILLED
        return CAPTURE if captures.running or torch.cuda.is_current_stream_capturing() else None

    def lay(self, run: Callable[[], torch.Tensor], nbytes: int, tail: int) -> Laid | None:
        """Run an operator that allocates `nbytes` once, with a tail behind its result."""
        size = _up(nbytes, BLOCK)
        whole = _up(size + max(tail, _LARGE_POOL + BLOCK), SEGMENT)
        try:
            with relaxed_capture(), self._own_pool():  # `cudaMalloc` would end a capture of another thread
                self._allocate(whole)  # freed at once: the segment that `run` is served from
                made = run()
                rest = self._rest(whole - size)
        except torch.OutOfMemoryError:
            return None
        start = made.untyped_storage().data_ptr()
        if rest is None or rest.data_ptr() != start + size or made.untyped_storage().nbytes() != nbytes:
            return Laid(made, OTHER_PLACE)
        if self._may_be_unmapped(start):
            return Laid(made, UNMAPPABLE)
        return Laid(made, rest, whole - nbytes, whole - _up(size, SEGMENT))

    def _rest(self, nbytes: int) -> torch.Tensor | None:
        try:
            return self._allocate(nbytes)
        except torch.OutOfMemoryError:  # the operator has run
            return None

    def _allocate(self, nbytes: int) -> torch.Tensor:
        return torch.empty(nbytes, dtype=torch.uint8, device=torch.device("cuda", self._index))

    @contextmanager
    def _own_pool(self) -> Iterator[None]:
        """Have this thread's allocations come from a new pool. Its memory outlives it."""
        pool = torch.cuda.graph_pool_handle()
        torch._C._cuda_beginAllocateCurrentThreadToPool(self._index, pool)
        try:
            yield
        finally:
            torch._C._cuda_endAllocateToPool(self._index, pool)
            torch._C._cuda_releasePool(self._index, pool)
