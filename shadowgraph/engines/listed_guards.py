"""The guards that check nodes compare: a table in device memory, with one slot for each standing guard.

The engine lists guards after each change and withdraws one before its memory goes to another owner. Slots are set on
the stream that writes canaries, so that no check compares a guard before its canary is written. Any thread; has its own
lock, under which nothing waits but the upload of new slots.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from shadowgraph.engines.canary_stream import THREADS
from shadowgraph.engines.device import Device
from shadowgraph.engines.guard_table import GUARD, row_of
from shadowgraph.engines.kernels import Kernels
from shadowgraph.engines.launcher import Launcher
from shadowgraph.model.guards import Guard

SLOT = np.dtype([("guard", GUARD), ("at", "<u4"), ("unused", "<u4", (3,))])
_FEWEST = 1024  # slots of the first table
_ROUND = 32  # slots are published in groups
_REST = 1.0  # seconds before a slot gets another guard: by far longer than a check that may still read it
_REMEMBERED = 1024  # withdrawn guards, of which evidence may still arrive
_EMPTIED = 64  # slots that one launch empties, as in kernels.cu
_NO_SLOT = 0xFFFFFFFF


class _Emptied(ctypes.Structure):
    """``struct Emptied`` of kernels.cu."""

    _fields_ = (("at", ctypes.c_uint32 * _EMPTIED),)


class ListedGuards:
    """The table, and which guard has which slot. Thread-safe.

    Attributes
    ----------
    address
        Device address of ``struct Listed``, which stays the same while tables grow.
    guards
        What was listed last.
    slots
        Slots with a guard.
    """

    def __init__(self, device: Device, kernels: Kernels) -> None:
        wide, narrow = ctypes.c_uint64, ctypes.c_uint32
        self._device, context = device, device.context
        self._set = Launcher(context, kernels.set_slots, (wide, wide, narrow))
        self._empty = Launcher(context, kernels.empty_slots, (wide, _Emptied))
        self._publish = Launcher(context, kernels.publish, (wide, wide, narrow, narrow))
        self._pauses = [Launcher(context, kernels.pause, (wide, narrow)) for _ in range(2)]
        self._lock = threading.RLock()
        self._listed = device.zeros(32)
        self.address = int(self._listed.data.ptr)
        for paused, launcher in enumerate(self._pauses):
            launcher.set((self.address, paused))
        self._tables: list[Any] = []  # older ones may still be read: each is half as large as the next
        self._capacity = self._used = self._published = 0
        self._paused, self._halts = False, deque[None]()
        self._slots: dict[int, tuple[int, Guard]] = {}  # by start of the guard
        self._at: dict[int, Guard] = {}  # by slot
        self._resting: deque[tuple[float, int]] = deque()
        self._withdrawn: deque[tuple[int, Guard]] = deque(maxlen=_REMEMBERED)
        self._uploads: deque[tuple[Any, Any]] = deque()  # an event behind the kernel that reads it, and the memory
        self.guards: Sequence[Guard] = ()

    @property
    def slots(self) -> int:
        return len(self._slots)

    def show(self, guards: Sequence[Guard]) -> None:
        """List these guards and no others."""
        with self._lock:
            wanted = {guard.whole.start: guard for guard in guards if guard.near.nbytes}
            gone = [start for start, (_, guard) in self._slots.items() if not _same(wanted.get(start), guard)]
            self.withdraw(gone)
            self._add([guard for start, guard in wanted.items() if start not in self._slots])
            for start, guard in wanted.items():
                slot, listed = self._slots[start]
                if guard is not listed:  # an equal one may be of another buffer by now
                    self._slots[start] = slot, guard
                    self._at[slot] = guard
            self.guards = guards

    def withdraw(self, starts: Iterable[int]) -> bool:
        """Take guards off the table, in order with the work of the stream that writes canaries; returns whether any
        stood there."""
        with self._lock:
            found = [self._slots.pop(start) for start in starts if start in self._slots]
            if not found:
                return False
            self.guards = ()
            now = time.monotonic()
            for slot, guard in found:
                self._withdrawn.append((slot, guard))
                del self._at[slot]
                self._resting.append((now, slot))
            self._take_off([slot for slot, _ in found])
            return True

    def pause(self, paused: bool) -> None:
        """Let check nodes count replays only, or compare again."""
        with self._lock:
            self._paused = paused
            self._set_paused()

    def halt(self) -> None:
        """Let check nodes compare nothing until `go_on`: memory in which guards stand is about to go, and its owner
        ends where no lock may be taken. Takes none, and allocates nothing."""
        self._halts.append(None)
        self._pauses[True].launch(1, 1, self._device.arming.ptr)

    def go_on(self) -> None:
        """The guards of such a memory were withdrawn."""
        with self._lock:
            self._halts.pop()
            self._set_paused()

    def _set_paused(self) -> None:
        """Publish whether checks pause. A halt that begins meanwhile has launched before: publish it once more."""
        paused: bool | None = None
        while paused is not (self._paused or bool(self._halts)):
            paused = self._paused or bool(self._halts)
            self._pauses[paused].launch(1, 1, self._device.arming.ptr)

    def guard_of(self, slot: int, address: int) -> Guard | None:
        """The guard at a slot whose bytes hold an address. One that was withdrawn lately too, unless its memory belongs
        to another allocator, which may have handed it on."""
        with self._lock:
            found = self._at.get(slot)
            if found is not None and found.whole.contains(address):
                return found
            old = (guard for at, guard in reversed(self._withdrawn) if at == slot and guard.rearm)
            return next((guard for guard in old if guard.whole.contains(address)), None)

    # -- parts -------------------------------------------------------------------------------------------------

    def _take_off(self, slots: Sequence[int]) -> None:
        """Empty slots; nothing is allocated, as a graph may be ending."""
        address, chosen = self._empty.values
        address.value = self.address
        for place in range(0, len(slots), _EMPTIED):
            some = slots[place : place + _EMPTIED]
            chosen.at[:] = [*some, *[_NO_SLOT] * (_EMPTIED - len(some))]
            self._empty.launch(1, _EMPTIED, self._device.arming.ptr)

    def _add(self, guards: Sequence[Guard]) -> None:
        """Set slots; where memory cannot be had nothing has changed."""
        if not guards:
            return
        now = time.monotonic()
        ready = sum(1 for since, _ in self._resting if since < now - _REST)
        self._grow(self._used + max(0, len(guards) - ready))
        slots = [self._resting[at][1] for at in range(min(ready, len(guards)))]
        slots += range(self._used, self._used + len(guards) - len(slots))
        rows = np.zeros(len(guards), dtype=SLOT)
        for index, (guard, slot) in enumerate(zip(guards, slots, strict=True)):
            rows[index]["guard"], rows[index]["at"] = row_of(guard), slot
        uploaded = self._device.upload(rows)
        self._set.set((self.address, int(uploaded.data.ptr), len(guards)))
        self._set.launch(1, THREADS, self._device.arming.ptr)
        self._keep(uploaded)
        for _ in range(min(ready, len(guards))):
            self._resting.popleft()
        self._used = max(self._used, max(slots) + 1)
        for guard, slot in zip(guards, slots, strict=True):
            self._slots[guard.whole.start] = slot, guard
            self._at[slot] = guard
        rounded = min(-(-self._used // _ROUND) * _ROUND, self._capacity)
        if rounded != self._published:
            self._tell(rounded)

    def _grow(self, used: int) -> None:
        """Move to a table with room for as many slots. Rows first, then one word for each, which marks a hit."""
        if used <= self._capacity:
            return
        capacity = max(_FEWEST, 1 << (used - 1).bit_length())
        table = self._device.zeros(capacity * (GUARD.itemsize + 4))
        if self._tables:
            with self._device.context.current():
                old, nbytes = self._tables[-1].data.ptr, self._capacity * GUARD.itemsize
                self._device.runtime.memcpyAsync(table.data.ptr, old, nbytes, 3, self._device.arming.ptr)
        self._tables.append(table)
        self._capacity = capacity
        self._tell(self._published)

    def _tell(self, published: int) -> None:
        self._published = published
        self._publish.set((self.address, int(self._tables[-1].data.ptr), published, self._capacity))
        self._publish.launch(1, 1, self._device.arming.ptr)

    def _keep(self, memory: Any) -> None:
        """Keep an upload until the kernel that reads it has run."""
        device, uploads = self._device, self._uploads
        with device.context.current():
            event = device.event()
            event.record(device.arming)
            uploads.append((event, memory))
            while uploads and uploads[0][0].done:
                device.done_with(uploads.popleft()[0])


def _same(wanted: Guard | None, listed: Guard) -> bool:
    """Whether a guard stands as it was listed."""
    return wanted is listed or (wanted is not None and row_of(wanted) == row_of(listed))
