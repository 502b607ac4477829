"""The GPU engine: one launch for each check, results through pinned memory, no synchronisation unless requested.

Any thread; the engine's lock protects checks in flight and their tables. Waits run without it.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from shadowgraph.engines import copies
from shadowgraph.engines.arming import THREADS, Arming
from shadowgraph.engines.base import Evidence, Mirror, Result, Shadow
from shadowgraph.engines.copies import Fetch
from shadowgraph.engines.cupy_shadow import CupyShadow, shadow_of
from shadowgraph.engines.device import Device
from shadowgraph.engines.guard_table import GuardTable, table_of
from shadowgraph.engines.kernels import kernels_of
from shadowgraph.engines.losses import is_device_loss
from shadowgraph.engines.mirror import MirrorRing, NoCopy
from shadowgraph.engines.ring import RECORD, RingReader
from shadowgraph.engines.step import Prepared
from shadowgraph.model.canary import PERIOD, canary
from shadowgraph.model.guards import Guard
from shadowgraph.model.ranges import ByteRange

SLOTS = 1024  # checks in flight and ring records, as in kernels.cu
KEPT, KEPT_NBYTES = 512, 72  # records of broken guards, as in kernels.cu
TABLES = 8  # cached guard tables
GUARDS_ONLY, COPY, COMPARE = 0, 1, 2

_POLL, _PATIENCE = 50e-6, 10.0  # seconds; for streams on which no event may be recorded
_Parts = Sequence[tuple[object, ByteRange]]


# A launched check not yet seen as done: tag, guards, parts, and the device memory that it reads.
_Pending = tuple[object, Sequence[Guard], _Parts, object]
_Found = list[tuple[tuple[int, int], Evidence[object]]]  # for one check: guards before parts, each with its index


class CupyEngine:
    """Checks on one CUDA device, by default the current one. Thread-safe.

    The constructor compiles kernels, so create it before any capture begins. Canary positions are device addresses.

    Parameters
    ----------
    expandable
        Whether torch's allocator uses expandable segments.

    Attributes
    ----------
    unmappable
        Number of ranges that are not compared because their memory may be unmapped.

    Raises
    ------
    MissingPackageError
        Without a cupy that fits this CUDA.
    """

    origin = 0
    asynchronous = True
    keeps = True

    def __init__(self, device: int | None = None, expandable: bool = False) -> None:
        self._expandable, self.unmappable = expandable, 0
        index = torch.cuda.current_device() if device is None else device
        self._device = Device(index)
        self._lock = threading.RLock()
        self._serial = 0
        self._far_turn = 0
        self._slots: set[int] = set()
        self._stale: set[int] = set()  # shadows whose last copy was skipped
        self._left_out = 0
        self._pending: dict[int, _Pending] = {}
        self._found: dict[int, _Found] = {}  # evidence that has arrived, by pending check
        self._tables: dict[int, GuardTable] = {}
        self._table: GuardTable | None = None  # of the last guards
        self._table_guards: Sequence[Guard] = ()
        self._fetches: deque[Fetch] = deque()
        self.lost: str | None = None
        step, one, many, mirror, self.probe_function = kernels_of(index)
        fixed = self._make_buffers()
        self._prepared = [Prepared(self._device, step, fixed, mode) for mode in (GUARDS_ONLY, COPY, COMPARE)]
        self._arming = Arming(self._device, one, many, fixed[1], fixed[4])
        self._mirrors = MirrorRing(self._device, mirror)
        self._reader = RingReader(self._records)

    def _make_buffers(self) -> tuple[int, ...]:
        """Buffers that every check uses: the ring, the canary table, counters, completion words, broken guards."""
        device = self._device
        self._canaries = device.upload(np.frombuffer(canary(0, PERIOD) * 2, dtype=np.uint8))
        self._pinned = device.pinned(SLOTS * RECORD.itemsize + SLOTS * 4)
        whole = np.frombuffer(self._pinned, dtype=np.uint8, count=SLOTS * RECORD.itemsize + SLOTS * 4)
        self._records: npt.NDArray[np.void] = whole[: SLOTS * RECORD.itemsize].view(RECORD)
        self._done = whole[SLOTS * RECORD.itemsize :].data.cast("I")
        header = np.zeros(1, dtype=[("head", "<u8"), ("capacity", "<u8"), ("records", "<u8")])
        header["capacity"], header["records"] = SLOTS, self._pinned.ptr
        self._ring = device.upload(header.view(np.uint8))
        self._counters, self._kept = device.zeros(8 * SLOTS), device.zeros(KEPT * KEPT_NBYTES)
        done = int(self._pinned.ptr) + SLOTS * RECORD.itemsize
        ring, table, counters, kept = (
            int(made.data.ptr) for made in (self._ring, self._canaries, self._counters, self._kept)
        )
        return ring, table, counters, done, kept

    @property
    def dropped(self) -> int:
        """Number of records overwritten before the host read them, plus checks that found no slot."""
        return self._reader.dropped + self._left_out

    @property
    def device(self) -> Device:
        """The device of this engine; `probe_function` is the kernel of probed replays on it."""
        return self._device

    def arm(self, guard: Guard) -> None:
        """Fill a guard, ordered before every later check."""
        self._arming.fill(guard.whole)
        self._order_here()

    def rearm(self, guard: Guard) -> None:
        """Refill a broken guard on the current stream; nothing while that stream captures."""
        if not self._device.captures:
            self._arming.fill_here(guard.whole)

    def malloc(self, nbytes: int) -> int:
        """Allocate device memory, owned by the caller for the life of the process; returns its address.

        Raises
        ------
        MemoryError
            When the device is out of memory.
        """
        device = self._device
        with device.context.current():
            try:
                return int(device.runtime.malloc(nbytes))
            except device.runtime.CUDARuntimeError as error:
                if is_device_loss(error):
                    raise
                raise MemoryError(f"cudaMalloc of {nbytes} bytes: {error}") from None

    def note_stream(self) -> None:
        """Let later calls of `wait` include the current stream."""
        self._device.note_stream()

    def wait(self) -> bool:
        """See `Device.wait`."""
        return self._device.wait()

    def passed(self) -> bool:
        """See `Device.passed`."""
        return self._device.passed()

    def fill(self, where: ByteRange) -> None:
        """Fill a range with its canary, ordered before every later check."""
        self._arming.fill(where)
        self._order_here()

    def fill_many(self, ranges: Sequence[ByteRange]) -> None:
        """Fill many ranges in one launch."""
        self._arming.fill_many(ranges)
        self._order_here()

    def _order_here(self) -> None:
        """Order the current stream behind the fills so far: else a fill could overwrite the damage of a later write. A
        stream that captures must not wait for another one; its replay begins with a check."""
        if not self._device.captures:
            self._arming.order(self._device.raw_stream())

    def fill_after(self) -> None:
        """Order later fills behind the work queued on the current stream, such as the final check of a guard; a stream
        that captures has queued nothing."""
        if not self._device.captures:
            self._arming.after()

    def shadow(self, parts: _Parts) -> CupyShadow:
        """Allocate shadow copies of ranges; the host waits briefly, so ask once for a set of ranges.

        Ranges in memory that may be unmapped are left out and counted: a check would read them at each replay.
        """
        kept = [(key, where) for key, where in parts if not where.nbytes or not self.may_be_unmapped(where.start)]
        self.unmappable += len(parts) - len(kept)
        return shadow_of(self._device, tuple(kept))

    def may_be_unmapped(self, address: int) -> bool:
        """Whether an address lies in memory of a memory saver or a sleep mode. An allocator with expandable segments
        does not count: it unmaps only free memory."""
        if self._expandable:
            return False
        device = self._device
        with device.context.current():
            return device.context.may_be_unmapped(address)

    def check(
        self,
        tag: object,
        guards: Sequence[Guard],
        take: Shadow | None = None,
        compare: Shadow | None = None,
        in_full: bool = False,
    ) -> None:
        """Launch one check on the current stream; nothing while that stream captures."""
        context, stream = self._device.context, self._device.raw_stream()
        entered = context.enter()
        try:
            if not context.captures(stream):
                self._check(tag, guards, take, compare, in_full, stream)
        finally:
            context.leave(entered)

    def _check(  # noqa: C901  one submission: mode, table, slot and launch under one lock
        self,
        tag: object,
        guards: Sequence[Guard],
        take: Shadow | None,
        compare: Shadow | None,
        in_full: bool,
        stream: int,
    ) -> None:
        """`check`, with the context current and on a stream that does not capture."""
        shadow: Any = take if take is not None else compare
        if shadow is not None and (not shadow.chunk_count or (take is None and id(shadow) in self._stale)):
            shadow = None
        mode = GUARDS_ONLY if shadow is None else COPY if take is not None else COMPARE
        with self._lock:
            table = self._table if guards is self._table_guards else self._table_of(guards)
            prepared = self._prepared[mode]
            if not prepared.fits(table, shadow):
                prepared.set(table, shadow)
            if not prepared.grid:
                return
            serial = self._next_serial()
            if serial is None:
                if mode == COPY:
                    self._stale.add(id(shadow))
                return
            if mode == COPY:
                self._stale.discard(id(shadow))
            self._pending[serial] = tag, guards, shadow.parts if mode == COMPARE else (), (table, shadow)
            self._device.note_stream()
            try:
                if stream not in self._arming.ordered:
                    self._arming.order(stream)
                if in_full and table is not None and table.far_count:
                    self._look_everywhere(table, serial, stream)
                else:
                    self._look(prepared, serial, stream)
            except BaseException:  # refused: no result will come
                del self._pending[serial]
                self._slots.discard(serial % SLOTS)
                raise

    def _next_serial(self) -> int | None:
        """A serial whose slot is free. None when all slots are taken: the check is skipped, and counted."""
        slots, serial = self._slots, self._serial % 0xFFFFFFFF + 1
        if serial % SLOTS in slots:
            if len(slots) == SLOTS:
                self._left_out += 1
                return None
            while serial % SLOTS in slots:
                serial = serial % 0xFFFFFFFF + 1
        self._serial = serial
        slots.add(serial % SLOTS)
        return serial

    def _look(self, prepared: Prepared, serial: int, stream: int) -> None:
        """Launch a check of all near parts, and of the far pieces next in rotation."""
        prepared.check.value = serial
        if prepared.far_blocks:
            prepared.far_turn.value = self._far_turn
            self._far_turn += prepared.far_blocks
        prepared.launcher.launch_here(prepared.grid, THREADS, stream)

    def _look_everywhere(self, table: GuardTable, serial: int, stream: int) -> None:
        """Launch a check of every guard in full."""
        prepared = self._prepared[GUARDS_ONLY]
        prepared.set(table, None)
        blocks = table.far_count * table.far_pieces
        prepared.step.far_blocks, prepared.far_turn.value, prepared.far_all.value = blocks, 0, 1
        prepared.check.value = serial
        try:
            prepared.launcher.launch_here(prepared.step.guard_blocks + blocks, THREADS, stream)
        finally:
            prepared.grid, prepared.far_all.value = -1, 0

    def fetch(self, tag: object, parts: _Parts) -> None:
        """Queue copies into one block of pinned memory on the current stream; nothing while that stream captures."""
        if any(where.nbytes for _, where in parts) and not self._device.captures:
            with self._lock:
                self._fetches.append(copies.fetched(self._device, tag, parts))

    def read(self, where: ByteRange) -> bytes:
        """Read a range behind the work queued on the current stream; waits for it."""
        return copies.read(self._device, where)

    def read_many(self, ranges: Sequence[ByteRange]) -> list[memoryview]:
        """Read ranges behind the work queued on the current stream, into one pinned block; waits once. While that
        stream captures, the copies run on another one, unordered with its work."""
        return copies.read_many(self._device, ranges)

    def mirror(self, ranges: Sequence[ByteRange]) -> Mirror:
        """Queue copies into a ring of pinned memory, in one launch; none while the current stream captures."""
        return NoCopy() if self._device.captures else self._mirrors.copy(ranges)

    def lose(self, reason: str) -> None:
        """Mark the device as lost: no more waits; the next `poll` returns the results that have arrived."""
        self.lost = self.lost or reason

    def poll(self, wait: bool = False, here: bool = False) -> list[Result]:
        """Results of finished checks, in order of submission; with `wait` of all checks, or with `here` of those on the
        current stream. While a capture runs, a wait for other streams would invalidate it, and is left out."""
        if not self._pending and not self._fetches:
            return []
        if wait and self.lost is None and not self._device.captures:
            self._wait(here)
        with self._lock:
            if self.lost is not None:  # evidence that reached the host in time still counts
                self._fetches.clear()
            finished = self._finished(wait) if self.lost is None else list(self._pending)
            if finished and self._reader.arrived:
                self._take_evidence()
            results = []
            for serial in finished:
                tag = self._pending.pop(serial)[0]
                self._slots.discard(serial % SLOTS)
                if serial in self._found:
                    results.append(_result(tag, self._found.pop(serial)))
            while self._fetches and self._fetches[0].arrived(self._device):
                results.append(self._fetches.popleft().result())
            return results

    def _wait(self, here: bool) -> None:
        """Wait for the checks of the current stream, or of all streams where possible."""
        try:
            if here:
                self._device.wait_here()
                return
            self._device.wait()
            deadline = time.monotonic() + _PATIENCE
            while self._unfinished() and time.monotonic() < deadline:
                time.sleep(_POLL)
                self._arming.check_alive()  # raises if the context is dead
        except Exception as error:
            if not is_device_loss(error):
                raise
            self.lost = str(error).split("\n", 1)[0]

    def _unfinished(self) -> bool:
        """Whether checks still run on streams that `Device.wait` left out: foreign ones, or because of a capture."""
        with self._lock:
            return any(self._done[serial % SLOTS] != serial for serial in self._pending)

    def _finished(self, everything: bool) -> list[int]:
        """Serials of finished checks, oldest first: up to the first unfinished one, or, after a wait that may have
        covered one stream only, of `everything` that is finished."""
        finished, done = [], self._done
        for serial in self._pending:
            if done[serial % SLOTS] == serial:
                finished.append(serial)
            elif not everything:
                break
        return finished

    def _take_evidence(self) -> None:
        """Assign arrived records to their checks, including checks not yet seen as done."""
        for record in self._reader.take():
            serial = int(record["check"])
            pending = self._pending.get(serial)
            if pending is not None:
                _, guards, parts, _ = pending
                is_part, index = int(record["is_part"]), int(record["index"])
                subject: object = parts[index][0] if is_part else guards[index]
                self._found.setdefault(serial, []).append(((is_part, index), _evidence(record, subject)))

    def _table_of(self, guards: Sequence[Guard]) -> GuardTable | None:
        known = self._tables.get(id(guards))
        if guards and (known is None or known.guards is not guards):
            while len(self._tables) >= TABLES:
                self._tables.pop(next(iter(self._tables)))
            known = self._tables[id(guards)] = table_of(self._device, guards)
        self._table, self._table_guards = known if guards else None, guards
        return self._table


def _result(tag: object, found: _Found) -> Result:
    """The result of a check, with evidence in a fixed order: warps report in any order."""
    return Result(tag, tuple(evidence for _, evidence in sorted(found, key=lambda pair: pair[0])))


def _evidence(record: np.void, subject: object) -> Evidence[object]:
    length, listed = int(record["window_len"]), int(record["ranges_listed"])
    pairs = record["ranges"][: 2 * listed].reshape(-1, 2)
    return Evidence(
        subject=subject,
        first=int(record["first"]),
        last=int(record["last"]),
        count=int(record["count"]),
        ranges=tuple((int(a), int(b)) for a, b in pairs),
        ranges_total=int(record["ranges_total"]),
        window=int(record["window"]),
        expected=record["expected"][:length].tobytes(),
        found=record["found"][:length].tobytes(),
        truncated=bool(record["truncated"]),
    )
