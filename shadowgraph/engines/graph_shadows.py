"""Ranges that a graph's own check nodes compare across each of its replays: a table in device memory for each graph.

The head of a replay copies them, its tail compares and reports a range that has changed, once. The monitor lists a
graph's ranges, under its lock; a range is withdrawn as its buffer ends, under the allocator's lock. A listed table is
never changed but for rows that are emptied: another set of ranges is another table, which is published in one store. So
replays in flight compare what their own heads have copied, or nothing. Memory of tables and copies is never freed; only
other tables get it, once the device has published what took their place, and after a rest. Any thread; has its own
lock, under which nothing waits but the upload of a new table.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from shadowgraph.engines.base import NodePart
from shadowgraph.engines.canary_stream import THREADS
from shadowgraph.engines.cupy_shadow import PART, chunks_of, offsets_of
from shadowgraph.engines.device import Device
from shadowgraph.engines.kernels import Kernels
from shadowgraph.engines.launcher import Launcher

SHADOWED = np.dtype([("source", "<u8"), ("shadow", "<u8"), ("nbytes", "<u4"), ("part", "<u4"), ("replay", "<u8")])
MARK = np.dtype([("id", "<u4"), ("flags", "<u4")])
PIECE = 16 * THREADS  # bytes that a block copies or compares at once: one load for each thread
_UNDECIDED = 1  # in `MARK.flags`
_SMALLEST = 4 << 10
_REST = 2.0  # seconds after which no check that runs uses a table that is published no more
MOST = 64 << 20  # bytes of all tables and copies
_REMEMBERED = 1024  # ranges that are listed no more, of which evidence may still arrive


@dataclass(slots=True, eq=False)
class _Table:
    """The table of one graph.

    Attributes
    ----------
    parts
        The ranges, as they were listed.
    watch
        Device address of the graph's ``struct Watch``.
    rows
        How many rows it has.
    ids
        Numbers by which records name them.
    spent
        Whether any was reported, and is compared no more.
    """

    parts: tuple[NodePart, ...]
    watch: int
    room: Any
    rows: int = 0
    ids: list[int] = field(default_factory=list)
    spent: bool = False

    @property
    def address(self) -> int:
        return int(self.room.data.ptr)


@dataclass(frozen=True, slots=True)
class Listed:
    """A range in a table: its first row, and how many it has."""

    table: _Table
    part: NodePart
    first: int
    count: int


@dataclass(slots=True)
class _Resting:
    """Memory of a table that was replaced: the event behind that, and when the event was seen to be over."""

    room: Any
    replaced: Any
    since: float | None = None


class GraphShadows:
    """The tables of all graphs. Thread-safe.

    Parameters
    ----------
    watch_of
        Device address of a graph's ``struct Watch``; None for a graph without check nodes.

    Attributes
    ----------
    of_buffers
        Ids of ranges that are listed, by the buffer's serial.
    """

    def __init__(self, device: Device, kernels: Kernels, watch_of: Callable[[int], int | None]) -> None:
        wide, narrow = ctypes.c_uint64, ctypes.c_uint32
        self._device, self._watch_of = device, watch_of
        self._set = Launcher(device.context, kernels.set_shadows, (wide, wide, narrow, narrow))
        self._empty = Launcher(device.context, kernels.empty_shadows, (wide, narrow, narrow))
        self._lock, self._pid = threading.RLock(), os.getpid()
        self._ids: Iterator[int] = itertools.cycle(range(1, 1 << 32))
        self._tables: dict[int, _Table] = {}  # by the graph's serial
        self._listed: dict[int, Listed] = {}  # by id
        self._former: dict[int, NodePart] = {}  # by id
        self.of_buffers: dict[int, set[int]] = {}
        self._resting: deque[_Resting] = deque()
        self._free: dict[int, list[Any]] = {}  # rooms by size
        self._nbytes = 0  # of all rooms

    def show(self, graph: int, parts: Sequence[NodePart]) -> bool:
        """Let a graph's check nodes compare these ranges and no others, each until it is reported once; returns whether
        anything was published. Nothing for a graph without check nodes.

        Raises
        ------
        MemoryError
            Where there is no room; the ranges that were listed before are compared still.
        """
        wanted = tuple(part for part in parts if part.where.nbytes)
        with self._lock:
            known = self._tables.get(graph)
            if (known.parts == wanted and not known.spent) if known is not None else not wanted:
                return False
            watch = self._watch_of(graph)
            if watch is None or not wanted:
                if known is not None:  # also of a graph that is gone: its last replays may be queued
                    self._publish(known.watch, 0, 0, 0)
                    self._retire(graph)
                return known is not None
            made = self._built(wanted, watch)
            try:
                self._publish(watch, made.address, made.rows, len(wanted))
            except BaseException:
                self._give(made.room)
                raise
            self._retire(graph)
            self._tables[graph] = made
            self._enter(made)
            return True

    def withdraw(self, buffer: int) -> bool:
        """A buffer ends: its bytes are not read from here on, in order with the work of the stream that writes
        canaries; returns whether any were. A forked child makes no call of CUDA."""
        if os.getpid() != self._pid:
            return False
        with self._lock:
            ids = self.of_buffers.pop(buffer, None)
            for each in ids or ():
                self.empty(self._forget(each))
            return bool(ids)

    def part_of(self, id: int) -> tuple[NodePart | None, Listed | None]:
        """The range that a record names, which is not listed any more, and where its rows are, for `empty`; None where
        these are empty. Makes no call of CUDA."""
        with self._lock:
            listed = self._listed.get(id)
            if listed is None:
                return self._former.get(id), None
            listed.table.spent = True
            self._unlink(id, listed.part.buffer)
            return listed.part, self._forget(id)

    def empty(self, listed: Listed) -> None:
        """Empty the rows of a range, in order with the stream that writes canaries; not of a table that was replaced
        since, whose memory may be another one's."""
        with self._lock:
            if any(table is listed.table for table in self._tables.values()):
                self._empty.set((listed.table.address, listed.first, listed.count))
                self._empty.launch(1, THREADS, self._device.arming.ptr)

    def clear(self) -> None:
        """List no range of any graph."""
        with self._lock:
            for graph in list(self._tables):
                self.show(graph, ())
            self._former.clear()

    # -- parts -------------------------------------------------------------------------------------------------

    def _built(self, parts: tuple[NodePart, ...], watch: int) -> _Table:
        """A table with zeroed copies, uploaded; where memory cannot be had nothing has changed."""
        ranges = [part.where for part in parts]
        places, total = offsets_of(ranges)
        pieces = sum(len(chunks_of(where, 0, 0, 0, PIECE)) for where in ranges)
        behind = -(-(pieces * SHADOWED.itemsize + len(parts) * (PART.itemsize + MARK.itemsize)) // 16) * 16
        made = _Table(parts, watch, self._room(behind + total), pieces)
        base = made.address
        rows, states = np.zeros(pieces, dtype=SHADOWED), np.zeros(len(parts), dtype=PART)
        marks, at = np.zeros(len(parts), dtype=MARK), 0
        for index, (part, place) in enumerate(zip(parts, places, strict=True)):
            shadow, made_id = base + behind + place, next(self._ids)
            made.ids.append(made_id)
            states[index] = (part.where.start, shadow, part.where.nbytes, 2**64 - 1, 0, 0)
            marks[index] = (made_id, _UNDECIDED * part.undecided)
            for source, copy, _, nbytes, _ in chunks_of(part.where, shadow, 0, index, PIECE):
                rows[at] = (source, copy, nbytes, index, 0)
                at += 1
        content = rows.tobytes() + states.tobytes() + marks.tobytes()
        try:
            self._device.write(base, np.frombuffer(content, dtype=np.uint8))
        except BaseException:
            self._give(made.room)
            raise
        return made

    def _enter(self, table: _Table) -> None:
        """Enter the ranges of a table by their numbers."""
        at = 0
        for part, id in zip(table.parts, table.ids, strict=True):
            count = len(chunks_of(part.where, 0, 0, 0, PIECE))
            self._listed[id] = Listed(table, part, at, count)
            self.of_buffers.setdefault(part.buffer, set()).add(id)
            at += count

    def _retire(self, graph: int) -> None:
        """A graph has another table, or none, which is published."""
        table = self._tables.pop(graph, None)
        if table is None:
            return
        for id in table.ids:
            listed = self._listed.pop(id, None)
            if listed is not None:
                self._unlink(id, listed.part.buffer)
                self._remember(id, listed.part)
        with self._device.context.current():
            replaced = self._device.event()
            replaced.record(self._device.arming)
        self._resting.append(_Resting(table.room, replaced))

    def _forget(self, id: int) -> Listed:
        """A range is not listed any more; evidence of it may still arrive."""
        listed = self._listed.pop(id)
        self._remember(id, listed.part)
        return listed

    def _unlink(self, id: int, buffer: int) -> None:
        ids = self.of_buffers.get(buffer, set())
        ids.discard(id)
        if not ids:
            self.of_buffers.pop(buffer, None)

    def _remember(self, id: int, part: NodePart) -> None:
        self._former[id] = part
        while len(self._former) > _REMEMBERED:
            self._former.pop(next(iter(self._former)))

    def _publish(self, watch: int, table: int, rows: int, parts: int) -> None:
        self._set.set((watch, table, rows, parts))
        self._set.launch(1, 1, self._device.arming.ptr)

    def _room(self, nbytes: int) -> Any:
        """Memory for a table, zeroed or of a table that no check uses any more."""
        self._end_rests()
        size = max(_SMALLEST, 1 << (nbytes - 1).bit_length())
        free = self._free.get(size)
        if free:
            return free.pop()
        if self._nbytes + size > MOST:
            raise MemoryError(f"tables of check nodes take {self._nbytes:,} bytes already")
        room = self._device.zeros(size)
        self._nbytes += size
        return room

    def _end_rests(self) -> None:
        """Let other tables have the memory of those that the device has seen replaced long enough ago."""
        now = time.monotonic()
        with self._device.context.current():
            for each in self._resting:
                if each.since is None and each.replaced.done:
                    each.since = now
        while self._resting and self._resting[0].since is not None and self._resting[0].since < now - _REST:
            ended = self._resting.popleft()
            self._device.done_with(ended.replaced)
            self._give(ended.room)

    def _give(self, room: Any) -> None:
        self._free.setdefault(room.nbytes, []).append(room)
