"""Fenced memory: spans that end where no memory is mapped, so that an access past their end faults at the instruction.

`FencedSpans` has the interface of the other arenas; `Pages` makes its bytes, `HostPages` on the host and
`engines.fenced_pages.DevicePages` on a device. Called under the allocator's lock; spans are kept until the process
ends, as those of slabs are.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import threading
from typing import Any, Protocol

from shadowgraph.common.fork_safety import fork_safe
from shadowgraph.tracking.slabs import SlabArena

NO_ROOM = "guard memory is used up"


class Pages(Protocol):
    """A source of memory with nothing mapped behind it.

    Attributes
    ----------
    granule
        Mappings are multiples of so many bytes.
    """

    granule: int

    def alignment(self, itemsize: int) -> int:
        """Bytes to which the start of a buffer with elements of a size must be aligned."""

    def map(self, nbytes: int) -> int:
        """Map memory, a multiple of the granule, with at least one unmapped granule behind; returns its address.

        Raises
        ------
        MemoryError
            With the reason.
        """

    def refusal(self, anyway: bool) -> str | None:
        """Why no fence may be laid, or None; `anyway` as `Settings.fence_anyway`."""


class FencedSpans(SlabArena):
    """Spans that each end at the end of their own mapping.

    Parameters
    ----------
    limit
        Most bytes that mappings may take.

    Attributes
    ----------
    pages
        Where their bytes come from.
    mapped
        Bytes of all mappings.
    refusal
        Why no span is handed out for now, not even one that is mapped; None where they are.
    """

    def __init__(self, pages: Pages, limit: int) -> None:
        super().__init__(self._at_the_end, slab=0)
        self._lock = fork_safe(threading.RLock())
        self.pages, self.limit, self.mapped = pages, limit, 0
        self.refusal: str | None = None

    def take(self, nbytes: int) -> int:
        if self.refusal is not None:
            raise MemoryError(self.refusal)
        return super().take(nbytes)

    def room(self, nbytes: int, itemsize: int) -> int:
        """Bytes of a buffer with those up to the fence: no more than its alignment demands."""
        step = self.pages.alignment(itemsize)
        return -(-nbytes // step) * step

    def beyond(self) -> list[tuple[int, int]]:
        """First and end address of what is not mapped behind each span."""
        with self._lock:
            return [(stop, stop + self.pages.granule) for stop in self._stops]

    def _at_the_end(self, nbytes: int) -> int:
        whole = -(-nbytes // self.pages.granule) * self.pages.granule
        if self.mapped + whole > self.limit:
            raise MemoryError(NO_ROOM)
        address = self.pages.map(whole)
        self.mapped += whole
        return address + whole - nbytes


class HostPages:
    """Anonymous mappings of the host, whose last page may not be accessed. A buffer is aligned to its elements, so that
    no byte lies between it and the fence; of single bytes, to 16 of them."""

    granule = mmap.PAGESIZE

    def __init__(self) -> None:
        self._libc: Any = ctypes.CDLL(None, use_errno=True)
        self._kept: list[mmap.mmap] = []

    def alignment(self, itemsize: int) -> int:
        return itemsize if itemsize > 1 else 16

    def refusal(self, anyway: bool) -> str | None:
        return None

    def map(self, nbytes: int) -> int:
        try:
            mapping = mmap.mmap(-1, nbytes + self.granule, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except OSError as error:
            raise MemoryError(f"mmap: {error.strerror}") from None
        start = ctypes.addressof(ctypes.c_char.from_buffer(mapping))
        if self._libc.mprotect(ctypes.c_void_p(start + nbytes), ctypes.c_size_t(self.granule), 0):
            raise MemoryError(f"mprotect: {os.strerror(ctypes.get_errno())}")
        self._kept.append(mapping)
        return start
