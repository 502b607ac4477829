"""The engine on a GPU: one launch a boundary, results through pinned memory, no synchronisation unless asked for."""

from __future__ import annotations

import ctypes
import hashlib
import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from shadowgraph.compat import relaxed_capture, require_cupy
from shadowgraph.engines.base import Evidence, Result, Shadow
from shadowgraph.engines.launcher import Launcher
from shadowgraph.engines.ring import RECORD, RingReader
from shadowgraph.tracking.canary import PERIOD, canary
from shadowgraph.tracking.guards import Guard, Side
from shadowgraph.tracking.ranges import ByteRange

GUARD = np.dtype([("near", "<u8"), ("whole", "<u8"), ("nbytes", "<u8"), ("near_nbytes", "<u4"), ("after", "<u4")])
CHUNK = np.dtype([("source", "<u8"), ("shadow", "<u8"), ("mirror", "<u8"), ("nbytes", "<u4"), ("part", "<u4")])
PART = np.dtype(
    [(n, "<u8") for n in ("start", "shadow", "nbytes", "first", "last", "count")] + [("done", "<u4"), ("chunks", "<u4")]
)
CHUNK_BYTES = 32 << 10
THREADS = 256
LANES = 8
SLOTS = 1024  # checks in flight, and records in the ring
MIRRORED = 64 << 10  # parts up to this size are copied to the host too, so that their last values survive the device


@dataclass(frozen=True, slots=True, eq=False)
class CupyShadow:
    """Room on the device for copies of ranges; owned by whoever asked for it, freed with it."""

    parts: tuple[tuple[object, ByteRange], ...]
    room: Any
    chunks: Any
    states: Any
    chunk_count: int
    mirror: Any
    mirrored: dict[int, int]

    def last_values(self) -> list[tuple[object, ByteRange, bytes]]:
        """The mirrored parts as they were when last copied; needs no device."""
        view = memoryview(self.mirror) if self.mirrored else memoryview(b"")
        found = []
        for index, offset in self.mirrored.items():
            key, where = self.parts[index]
            found.append((key, where, bytes(view[offset : offset + where.nbytes])))
        return found


@dataclass(slots=True)
class _Pending:
    """A check that was launched and not yet seen to be done."""

    tag: object
    guards: Sequence[Guard]
    parts: Sequence[tuple[object, ByteRange]]
    held: object  # device memory that the launch reads
    evidence: list[tuple[tuple[int, int], Evidence[object]]] = field(default_factory=list)  # by guard, then by part


@dataclass(frozen=True, slots=True)
class _Fetch:
    """Bytes on their way to the host."""

    tag: object
    key: object
    nbytes: int
    pinned: Any
    event: Any


class CupyEngine:
    """Checks on the device of its construction. Thread-safe.

    Kernels are compiled here, so make one before any capture begins. Canary positions are device addresses.

    Raises
    ------
    MissingPackageError
        Without a cupy that fits this CUDA.
    """

    origin = 0
    asynchronous = True

    def __init__(self, device: int | None = None) -> None:
        self._cp: Any = require_cupy()
        self._device = torch.cuda.current_device() if device is None else device
        self._lock = threading.RLock()
        self._serial = 0
        self._pending: dict[int, _Pending] = {}
        self._tables: dict[int, tuple[Sequence[Guard], Any]] = {}
        self._streams: dict[int, Any] = {}
        self._unjudged: list[Result] = []
        self._fetches: deque[_Fetch] = deque()
        self._kept: list[Any] = []
        self._prepared: tuple[object, object, int] = (None, None, -1)
        self.lost: str | None = None
        with relaxed_capture(), self._cp.cuda.Device(self._device):
            source = files("shadowgraph.engines").joinpath("kernels.cu").read_text(encoding="utf-8")
            module = self._cp.RawModule(code=source, options=("-std=c++17",))
            self._kernels = [module.get_function(name) for name in ("check_step", "arm", "arm_many")]
            self._make_buffers()
        wide, narrow, signed = ctypes.c_uint64, ctypes.c_uint32, ctypes.c_int32
        step = (wide, signed, signed, wide, wide, signed, wide, wide, narrow, wide, wide, narrow)
        self._step = Launcher(self._kernels[0].kernel.ptr, step)
        self._arm = Launcher(self._kernels[1].kernel.ptr, (wide, wide, wide))
        self._arm_many = Launcher(self._kernels[2].kernel.ptr, (wide, wide))
        self._reader = RingReader(self._records)

    def _make_buffers(self) -> None:
        cp = self._cp
        self._table = cp.asarray(np.frombuffer(canary(0, PERIOD) * 2, dtype=np.uint8))
        self._pinned = cp.cuda.alloc_pinned_memory(SLOTS * RECORD.itemsize + SLOTS * 4)
        whole = np.frombuffer(self._pinned, dtype=np.uint8, count=SLOTS * RECORD.itemsize + SLOTS * 4)
        whole[:] = 0
        self._records: npt.NDArray[np.void] = whole[: SLOTS * RECORD.itemsize].view(RECORD)
        self._done = whole[SLOTS * RECORD.itemsize :].view(np.uint32)
        header = np.zeros(1, dtype=[("head", "<u4"), ("capacity", "<u4"), ("records", "<u8")])
        header["capacity"], header["records"] = SLOTS, self._pinned.ptr
        self._ring = cp.asarray(header.view(np.uint8))
        self._blocks_done = cp.zeros(SLOTS, dtype=cp.uint32)
        cp.cuda.Device(self._device).synchronize()
        self._fixed = (int(self._ring.data.ptr), int(self._table.data.ptr))
        self._counters = (int(self._blocks_done.data.ptr), int(self._pinned.ptr) + SLOTS * RECORD.itemsize)

    @property
    def dropped(self) -> int:
        """Records that the host was too slow to read."""
        return self._reader.dropped

    def arm(self, guard: Guard) -> None:
        """Fill a guard on the current stream."""
        self.fill(guard.whole)

    def fill(self, where: ByteRange) -> None:
        """Fill a range with its canary on the current stream."""
        if where.nbytes:
            blocks = min(1024, -(-where.nbytes // (16 * THREADS)) + 1)
            with self._lock:
                self._arm.set((where.start, where.nbytes, self._fixed[1]))
                self._arm.launch(blocks, THREADS, self._raw_stream())

    def fill_many(self, ranges: Sequence[ByteRange]) -> None:
        """Fill many ranges in one launch on the current stream."""
        if ranges:
            rows = np.array([(where.start, where.stop) for where in ranges], dtype=np.uint64)
            with self._lock:
                table = self._upload(rows)
                self._arm_many.set((int(table.data.ptr), self._fixed[1]))
                self._arm_many.launch(len(ranges), THREADS, self._raw_stream())
                self._kept.append(table)  # until the launch has surely run; see `poll`

    def shadow(self, parts: Sequence[tuple[object, ByteRange]]) -> CupyShadow:
        """Room for copies of ranges; may synchronise, so ask once for a set of ranges."""
        cp = self._cp
        parts = tuple(parts)
        offsets, total = [], 0
        mirrored, mirror_total = _mirror_offsets(parts)
        for _, where in parts:
            total = -(-total // 16) * 16 + where.start % 16  # equally aligned, so that both sides load 16 bytes at once
            offsets.append(total)
            total += where.nbytes
        with relaxed_capture(), cp.cuda.Device(self._device):
            room = cp.empty(max(16, total), dtype=cp.uint8)
            mirror = cp.cuda.alloc_pinned_memory(max(16, mirror_total))
            states = np.zeros(len(parts), dtype=PART)
            chunks: list[tuple[int, int, int, int, int]] = []
            for index, ((_, where), offset) in enumerate(zip(parts, offsets, strict=True)):
                host = mirror.ptr + mirrored[index] if index in mirrored else 0
                pieces = _chunks(where, room.data.ptr + offset, host, index)
                chunks += pieces
                states[index] = (where.start, room.data.ptr + offset, where.nbytes, 2**64 - 1, 0, 0, 0, len(pieces))
            on_device = [self._upload(np.array(chunks, dtype=CHUNK)), self._upload(states)]
        return CupyShadow(parts, room, on_device[0], on_device[1], len(chunks), mirror, mirrored)

    def check(
        self, tag: object, guards: Sequence[Guard], take: Shadow | None = None, compare: Shadow | None = None
    ) -> None:
        """One launch on the current stream; nothing at all while that stream captures."""
        if torch.cuda.is_current_stream_capturing():
            return
        shadow = take if take is not None else compare
        assert shadow is None or isinstance(shadow, CupyShadow)
        mode = 0 if shadow is None or not shadow.chunk_count else (1 if take is not None else 2)
        guard_blocks = -(-len(guards) * LANES // THREADS)
        grid = guard_blocks + (shadow.chunk_count if shadow is not None and mode else 0)
        with self._lock:
            if not grid:
                self._unjudged.append(Result(tag, ()))
                return
            self._serial = serial = self._serial % 0xFFFFFFFF + 1
            table = self._guard_table(guards) if guards else None
            parts = shadow.parts if shadow is not None and mode == 2 else ()
            self._pending[serial] = _Pending(tag, guards, parts, (table, shadow, self._kept))
            self._kept = []
            before = self._prepared
            if table is before[0] and shadow is before[1] and mode == before[2]:
                self._step.put(8, serial)
                self._step.put(11, serial % SLOTS)
            else:
                chunks, states = (int(shadow.chunks.data.ptr), int(shadow.states.data.ptr)) if shadow else (0, 0)
                guards_at = int(table.data.ptr) if table is not None else 0
                work = (guards_at, len(guards), guard_blocks, chunks, states, mode)
                self._step.set((*work, *self._fixed, serial, *self._counters, serial % SLOTS))
                self._prepared = (table, shadow, mode)
            self._step.launch(grid, THREADS, self._raw_stream())

    def check_guards(self, tag: object, guards: Sequence[Guard]) -> None:
        self.check(tag, guards)

    def snapshot(self, parts: Sequence[tuple[object, ByteRange]]) -> CupyShadow:
        shadow = self.shadow(parts)
        if shadow.chunk_count and not torch.cuda.is_current_stream_capturing():
            with self._lock:
                self.check(None, (), take=shadow)
        return shadow

    def check_snapshot(self, tag: object, snapshot: Shadow) -> None:
        self.check(tag, (), compare=snapshot)

    def fetch(self, tag: object, key: object, where: ByteRange) -> None:
        """Queue a copy into pinned memory on the current stream; nothing while that stream captures."""
        if not where.nbytes or torch.cuda.is_current_stream_capturing():
            return
        with self._lock, relaxed_capture():
            pinned = self._cp.cuda.alloc_pinned_memory(where.nbytes)
            stream = self._stream()
            self._cp.cuda.runtime.memcpyAsync(pinned.ptr, where.start, where.nbytes, 2, stream.ptr)
            event = self._cp.cuda.Event(disable_timing=True)
            event.record(stream)
            self._fetches.append(_Fetch(tag, key, where.nbytes, pinned, event))

    def read(self, where: ByteRange) -> bytes:
        """Bytes of a range after what the current stream has queued; waits for it."""
        host = np.empty(where.nbytes, dtype=np.uint8)
        if where.nbytes:
            runtime = self._cp.cuda.runtime
            with relaxed_capture():
                stream = self._stream()
                runtime.memcpyAsync(host.ctypes.data, where.start, where.nbytes, 2, stream.ptr)
                stream.synchronize()
        return host.tobytes()

    def read_many(self, ranges: Sequence[ByteRange]) -> list[memoryview]:
        """Bytes of ranges after what the current stream has queued, in one pinned block; waits once. While that stream
        captures, the copies run beside it, in no order with its work."""
        cp, views, at = self._cp, [], 0
        total = max(1, sum(where.nbytes for where in ranges))
        with relaxed_capture(), cp.cuda.Device(self._device):
            pinned = cp.cuda.alloc_pinned_memory(total)
            room = np.frombuffer(pinned, dtype=np.uint8, count=total).data
            stream = self._side_stream() if torch.cuda.is_current_stream_capturing() else self._stream()
            for where in ranges:
                if where.nbytes:
                    cp.cuda.runtime.memcpyAsync(pinned.ptr + at, where.start, where.nbytes, 2, stream.ptr)
                views.append(room[at : at + where.nbytes])
                at += where.nbytes
            stream.synchronize()
        return views

    def digest(self, where: ByteRange) -> bytes:
        return hashlib.blake2b(self.read(where), digest_size=16).digest()

    def poll(self, wait: bool = False) -> list[Result]:
        """Outcomes of checks that are done, in order of submission; with `wait` of all of them."""
        if wait and (self._pending or self._fetches):
            try:
                with relaxed_capture():
                    torch.cuda.synchronize(self._device)
            except RuntimeError as error:
                self.lost = str(error).split("\n", 1)[0]
        if not self._pending and not self._unjudged and not self._fetches:
            return []
        with self._lock:
            if self.lost is not None:  # what had reached the host in time still counts
                self._fetches.clear()
            finished = self._finished() if self.lost is None else list(self._pending)
            for record in self._reader.take() if finished else ():
                pending = self._pending.get(int(record["check"]))
                if pending is not None:
                    place = int(record["is_part"]), int(record["index"])
                    pending.evidence.append((place, _evidence(record, pending)))
            results, self._unjudged = self._unjudged, []
            for serial in finished:
                done = self._pending.pop(serial)
                if done.tag is not None:
                    # Blocks finish in any order; the answer has one.
                    ordered = sorted(done.evidence, key=lambda pair: pair[0])
                    results.append(Result(done.tag, tuple(evidence for _, evidence in ordered)))
            while self._fetches and self._arrived(self._fetches[0]):
                fetch = self._fetches.popleft()
                data = bytes(memoryview(fetch.pinned)[: fetch.nbytes])
                results.append(Result(fetch.tag, (), ((fetch.key, data),)))
            return results

    def _arrived(self, fetch: _Fetch) -> bool:
        with relaxed_capture():
            return bool(fetch.event.done)

    def _finished(self) -> list[int]:
        """Serials of checks that are done, oldest first, up to the first that is not."""
        finished = []
        for serial in self._pending:
            if self._done[serial % SLOTS] < serial:
                break
            finished.append(serial)
        return finished

    def _guard_table(self, guards: Sequence[Guard]) -> Any:
        known = self._tables.get(id(guards))
        if known is None or known[0] is not guards:
            rows = np.empty(len(guards), dtype=GUARD)
            for row, guard in zip(rows, guards, strict=True):
                after = guard.side is not Side.BEFORE
                row["near"], row["whole"], row["nbytes"] = guard.near.start, guard.whole.start, guard.whole.nbytes
                row["near_nbytes"], row["after"] = guard.near.nbytes, after
            while len(self._tables) > 8:
                self._tables.pop(next(iter(self._tables)))
            known = self._tables[id(guards)] = (guards, self._upload(rows))
        return known[1]

    def _upload(self, rows: npt.NDArray[Any]) -> Any:
        """A device copy that every stream may read: the host waits for it, and only for it."""
        cp = self._cp
        with relaxed_capture(), cp.cuda.Device(self._device):
            made = cp.empty(max(1, rows.nbytes), dtype=cp.uint8)
            if rows.nbytes:
                stream = self._side_stream()
                flat = np.ascontiguousarray(rows).view(np.uint8).reshape(-1)
                cp.cuda.runtime.memcpyAsync(made.data.ptr, flat.ctypes.data, rows.nbytes, 1, stream.ptr)
                stream.synchronize()
        return made

    def _side_stream(self) -> Any:
        if -1 not in self._streams:
            self._streams[-1] = self._cp.cuda.Stream(non_blocking=True)
        return self._streams[-1]

    def _raw_stream(self) -> int:
        return int(torch._C._cuda_getCurrentRawStream(self._device))

    def _stream(self) -> Any:
        handle = self._raw_stream()
        known = self._streams.get(handle)
        if known is None:
            known = self._streams[handle] = self._cp.cuda.Stream.from_external(_Handle(handle))
        return known


class _Handle:
    """A raw stream under the CUDA stream protocol."""

    def __init__(self, handle: int) -> None:
        self._handle = handle

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self._handle


def _mirror_offsets(parts: Sequence[tuple[object, ByteRange]]) -> tuple[dict[int, int], int]:
    """Where the small parts lie in pinned memory, by index, aligned like their sources; and the bytes in all."""
    offsets, total = {}, 0
    for index, (_, where) in enumerate(parts):
        if where.nbytes <= MIRRORED:
            total = -(-total // 16) * 16 + where.start % 16
            offsets[index] = total
            total += where.nbytes
    return offsets, total


def _chunks(where: ByteRange, shadow: int, mirror: int, part: int) -> list[tuple[int, int, int, int, int]]:
    """Pieces of a range whose inner borders are aligned to 16 bytes."""
    pieces = []
    start = where.start
    while start < where.stop:
        stop = min(where.stop, start - start % 16 + CHUNK_BYTES)
        done = start - where.start
        pieces.append((start, shadow + done, mirror + done if mirror else 0, stop - start, part))
        start = stop
    return pieces


def _evidence(record: np.void, pending: _Pending) -> Evidence[object]:
    index, length = int(record["index"]), int(record["window_len"])
    subject: object = pending.parts[index][0] if record["is_part"] else pending.guards[index]
    listed = int(record["ranges_listed"])
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
