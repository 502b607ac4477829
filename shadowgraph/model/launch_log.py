"""Launch log: the latest launches, replays, captures, batches and plans, in memory that outlives the process.

Written in any thread of the program, without a lock: a row takes its number from one counter, and a microsecond at
most. Texts (kernel names, source lines, names of graphs and buffers) are written once, under a lock. The format is in
`launch_log_format`; `launch_log_reader` reads it, in this process or after its death.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Sequence
from itertools import chain, count
from pathlib import Path
from threading import RLock, get_ident
from time import time
from typing import ClassVar, TypeAlias

from shadowgraph.common.fork_safety import fork_safe
from shadowgraph.common.mapped_files import MappedMemory
from shadowgraph.model.launch_log_format import (
    ENTRY,
    EVENT_ROW,
    HEADER,
    LATEST_AT,
    LONGEST_TEXT,
    MAGIC,
    NBYTES,
    NUMBERS,
    POINTERS,
    ROW,
    ROWS,
    ROWS_AT,
    SLOT,
    SLOT_HEAD,
    SLOTS,
    SLOTS_AT,
    TABLE,
    TABLE_AT,
    TAIL,
    TAIL_AT,
    VERSION,
    RowKind,
    TextKind,
)
from shadowgraph.model.launch_log_reader import newest_of
from shadowgraph.model.redaction import hidden

# Plain numbers: a member of an enumeration costs more than the rest of a row.
_LAUNCH, _BEGINS, _ENDED = int(RowKind.LAUNCH), int(RowKind.REPLAY_BEGINS), int(RowKind.REPLAY_ENDED)
_FAILED = int(RowKind.REPLAY_FAILED)
_BATCH, _PLAN = int(RowKind.BATCH), int(RowKind.PLAN)
_KERNEL, _SITE = int(TextKind.KERNEL), int(TextKind.SITE)

# How pointers are written, by their number: the usual numbers are written out, which takes half the time. Bound methods
# of the structs and plain numbers of kinds, for the same reason: every launch comes here.
_Pointers: TypeAlias = Sequence[tuple[int, int]]
_WORD = (1 << 64) - 1
_PACK_MORE = tuple(struct.Struct("<" + "QQ" * number).pack_into for number in range(POINTERS + 1))
_pack_1, _pack_2, _pack_3, _pack_4 = _PACK_MORE[1:5]
_pack_tail, _pack_event = TAIL.pack_into, EVENT_ROW.pack_into
_PACK_NUMBERS = tuple(  # of events
    struct.Struct("<QQ" + "q" * number + f"{8 * (NUMBERS - number)}xdQII12xIQ").pack_into
    for number in range(NUMBERS + 1)
)
_SHARED = SLOTS // 2  # a slot is shared until so many newer ones are written: the last row of its text outlives as many
_PACK_ADDRESSES = tuple(  # whole rows
    struct.Struct("<" + "Q8x" * number + f"{TAIL_AT - 16 * number}x" + TAIL.format[1:]).pack_into
    for number in range(POINTERS + 1)
)


def _write_none(memory: memoryview, place: int, pointers: _Pointers) -> None:
    pass


def _write_1(memory: memoryview, place: int, pointers: _Pointers) -> None:
    ((a, b),) = pointers
    _pack_1(memory, place, a, b)


def _write_2(memory: memoryview, place: int, pointers: _Pointers) -> None:
    (a, b), (c, d) = pointers
    _pack_2(memory, place, a, b, c, d)


def _write_3(memory: memoryview, place: int, pointers: _Pointers) -> None:
    (a, b), (c, d), (e, f) = pointers
    _pack_3(memory, place, a, b, c, d, e, f)


def _write_4(memory: memoryview, place: int, pointers: _Pointers) -> None:
    (a, b), (c, d), (e, f), (g, h) = pointers
    _pack_4(memory, place, a, b, c, d, e, f, g, h)


def _write_more(memory: memoryview, place: int, pointers: _Pointers) -> None:
    _PACK_MORE[len(pointers)](memory, place, *chain.from_iterable(pointers))


_WRITE = _write_none, _write_1, _write_2, _write_3, _write_4, _write_more, _write_more


class SharedText:
    """A text of batches or plans for `LaunchLog.note_shared`, written once for many rows.

    Parameters
    ----------
    kind
        `RowKind.BATCH` or `RowKind.PLAN`.
    text, values
        What to say of it, with `OPEN` for each number, the last one for all that are left. `values` is left out where
        the log is redacted.
    """

    __slots__ = ("kind", "text", "values", "where")

    def __init__(self, kind: int, text: str, values: str) -> None:
        self.kind, self.text, self.values = int(kind), text, values
        self.where: tuple[LaunchLog | None, int] = None, 0  # the log that has it, and in which slot


class LaunchLog:
    """The log of this process. No method raises; what could not be noted is counted.

    Parameters
    ----------
    redact
        Leave values of the program out of the texts of batches and plans.

    Attributes
    ----------
    lost
        Rows and texts that could not be noted.
    memory, address
        The bytes, for a reader in this process, and where they are.
    rows
        The counter of the rows' numbers, for another writer in this process.
    put_event
        Writes the row of an event, of any log, where `graphs.launch_rows` has a function in C++ for it; tells whether
        the values fitted.
    """

    put_event: ClassVar[Callable[..., bool] | None] = None

    def __init__(self, mapped: MappedMemory, redact: bool = False) -> None:
        self._mapped = mapped
        self.memory, self.address = mapped.view, mapped.address
        self.lost = 0
        self._redact = redact
        self.rows = count(1)
        self._next = self.rows.__next__
        self._latest = mapped.view[LATEST_AT : LATEST_AT + 8].cast("Q")
        self._next_slot = count(1).__next__
        self._newest_slot = 0
        self._lock = fork_safe(RLock())  # a signal handler may launch, too
        self._ids: dict[tuple[int, int, str], int] = {}
        self._used = ENTRY.size  # 0 is no text
        shape = ROWS, ROW, TABLE, SLOTS, SLOT
        HEADER.pack_into(mapped.view, 0, MAGIC, VERSION, *shape, os.getpid())

    @classmethod
    def create(cls, path: str | os.PathLike[str], redact: bool = False) -> LaunchLog:
        """Create the file.

        Raises
        ------
        OSError
            When it exists, or the file system has no room; no file remains.
        """
        return cls(MappedMemory.create(path, NBYTES), redact)

    @classmethod
    def anonymous(cls, redact: bool = False) -> LaunchLog:
        """The same in memory that ends with the process.

        Raises
        ------
        OSError
        """
        return cls(MappedMemory.anonymous(NBYTES), redact)

    @property
    def path(self) -> Path | None:
        """The file; None for anonymous memory, which does not survive the process."""
        return self._mapped.path

    # -- texts: once each, the caller keeps the number ------------------------------------------------------------

    def kernel(self, name: str) -> int:
        """The number of a kernel's or an operator's name."""
        return self._text(_KERNEL, 0, name)

    def site(self, filename: str, line: int, function: str) -> int:
        """The number of a source line."""
        return self._text(_SITE, line, f"{function}\0{filename}")

    def graph(self, serial: int, name: str) -> int:
        """Name a graph; rows refer to it by its serial."""
        return self._text(TextKind.GRAPH, serial, name)

    def buffer(self, address: int, nbytes: int, name: str) -> int:
        """Name a buffer; rows refer to it by an address in it. A later entry for an address holds."""
        return self._text(TextKind.BUFFER, address, f"{nbytes}\0{hidden(name) if self._redact else name}")

    # -- rows: on hot paths ------------------------------------------------------------------------------------------

    def launch(
        self, kernel: int, site: int, stream: int, grid: tuple[int, int, int], pointers: Sequence[tuple[int, int]]
    ) -> None:
        """Note a launch of host code.

        Parameters
        ----------
        kernel, site
            From `kernel` and `site`; 0 for unknown.
        stream
            Its handle.
        pointers
            Address and size in bytes of what it was given, the first six.
        """
        try:
            number, memory, given = self._next(), self.memory, len(pointers)
            x, y, z = grid
            place = ROWS_AT + number % ROWS * ROW
            _WRITE[given](memory, place, pointers)
            kind = _LAUNCH | given << 8
            _pack_tail(memory, place + TAIL_AT, stream, get_ident(), kernel, site, x, y, z, kind, number)
            self._latest[0] = number
        except Exception:
            self._launch_fitted(kernel, site, stream, grid, pointers)

    def launch_at(
        self, kernel: int, site: int, stream: int, grid: tuple[int, int, int], addresses: Sequence[int]
    ) -> None:
        """As `launch`, of pointers whose sizes are not known."""
        if len(addresses) > POINTERS:
            addresses = addresses[:POINTERS]
        try:
            number, given = self._next(), len(addresses)
            x, y, z = grid
            place, kind = ROWS_AT + number % ROWS * ROW, _LAUNCH | given << 8
            _PACK_ADDRESSES[given](
                self.memory, place, *addresses, stream, get_ident(), kernel, site, x, y, z, kind, number
            )
            self._latest[0] = number
        except Exception:
            self._launch_fitted(kernel, site, stream, grid, [(address, 0) for address in addresses])

    def _launch_fitted(self, kernel: int, site: int, stream: int, grid: Sequence[int], pointers: _Pointers) -> None:
        """Note a launch whose values do not fit a row; count one that cannot be noted."""
        try:
            kept = [(address & _WORD, nbytes & _WORD) for address, nbytes in pointers[:POINTERS]]
            x, y, z = [max(0, min(extent, 0xFFFFFFFF)) for extent in (*grid, 1, 1, 1)[:3]]
            number, kind = self._next(), _LAUNCH | len(kept) << 8
            place = ROWS_AT + number % ROWS * ROW
            _WRITE[len(kept)](self.memory, place, kept)
            stream &= _WORD
            _pack_tail(self.memory, place + TAIL_AT, stream, get_ident(), kernel, site, x, y, z, kind, number)
            self._latest[0] = number
        except Exception:
            self.lost += 1

    def replay_passes(self, graph: int, number: int) -> None:
        """Note that a replay begins, and passes unobserved: on the path of each of these."""
        self._event(_BEGINS, graph, number)

    def replay(self, graph: int, number: int, begins: bool, failed: bool = False) -> None:
        """Note that a replay of a graph, by serial, begins, or has ended or raised."""
        self._event(_BEGINS if begins else _FAILED if failed else _ENDED, graph, number)

    def capture(self, graph: int, begins: bool) -> None:
        """Note that a capture begins or has ended."""
        self._event(RowKind.CAPTURE_BEGINS if begins else RowKind.CAPTURE_ENDED, graph)

    def note_shared(self, said: SharedText, graph: int, number: int, numbers: list[int] | tuple[int, ...]) -> None:
        """Note a batch that is worked on from here on, or a plan that is about to be made, for a replay where known.

        Parameters
        ----------
        numbers
            At most `NUMBERS` for the text; left out where the log is redacted.
        """
        try:
            log, slot = said.where
            if log is not self or self._newest_slot - slot > _SHARED:
                slot = self._slot(said.text if self._redact else said.text + said.values)
                said.where = self, slot
            if self._redact:
                numbers = ()
            put = LaunchLog.put_event
            if put is not None and put(self.address, self.rows, said.kind, graph, number, slot, numbers):
                return
            row, some = self._next(), len(numbers)
            place = ROWS_AT + row % ROWS * ROW
            _PACK_NUMBERS[some](
                self.memory, place, graph, number, *numbers, time(), get_ident(), slot, some, said.kind, row
            )
            self._latest[0] = row
        except Exception:
            self.lost += 1

    # -- reading in this process, while other threads write --------------------------------------------------------

    @property
    def newest(self) -> int:
        """The number of the row written last; 0 before the first."""
        return newest_of(self.memory)

    # -- the end ---------------------------------------------------------------------------------------------------

    def leave(self) -> None:
        """In a forked child: what is written here from now on does not reach the parent's file."""
        self._mapped.leave()

    def remove(self) -> None:
        """Remove the file; the memory stays, as other threads may be writing."""
        self._mapped.remove()

    def _event(self, kind: int, graph: int, number: int = 0) -> None:
        put = LaunchLog.put_event
        if put is not None and put(self.address, self.rows, kind, graph, number, 0, ()):
            return
        try:
            row = self._next()
            place = ROWS_AT + row % ROWS * ROW
            _pack_event(self.memory, place, graph, number, time(), get_ident(), 0, 0, 0, 0, 0, kind, row)
            self._latest[0] = row
        except Exception:
            self.lost += 1

    def _slot(self, text: str) -> int:
        """Put a text into the next slot; a long one is cut short."""
        content = text.encode("utf-8", "replace")
        room = SLOT - SLOT_HEAD.size
        if len(content) > room:
            content = content[: room - 4] + b" ..."
        slot = self._newest_slot = self._next_slot()
        place = SLOTS_AT + slot % SLOTS * SLOT
        SLOT_HEAD.pack_into(self.memory, place, 0, 0)
        self.memory[place + SLOT_HEAD.size : place + SLOT_HEAD.size + len(content)] = content
        SLOT_HEAD.pack_into(self.memory, place, slot, len(content))
        return slot

    def _text(self, kind: int, key: int, text: str) -> int:
        known = self._ids.get((kind, key, text))
        if known is not None:
            return known
        content = text.encode("utf-8", "replace")[:LONGEST_TEXT]
        try:
            with self._lock:
                place, size = self._used, ENTRY.size + -(-len(content) // 8) * 8
                if place + size > TABLE:
                    self.lost += 1
                    return 0
                self._used += size
                self.memory[TABLE_AT + place + ENTRY.size : TABLE_AT + place + ENTRY.size + len(content)] = content
                ENTRY.pack_into(self.memory, TABLE_AT + place, kind, len(content), key)
        except Exception:
            self.lost += 1
            return 0
        self._ids[kind, key, text] = place // 8
        return place // 8
