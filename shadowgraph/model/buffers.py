"""The ledger: every buffer with its address range, requested size, dtype, shape and allocation stack.

Any thread. `Ledger` has its own lock; `Ledger.free` takes none, since finalizers call it. A `Buffer` has no lock: the
allocator moves its guards under the allocator's lock.
"""

from __future__ import annotations

import itertools
import os
from collections import deque
from collections.abc import Iterator
from enum import StrEnum

import msgspec

from shadowgraph.common.finalizer_safe_lock import FinalizerSafeLock
from shadowgraph.common.html_repr import HtmlRepr, namer_of
from shadowgraph.common.words import form, plural
from shadowgraph.model.ranges import ByteRange, RangeIndex
from shadowgraph.model.saved_fields import Absent, Text
from shadowgraph.model.stacks import Stack
from shadowgraph.model.views import TensorView

HISTORY = 10_000  # freed buffers remembered


class Role(StrEnum):
    """Where a buffer's memory comes from."""

    STATIC = "static"  # allocated by the program before a capture, through guarded allocation
    POOL = "pool"  # allocated during a capture, from a graph's private pool
    FOREIGN = "foreign"  # memory of another allocator: tracked; guarded only where a tail was laid behind it


class Buffer(HtmlRepr, msgspec.Struct, eq=False, gc=False):
    """One tenancy of memory: from its allocation to its free.

    Attributes
    ----------
    serial
        Allocation serial, unique in the process, in order of allocation.
    start, nbytes
        First address and the requested bytes (not the allocator's rounded size).
    dtype, shape, itemsize
        As first allocated; views may differ.
    head_guard, tail_guard
        Canary bytes before `start` and after `guard_start`; 0 when not guarded.
    graph
        Serial of the graph whose capture allocated it, or None.
    inexact
        Trailing bytes of `nbytes` that this tenant did not request, where one buffer stands for all tenants of a block.
    gap
        Bytes between `stop` and the tail guard, which other graphs may write while this tenant lives. Without a tail
        guard: bytes to the next guard, which belongs to another buffer.
    lent
        Its guards stand in memory that another allocator may allocate: no check writes there.
    owned
        Of host memory: it certainly ends with its storage.
    alias
        Of foreign memory: its storage was made over an address and owns nothing; its end is not that of the memory.
    freed_at
        Serial counter at its free, or None while it lives.
    captured
        A graph was captured with it, so that its end is noted.
    freed_by
        Stack of the program where the last reference to it went; empty where that is not known.
    resized
        The program resized the tensor that had it, which has other memory since.
    fence
        Bytes from `stop` to the unmapped memory of a fence; -1 where it has none.
    place
        Where it would lie if its capture had kept no freed memory from reuse (layout ``isolate``); -1 where it lies.
    """

    serial: int
    start: int
    nbytes: int
    role: Role
    dtype: Text = "uint8"
    shape: tuple[int, ...] = ()
    itemsize: int = 1
    stack: Stack = ()
    device: Text = "cpu"
    graph: int | None = None
    pool: int | None = None
    head_guard: int = 0
    tail_guard: int = 0
    inexact: int = 0
    gap: int = 0
    lent: Absent[bool] = False
    owned: Absent[bool] = False
    alias: Absent[bool] = False
    freed_at: int | None = None
    handle: Absent[int] = -1
    captured: Absent[bool] = False
    freed_by: Absent[Stack] = ()
    resized: Absent[bool] = False
    place: Absent[int] = -1
    fence: int = -1

    @property
    def stop(self) -> int:
        """Address after the last byte."""
        return self.start + self.nbytes

    @property
    def range(self) -> ByteRange:
        """Its addresses."""
        return ByteRange(self.start, self.stop)

    @property
    def alive(self) -> bool:
        """Whether it has not been freed."""
        return self.freed_at is None

    @property
    def guarded(self) -> bool:
        """Whether a guard or a fence stands behind it."""
        return self.tail_guard > 0 or self.fence >= 0

    @property
    def guard_start(self) -> int:
        """First address of the tail guard."""
        return self.stop + self.gap

    @property
    def exact(self) -> bool:
        """Whether a guard starts right after the last requested byte; of a freed tenant, once its guard stands
        again."""
        return self.guarded and not self.inexact and not (self.gap and self.alive)

    def __repr__(self) -> str:
        state = ", freed" if not self.alive else ", guarded" if self.guarded else ""
        place = f"{plural(self.nbytes, 'byte')} at {self.start:#x}, {self.role}{state}"
        return f"<Buffer #{self.serial}{_called(self)}: {form(self.dtype, self.shape)}, {place}>"

    def keep_back(self, gap: int) -> None:
        """Move the start of the tail guard to `gap` bytes after `stop`; its end stays."""
        self.tail_guard += self.gap - gap
        self.gap = gap


def _called(buffer: Buffer) -> str:
    """The name that a debugger or a dump knows, after a space; else nothing."""
    try:
        namer = namer_of(buffer)
        return f" {namer.called(buffer)}" if namer is not None else ""
    except Exception:  # a `repr` never fails
        return ""


def allocation_name(buffer: Buffer) -> str:
    """The name of a buffer without owners: its dtype and shape, and the line that allocated it."""
    form = f"{buffer.dtype}{list(buffer.shape)}"
    if not buffer.stack:
        return f"{form} at {buffer.start:#x}"
    frame = buffer.stack[0]
    return f"{form} from {os.path.basename(frame.file)}:{frame.line}"


def buffer_view(buffer: Buffer) -> TensorView:
    """A buffer's bytes as a flat view of its dtype."""
    return TensorView(
        address=buffer.start,
        storage_address=buffer.start,
        storage_nbytes=buffer.nbytes,
        shape=(buffer.nbytes // buffer.itemsize,),
        stride=(1,),
        dtype=buffer.dtype,
        itemsize=buffer.itemsize,
        device=buffer.device,
    )


class Ledger:
    """All buffers by address and serial; thread-safe. Owns its records, never the memory.

    A storage's finalizer may run inside the garbage collector in the middle of a query, so `free` only marks and queues
    the buffer; the next call removes it from the index.

    Attributes
    ----------
    host
        The ledger of host memory that copies to or from this ledger's device use, with serials of the same count: no
        check reads or guards it. Of a ledger of host memory, itself.
    """

    def __init__(self, serials: Iterator[int] | None = None) -> None:
        self._lock = FinalizerSafeLock()
        self._serials = itertools.count(1) if serials is None else serials
        self.host: Ledger = Ledger(self._serials) if serials is None else self
        self._live: RangeIndex[Buffer] = RangeIndex()
        self._by_serial: dict[int, Buffer] = {}
        self._freed: deque[Buffer] = deque(maxlen=HISTORY)
        self._waiting: deque[Buffer] = deque()
        self.version = 0  # changes with every allocation and free
        self.frees = 0  # buffers freed so far

    def next_serial(self) -> int:
        return next(self._serials)

    def add(self, buffer: Buffer) -> Buffer:
        """Enter a live buffer."""
        with self._lock.section:
            self._settle()
            buffer.handle = self._live.add(buffer.range, buffer)
            self._by_serial[buffer.serial] = buffer
            self.version += 1
        return buffer

    def free(self, buffer: Buffer) -> None:
        """Mark a buffer freed; it stays in the history. Takes no lock; safe inside a finalizer."""
        if buffer.freed_at is None:
            buffer.freed_at = self.next_serial()
            self.version += 1
            self.frees += 1
            self._waiting.append(buffer)

    def _settle(self) -> None:
        """Take freed buffers out of the index; with the lock."""
        while self._waiting:
            buffer = self._waiting.popleft()
            self._live.remove(buffer.handle)
            self._by_serial.pop(buffer.serial, None)
            self._freed.append(buffer)

    def get(self, serial: int) -> Buffer | None:
        """A live or remembered buffer by serial."""
        with self._lock.section:
            self._settle()
            found = self._by_serial.get(serial)
            if found is not None:
                return found
            return next((buffer for buffer in self._freed if buffer.serial == serial), None)

    @property
    def newest(self) -> int:
        """The serial of the newest live buffer; 0 without one."""
        with self._lock.section:
            self._settle()
            return next(reversed(self._by_serial), 0)

    def after(self, serial: int) -> list[Buffer]:
        """Live buffers entered after the one with a serial, the newest first."""
        with self._lock.section:
            self._settle()
            newest = reversed(self._by_serial.values())  # in order of entry
            return list(itertools.takewhile(lambda buffer: buffer.serial > serial, newest))

    def at(self, address: int) -> Buffer | None:
        """The live buffer that holds an address."""
        with self._lock.section:
            self._settle()
            found = self._live.at(address)
            return found[-1] if found else None

    def owner(self, start: int, stop: int) -> Buffer | None:
        """The live buffer that a view of ``[start, stop)`` belongs to; for an empty view the one at its address.

        Of several the smallest that holds the whole view, else the first by address.
        """
        stop = max(stop, start + 1)
        with self._lock.section:
            self._settle()
            found = [buffer for _, buffer in self._live.overlapping(start, stop)]
        if len(found) < 2:
            return found[0] if found else None
        whole = [buffer for buffer in found if buffer.start <= start and stop <= buffer.stop]
        return min(whole, key=lambda buffer: buffer.nbytes, default=found[0])

    def holds(self, where: ByteRange) -> bool:
        """Whether a range belongs to a live buffer."""
        return self.owner(where.start, where.stop) is not None

    def overlapping(self, start: int, stop: int) -> list[Buffer]:
        """Live buffers with bytes in ``[start, stop)``, by address."""
        with self._lock.section:
            self._settle()
            return [buffer for _, buffer in self._live.overlapping(start, stop)]

    def neighbours(self, buffer: Buffer) -> tuple[Buffer | None, Buffer | None]:
        """The live buffers next before and next after, by address."""
        with self._lock.section:
            self._settle()
            before = self._live.before(buffer.start)
            after = self._live.after(buffer.stop)
        previous = before[1] if before and before[1] is not buffer else None
        following = after[1] if after and after[1] is not buffer else None
        return previous, following

    def __iter__(self) -> Iterator[Buffer]:
        with self._lock.section:
            self._settle()
            return iter(sorted(self._by_serial.values(), key=lambda buffer: buffer.serial))

    def __len__(self) -> int:
        with self._lock.section:
            self._settle()
            return len(self._by_serial)

    @property
    def freed(self) -> tuple[Buffer, ...]:
        """Remembered freed buffers, oldest first."""
        with self._lock.section:
            self._settle()
            return tuple(self._freed)
