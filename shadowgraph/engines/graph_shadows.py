"""Ranges that a graph's own check nodes compare across each of its replays: a table in device memory for each graph.

The head of a replay copies them, its tail compares and reports a range that has changed, once. The monitor lists a
graph's ranges, under its lock; a range is withdrawn as its buffer ends, under the allocator's lock. A listed table is
never changed but for rows that are emptied: another set of ranges is another table, which is published in one store. So
replays in flight compare what their own heads have copied, or nothing. Memory of tables and copies is never freed; only
other tables get it, after a rest. Any thread; has its own lock, under which nothing waits but the upload of a new
table.
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
_REST = 2.0  # seconds after which no replay in flight uses a table that was replaced
_REMEMBERED = 1024  # ranges that are listed no more, of which evidence may still arrive


@dataclass(slots=True, eq=False)
class _Table:
    """The table of one graph.

    Attributes
    ----------
    parts
        The ranges, as they were listed.
    ids
        Numbers by which records name them.
    spent
        Whether any was reported, and is compared no more.
    """

    parts: tuple[NodePart, ...]
    room: Any
    ids: list[int] = field(default_factory=list)
    spent: bool = False

    @property
    def address(self) -> int:
        return int(self.room.data.ptr)


@dataclass(frozen=True, slots=True)
class _Listed:
    """A range in a table: its first row, and how many it has."""

    table: _Table
    part: NodePart
    first: int
    count: int


class GraphShadows:
    """The tables of all graphs. Thread-safe.

    Parameters
    ----------
    watch_of
        Device address of a graph's ``struct Watch``; None for a graph without check nodes.
    """

    def __init__(self, device: Device, kernels: Kernels, watch_of: Callable[[int], int | None]) -> None:
        wide, narrow = ctypes.c_uint64, ctypes.c_uint32
        self._device, self._watch_of = device, watch_of
        self._set = Launcher(device.context, kernels.set_shadows, (wide, wide, narrow, narrow))
        self._empty = Launcher(device.context, kernels.empty_shadows, (wide, narrow, narrow))
        self._lock, self._pid = threading.RLock(), os.getpid()
        self._ids: Iterator[int] = itertools.cycle(range(1, 1 << 32))
        self._tables: dict[int, _Table] = {}  # by the graph's serial
        self._listed: dict[int, _Listed] = {}  # by id
        self._former: dict[int, NodePart] = {}  # by id
        self._of_buffers: dict[int, set[int]] = {}  # ids by the buffer's serial
        self._resting: deque[tuple[float, Any]] = deque()
        self._free: dict[int, list[Any]] = {}  # rooms by size

    def show(self, graph: int, parts: Sequence[NodePart]) -> bool:
        """Let a graph's check nodes compare these ranges and no others, each until it is reported once; returns whether
        anything was published. Nothing for a graph without check nodes."""
        wanted = tuple(part for part in parts if part.where.nbytes)
        with self._lock:
            known = self._tables.get(graph)
            if (known.parts == wanted and not known.spent) if known is not None else not wanted:
                return False
            watch = self._watch_of(graph)
            if watch is None or not wanted:
                self._publish(watch, 0, 0, 0)
                self._retire(graph)
                return watch is not None
            made = self._built(wanted)
            self._retire(graph)
            self._tables[graph] = made
            self._publish(watch, made.address, self._enter(made), len(wanted))
            return True

    def withdraw(self, buffer: int) -> bool:
        """A buffer ends: its bytes are not read from here on, in order with the work of the stream that writes
        canaries; returns whether any were. A forked child makes no call of CUDA."""
        if os.getpid() != self._pid:
            return False
        with self._lock:
            ids = self._of_buffers.pop(buffer, None)
            for each in ids or ():
                self._take_off(each)
            return bool(ids)

    def part_of(self, id: int) -> NodePart | None:
        """The range that a record names, which is compared no more until it is listed again."""
        with self._lock:
            listed = self._listed.get(id)
            if listed is None:
                return self._former.get(id)
            listed.table.spent = True
            self._unlink(id, listed.part.buffer)
            self._take_off(id)
            return listed.part

    def clear(self) -> None:
        """List no range of any graph."""
        with self._lock:
            for graph in list(self._tables):
                self.show(graph, ())
            self._former.clear()

    # -- parts -------------------------------------------------------------------------------------------------

    def _built(self, parts: tuple[NodePart, ...]) -> _Table:
        """A table with zeroed copies, uploaded; where memory cannot be had nothing has changed."""
        ranges = [part.where for part in parts]
        places, total = offsets_of(ranges)
        pieces = sum(len(chunks_of(where, 0, 0, 0, PIECE)) for where in ranges)
        behind = -(-(pieces * SHADOWED.itemsize + len(parts) * (PART.itemsize + MARK.itemsize)) // 16) * 16
        made = _Table(parts, self._room(behind + total))
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
        self._device.write(base, np.frombuffer(content, dtype=np.uint8))
        return made

    def _enter(self, table: _Table) -> int:
        """Enter the ranges of a table by their numbers; returns how many rows it has."""
        at = 0
        for part, id in zip(table.parts, table.ids, strict=True):
            count = len(chunks_of(part.where, 0, 0, 0, PIECE))
            self._listed[id] = _Listed(table, part, at, count)
            self._of_buffers.setdefault(part.buffer, set()).add(id)
            at += count
        return at

    def _retire(self, graph: int) -> None:
        """A graph has another table, or none."""
        table = self._tables.pop(graph, None)
        if table is None:
            return
        for id in table.ids:
            listed = self._listed.pop(id, None)
            if listed is not None:
                self._unlink(id, listed.part.buffer)
                self._remember(id, listed.part)
        self._resting.append((time.monotonic(), table.room))

    def _take_off(self, id: int) -> None:
        """Empty the rows of a range."""
        listed = self._listed.pop(id)
        self._remember(id, listed.part)
        self._empty.set((listed.table.address, listed.first, listed.count))
        self._empty.launch(1, THREADS, self._device.arming.ptr)

    def _unlink(self, id: int, buffer: int) -> None:
        ids = self._of_buffers.get(buffer, set())
        ids.discard(id)
        if not ids:
            self._of_buffers.pop(buffer, None)

    def _remember(self, id: int, part: NodePart) -> None:
        self._former[id] = part
        while len(self._former) > _REMEMBERED:
            self._former.pop(next(iter(self._former)))

    def _publish(self, watch: int | None, table: int, rows: int, parts: int) -> None:
        if watch is not None:
            self._set.set((watch, table, rows, parts))
            self._set.launch(1, 1, self._device.arming.ptr)

    def _room(self, nbytes: int) -> Any:
        """Memory for a table, zeroed or of a table that no replay uses any more."""
        while self._resting and self._resting[0][0] < time.monotonic() - _REST:
            room = self._resting.popleft()[1]
            self._free.setdefault(room.nbytes, []).append(room)
        size = max(_SMALLEST, 1 << (nbytes - 1).bit_length())
        free = self._free.get(size)
        return free.pop() if free else self._device.zeros(size)
