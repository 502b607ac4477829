"""Reader of launch logs: of this process, as it writes, or of a file of any origin. Takes no lock."""

from __future__ import annotations

import os
from functools import cached_property
from itertools import chain, zip_longest
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from shadowgraph.common.errors import RecordedLogError
from shadowgraph.common.mapped_files import read_mapped
from shadowgraph.model.launch_log_format import (
    ENTRY,
    HEADER,
    MAGIC,
    NBYTES,
    OPEN,
    OPERATORS,
    OPERATORS_AT,
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
    VERSION,
    RowKind,
    TextKind,
)

# The oldest rows are not read: where a thread was stopped in the middle of a row, one of them is half overwritten.
_MARGIN = 64
_ROW = np.dtype(
    [
        ("pointers", "<u8", (POINTERS, 2)),
        ("stream", "<u8"),  # or the time of an event
        ("thread", "<u8"),
        ("kernel", "<u4"),  # or the slot of an event's text
        ("site", "<u4"),
        ("grid", "<u4", (3,)),
        ("kind", "<u4"),
        ("number", "<u8"),
    ]
)
_KINDS = frozenset(RowKind)
_REPLAYS = RowKind.REPLAY_BEGINS, RowKind.REPLAY_ENDED, RowKind.REPLAY_FAILED


class Site(NamedTuple):
    """The source line of a launch."""

    file: str
    line: int
    function: str


class LoggedLaunch(NamedTuple):
    """A launch of host code; `kernel` is empty and `site` None where they are not known."""

    number: int
    kernel: str
    site: Site | None
    stream: int
    grid: tuple[int, int, int]
    pointers: tuple[tuple[int, int], ...]
    thread: int


class LoggedEvent(NamedTuple):
    """A replay, capture, batch, plan or phase; `graph` and `replay` are 0 where they are not known."""

    number: int
    kind: RowKind
    graph: int
    replay: int
    text: str
    time: float
    thread: int


class LoggedBuffer(NamedTuple):
    """A named buffer."""

    address: int
    nbytes: int
    name: str


class ReplayEvent(NamedTuple):
    """The begin, end or failure of a replay, as the kind says; of the launch log's row `number`."""

    number: int
    kind: int
    graph: int
    replay: int


Row = LoggedLaunch | LoggedEvent


class LaunchLogContents:
    """A launch log's rows and texts; rows are decoded when asked for.

    Attributes
    ----------
    pid
        The process that wrote it.
    newest
        The number of the row written last; 0 for none.
    """

    def __init__(self, memory: bytes, pid: int) -> None:
        self.pid = pid
        self._memory = memory
        self._rows = _sound_rows(memory, ROWS_AT, ROWS)
        self._operators = _sound_rows(memory, OPERATORS_AT, OPERATORS)
        self.newest = int(self._rows["number"][-1]) if len(self._rows) else 0

    def since(self, number: int) -> tuple[Row, ...]:
        """Rows after the one of this number, oldest first."""
        return self._decoded(int(np.searchsorted(self._rows["number"], number, side="right")), len(self._rows))

    def last_phase(self, graph: int, replay: int) -> tuple[LoggedLaunch, ...]:
        """Launches between the last replay before this one, of any graph, and this one's begin, or the log's end. Of a
        device's replays only the begins are noted."""
        end = self._begin_of(graph, replay)
        kinds = self._rows["kind"][:end] & 0xFF
        ended = np.flatnonzero(np.isin(kinds, _REPLAYS))
        rows = self._decoded(int(ended[-1]) + 1 if len(ended) else 0, end)
        return tuple(row for row in rows if isinstance(row, LoggedLaunch))

    def operators(self, number: int) -> tuple[LoggedLaunch, ...]:
        """Operators that were noted in C++ after the row of a number, and were given a named buffer: each with the
        number of the latest row before it, oldest first. What they write comes first among their pointers."""
        after = self._operators["grid"][:, :2].copy().view("<u8").ravel()
        wanted = (after >= number) & self._is_given_a_buffer(self._operators)
        return tuple(
            self._launch(row)._replace(number=at, grid=(0, 0, 0))
            for row, at in zip(self._operators[wanted], after[wanted].tolist(), strict=True)
        )

    def _is_given_a_buffer(self, rows: npt.NDArray[np.void]) -> npt.NDArray[np.bool_]:
        """Whether a pointer of a row overlaps a named buffer, for each row."""
        known = sorted((buffer.address, buffer.address + buffer.nbytes) for buffer in self.buffers.values())
        if not known:
            return np.zeros(len(rows), np.bool_)
        starts = np.array([start for start, _ in known], np.float64)  # sums of a hostile log's may not fit an integer
        ends = np.maximum.accumulate(np.array([end for _, end in known], np.float64))
        address, nbytes = (rows["pointers"][:, :, at].astype(np.float64) for at in (0, 1))
        before = np.searchsorted(starts, address + nbytes, side="left") - 1  # the last one that starts below the end
        found: npt.NDArray[np.bool_] = np.any((nbytes > 0) & (before >= 0) & (ends[before] > address), axis=1)
        return found

    def replays(self) -> tuple[ReplayEvent, ...]:
        """Begins and ends of replays, oldest first."""
        rows = self._rows[np.isin(self._rows["kind"] & 0xFF, _REPLAYS)]
        pairs = rows["pointers"][:, 0].tolist()
        kinds = (rows["kind"] & 0xFF).tolist()
        return tuple(
            ReplayEvent(number, kind, graph, replay)
            for number, kind, (graph, replay) in zip(rows["number"].tolist(), kinds, pairs, strict=True)
        )

    def last(self, kind: RowKind, before: int | None = None) -> LoggedEvent | None:
        """The last event of a kind, before the row of a number."""
        numbers, kinds = self._rows["number"], self._rows["kind"] & 0xFF
        wanted = (kinds == kind) if before is None else (kinds == kind) & (numbers < before)
        found = np.flatnonzero(wanted)
        return self._event(self._rows[found[-1]]) if len(found) else None

    @cached_property
    def graphs(self) -> dict[int, str]:
        """Names of graphs, by serial."""
        return {key: text for kind, key, text in self._texts.values() if kind == TextKind.GRAPH}

    @cached_property
    def buffers(self) -> dict[int, LoggedBuffer]:
        """Named buffers, by address."""
        found = {}
        for kind, key, text in self._texts.values():
            nbytes, _, name = text.partition("\0")
            if kind == TextKind.BUFFER and nbytes.isdecimal() and len(nbytes) < 20:
                found[key] = LoggedBuffer(key, int(nbytes), name)
        return found

    @cached_property
    def _texts(self) -> dict[int, tuple[int, int, str]]:
        """Kind, key and text by number."""
        texts: dict[int, tuple[int, int, str]] = {}
        place = ENTRY.size
        while place + ENTRY.size <= TABLE:
            kind, length, key = ENTRY.unpack_from(self._memory, TABLE_AT + place)
            start = place + ENTRY.size
            if not kind or start + length > TABLE:
                break
            texts[place // 8] = kind, key, _text(self._memory[TABLE_AT + start : TABLE_AT + start + length])
            place = start + -(-length // 8) * 8
        return texts

    def _begin_of(self, graph: int, replay: int) -> int:
        """Place of the row with which a replay begins, or of the end; 0 where the row is gone, as a later one shows."""
        rows = self._rows
        pair = rows["pointers"][:, 0]
        begins = (rows["kind"] & 0xFF == RowKind.REPLAY_BEGINS) & (pair[:, 0] == graph)
        found = np.flatnonzero(begins & (pair[:, 1] == replay))
        if len(found):
            return int(found[-1])
        return 0 if (begins & (pair[:, 1] > replay)).any() else len(rows)

    def _decoded(self, start: int, stop: int) -> tuple[Row, ...]:
        return tuple(
            self._launch(row) if row["kind"] & 0xFF == RowKind.LAUNCH else self._event(row)
            for row in self._rows[start:stop]
        )

    def _launch(self, row: Any) -> LoggedLaunch:
        _, stream, thread, kernel, site, _, kind, number = row.tolist()
        x, y, z = row["grid"].tolist()
        of_kernel, of_site = self._texts.get(kernel), self._texts.get(site)
        return LoggedLaunch(
            number,
            of_kernel[2] if of_kernel is not None and of_kernel[0] == TextKind.KERNEL else "",
            _site(of_site[1], of_site[2]) if of_site is not None and of_site[0] == TextKind.SITE else None,
            stream,
            (x, y, z),
            tuple((address, nbytes) for address, nbytes in row["pointers"][: kind >> 8].tolist()),
            thread,
        )

    def _event(self, row: Any) -> LoggedEvent:
        when = float(row["stream"].view("<f8"))
        graph, replay = row["pointers"][0].tolist()
        text = _filled(self._slot(int(row["kernel"])), row["pointers"][1:].view("<i8").ravel()[: row["site"]].tolist())
        return LoggedEvent(
            int(row["number"]), RowKind(row["kind"] & 0xFF), graph, replay, text, when, int(row["thread"])
        )

    def _slot(self, slot: int) -> str:
        """The text of an event; empty for none, and where a later one has taken its place."""
        place = SLOTS_AT + slot % SLOTS * SLOT
        number, length = SLOT_HEAD.unpack_from(self._memory, place)
        if not slot or number != slot or length > SLOT - SLOT_HEAD.size:
            return ""
        return _text(self._memory[place + SLOT_HEAD.size : place + SLOT_HEAD.size + length])


def read(path: str | os.PathLike[str]) -> LaunchLogContents:
    """Read a launch log, of any origin.

    Raises
    ------
    MissingFileError
        When it cannot be read.
    RecordedLogError
        When it is no launch log of this version, or is damaged: one line that says which.
    """
    content, name = read_mapped(path, NBYTES), os.path.basename(path)
    magic, version, *shape, _ = HEADER.unpack_from(content)
    if magic != MAGIC:
        raise RecordedLogError(f"{name} is no launch log")
    if version != VERSION:
        raise RecordedLogError(f"{name} is a launch log of version {version}; this shadowgraph reads {VERSION}")
    if shape != [ROWS, ROW, TABLE, SLOTS, SLOT]:
        raise RecordedLogError(f"{name} is a launch log of another shape: {shape}")
    return contents_of(content)


def contents_of(memory: bytes | memoryview) -> LaunchLogContents:
    """The contents of a log in memory, which may be written meanwhile."""
    content = bytes(memory)
    return LaunchLogContents(content, HEADER.unpack_from(content)[-1])


def newest_of(memory: memoryview) -> int:
    """The number of the row written last to a log of this process."""
    return int(np.frombuffer(memory, _ROW, ROWS, ROWS_AT)["number"].max())


def _sound_rows(memory: bytes, start: int, size: int) -> npt.NDArray[np.void]:
    """The rows of a ring that can be read, oldest first."""
    rows = np.frombuffer(memory, _ROW, size, start)
    numbers, kinds = rows["number"], rows["kind"]
    sound = (numbers > 0) & (numbers % size == np.arange(size)) & np.isin(kinds & 0xFF, list(_KINDS))
    sound &= kinds >> 8 <= POINTERS
    newest = int(numbers[sound].max()) if sound.any() else 0
    if newest > size - _MARGIN:
        sound &= numbers > newest - (size - _MARGIN)
    found = rows[sound]
    ordered: npt.NDArray[np.void] = found[np.argsort(found["number"])]
    return ordered


def _text(content: bytes) -> str:
    return content.decode("utf-8", "replace")


def _filled(text: str, numbers: list[int]) -> str:
    """A text with its numbers: one for each place that is open, and for the last all that are left."""
    parts = text.split(OPEN)
    last = len(parts) - 2
    said = [*map(str, numbers[:last]), ", ".join(map(str, numbers[last:]))] if last >= 0 else []
    return "".join(chain.from_iterable(zip_longest(parts, said, fillvalue="")))


def _site(line: int, text: str) -> Site:
    function, _, file = text.partition("\0")
    return Site(file, line, function)
