"""Check log: how many checks of each graph have finished, and what they found, in memory that outlives the process.

Written by the device at each replay of a CUDA graph, and by the monitor, under its lock, at each replay of a host
graph. Read after the process's death by readers of its run folder. Little endian:

- a header of 64 bytes (`_HEADER`): magic, version, numbers and sizes, offsets, process id;
- `GRAPH_ROWS` rows (`GRAPH_ROW`), one for each live graph;
- `RECORDS` records (`RECORD`), a ring; a record's `sequence` is written last;
- in the last `_NOTE` bytes the run folder's path, which a leftover belongs to.
"""

from __future__ import annotations

import os
import struct
from collections import deque
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from shadowgraph.common.errors import RecordedLogError
from shadowgraph.common.mapped_files import MappedMemory, read_mapped

NBYTES = 1 << 20
GRAPH_ROWS = 4096
RECORDS = 1024
RANGES = 16  # changed ranges that a record keeps
WINDOW = 256  # bytes of expected and found values that it keeps
# What a device writes; `checked` is how many replays were checked at their ends, which only a device counts here.
GRAPH_ROW = np.dtype([(name, "<u8") for name in ("serial", "begun", "ended", "damaged", "checked")])

# `graph` and `replay` are those of the check: the graph's serial, and the replay's number << 1, with the lowest bit set
# for a check at the replay's end. 0 where the check was no graph's. `is_part`: 0 for a guard; 1 for bytes of a buffer
# that no replay may change; `UNDECIDED` for bytes whose change is damage only if the host reads them again.
UNDECIDED = 2
RECORD = np.dtype(
    [
        ("sequence", "<u8"),
        ("check", "<u4"),
        ("is_part", "<u4"),
        ("index", "<u4"),
        ("truncated", "<u4"),
        ("first", "<u8"),
        ("last", "<u8"),
        ("count", "<u8"),
        ("window", "<u8"),
        ("window_len", "<u4"),
        ("ranges_listed", "<u4"),
        ("ranges_total", "<u4"),
        ("unused", "<u4"),
        ("graph", "<u8"),
        ("replay", "<u8"),
        ("ranges", "<u8", (2 * RANGES,)),
        ("expected", "u1", (WINDOW,)),
        ("found", "u1", (WINDOW,)),
    ]
)

_MAGIC, _VERSION = b"SGCHECK1", 2
_HEADER = struct.Struct("<8sIIIIQQQ16x")
_ROWS_AT = _HEADER.size
_RECORDS_AT = _ROWS_AT + GRAPH_ROWS * GRAPH_ROW.itemsize
_NOTE = 4096
_NOTE_AT = NBYTES - _NOTE
_WORDS = GRAPH_ROW.itemsize // 8


class CheckLog:
    """The log of this process.

    Attributes
    ----------
    path
        The file; None for anonymous memory, which does not survive the process.
    address, nbytes
        Where it is mapped; a device may be given the whole.
    memory
        The bytes.
    rows, records
        Arrays of `GRAPH_ROW` and `RECORD` over the memory.
    rows_offset, records_offset
        Their places in it.
    lost
        Graphs that found no free row.
    """

    rows_offset, records_offset, nbytes = _ROWS_AT, _RECORDS_AT, NBYTES

    def __init__(self, mapped: MappedMemory, folder: str | os.PathLike[str] = "") -> None:
        self._mapped = mapped
        self.address, self.memory = mapped.address, mapped.view
        self.rows, self.records = _arrays(mapped.view)
        self.lost = 0
        self._words = mapped.view[:_RECORDS_AT].cast("Q")
        self._unused, self._released = 0, deque[int]()
        self._checked_before = 0  # of graphs whose rows went to others
        self._places: dict[int, int] = {}  # row by serial
        self._sequence = 0
        note = os.fsencode(folder)[: _NOTE - 1]
        mapped.view[_NOTE_AT : _NOTE_AT + len(note)] = note
        counts = GRAPH_ROWS, RECORDS, RECORD.itemsize, _ROWS_AT, _RECORDS_AT
        _HEADER.pack_into(mapped.view, 0, _MAGIC, _VERSION, *counts, os.getpid())

    @classmethod
    def create(cls, path: str | os.PathLike[str], folder: str | os.PathLike[str] = "") -> CheckLog:
        """Create the file; `folder` is the run folder, which a leftover belongs to.

        Raises
        ------
        OSError
            When it exists, or the file system has no room; no file remains.
        """
        return cls(MappedMemory.create(path, NBYTES), folder)

    @classmethod
    def anonymous(cls) -> CheckLog:
        """The same in memory that ends with the process.

        Raises
        ------
        OSError
        """
        return cls(MappedMemory.anonymous(NBYTES))

    @property
    def path(self) -> Path | None:
        return self._mapped.path

    def claim(self, serial: int) -> int | None:
        """The row of a graph, a new one at the first call; None when all rows are taken. Callers hold one lock.

        A row of a graph that is gone is kept for as long as there are others.
        """
        place = self._places.get(serial)
        if place is not None:
            return place
        if self._unused < GRAPH_ROWS:
            place, self._unused = self._unused, self._unused + 1
        elif self._released:
            place = self._released.popleft()
            del self._places[int(self.rows["serial"][place])]
            self._checked_before += int(self.rows["checked"][place])
            self.rows[place] = 0
        else:
            self.lost += 1
            return None
        self._places[serial] = place
        self.rows["serial"][place] = serial
        return place

    def release(self, serial: int) -> None:
        """A graph is gone, and none of its replays is pending: its row may go to another graph."""
        place = self._places.get(serial)
        if place is not None and place not in self._released:
            self._released.append(place)

    @property
    def checked(self) -> int:
        """Replays of all graphs so far that a device has checked at their ends."""
        return self._checked_before + int(self.rows["checked"].sum())

    def row_address(self, row: int) -> int:
        """Where a row is mapped."""
        return self.address + _ROWS_AT + row * GRAPH_ROW.itemsize

    # -- written by the host, for graphs of the host backend ---------------------------------------------------

    def begun(self, row: int, replay: int) -> None:
        """The check before a replay has finished."""
        self._words[_ROWS_AT // 8 + row * _WORDS + 1] = replay

    def ended(self, row: int, replay: int) -> None:
        """The check after a replay has finished."""
        self._words[_ROWS_AT // 8 + row * _WORDS + 2] = replay

    def damaged(self, row: int, replay: int, tail: bool) -> None:
        """A check has found damage; only a graph's first one is kept."""
        place = _ROWS_AT // 8 + row * _WORDS + 3
        if not self._words[place]:
            self._words[place] = replay << 1 | tail

    def record(self, made: npt.NDArray[np.void]) -> None:
        """Append a record, an array of one `RECORD`; its `sequence` is set here."""
        place = self._sequence % RECORDS
        self._sequence += 1
        made["sequence"] = 0
        self.records[place] = made[0]
        self.records["sequence"][place] = self._sequence

    # -- the end -----------------------------------------------------------------------------------------------

    def leave(self) -> None:
        """In a forked child: what is written here from now on does not reach the parent's file."""
        self._mapped.leave()

    def remove(self) -> None:
        """Remove the file; the memory stays, as graphs may go on writing to it."""
        self._mapped.remove()


class GraphChecks(NamedTuple):
    """The checks of one graph: the last replay that began and ended with a finished check, and the first damage.

    Attributes
    ----------
    damaged
        Number of the first replay whose check found damage; 0 for none.
    tail
        Whether that check was the one at the replay's end.
    """

    serial: int
    begun: int
    ended: int
    damaged: int
    tail: bool


class CheckLogContents(NamedTuple):
    """A check log, as read.

    Attributes
    ----------
    graphs
        In order of their captures.
    records
        Array of `RECORD`, in the order in which they were written.
    folder
        The run folder that it belongs to; empty without one.
    """

    pid: int
    graphs: tuple[GraphChecks, ...]
    records: npt.NDArray[np.void]
    folder: str


def read(path: str | os.PathLike[str]) -> CheckLogContents:
    """Read a check log, of any origin.

    Raises
    ------
    MissingFileError
        When it cannot be read.
    RecordedLogError
        When it is no check log of this version, or is damaged: one line that says which.
    """
    content = read_mapped(path, NBYTES)
    name = os.path.basename(path)
    magic, version, *counts, pid = _HEADER.unpack_from(content)
    if magic != _MAGIC:
        raise RecordedLogError(f"{name} is no check log")
    if version != _VERSION:
        raise RecordedLogError(f"{name} is a check log of version {version}; this shadowgraph reads {_VERSION}")
    if counts != [GRAPH_ROWS, RECORDS, RECORD.itemsize, _ROWS_AT, _RECORDS_AT]:
        raise RecordedLogError(f"{name} is a check log of another shape: {counts}")
    rows, records = _arrays(memoryview(content))
    records = records[_is_sound(records)]
    taken = rows[rows["serial"] != 0]
    graphs = [GraphChecks(s, b, e, d >> 1, bool(d & 1)) for s, b, e, d, _ in taken.tolist()]
    graphs.sort()
    note = content[_NOTE_AT:].split(b"\0", 1)[0]
    return CheckLogContents(pid, tuple(graphs), records[np.argsort(records["sequence"])], os.fsdecode(note))


def without_values(content: bytes) -> bytes:
    """A check log without the bytes that its records found; what is none is returned as it is."""
    if len(content) != NBYTES:
        return content
    copied = bytearray(content)
    _arrays(memoryview(copied))[1]["found"] = 0
    return bytes(copied)


def _arrays(memory: memoryview) -> tuple[npt.NDArray[np.void], npt.NDArray[np.void]]:
    """The rows and the records."""
    rows = np.frombuffer(memory, GRAPH_ROW, GRAPH_ROWS, _ROWS_AT)
    return rows, np.frombuffer(memory, RECORD, RECORDS, _RECORDS_AT)


def _is_sound(records: npt.NDArray[np.void]) -> npt.NDArray[np.bool_]:
    """Which records are written, and can be true: a reader indexes with their lengths."""
    sound: npt.NDArray[np.bool_] = (
        (records["sequence"] != 0)
        & (records["sequence"] < 1 << 62)
        & (records["first"] <= records["last"])
        & (records["window_len"] <= WINDOW)
        & (records["ranges_listed"] <= RANGES)
    )
    return sound
