"""The last check of a process that did not end in an orderly way, read from its check log and its launch log.

Used by the reader of run folders. Both logs may be missing, truncated, hostile or of another version: that is one line
each, and the rest of the run is still read.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from shadowgraph.common.errors import ShadowgraphError
from shadowgraph.model import check_log, launch_log_reader
from shadowgraph.model.check_log import CheckLogContents, GraphChecks
from shadowgraph.model.launch_log_format import RowKind
from shadowgraph.model.launch_log_reader import LaunchLogContents, LoggedBuffer, LoggedEvent, LoggedLaunch, ReplayEvent
from shadowgraph.model.recorded_files import LAUNCHES, checks_of, in_folder

_LAUNCHES = 16  # of the unfinished phase that are kept, the latest
_DAMAGES = 4
_RECENT = 16  # replays for which a change is told that the host may have read
_FAR = 4 << 20  # bytes between damage and the buffer whose guard it is in, at most
_BYTES = 16  # expected and found bytes that are kept


class NotedLaunch(msgspec.Struct, frozen=True):
    """A launch, as the launch log has it; `given` names the buffers that it was given, where they have names."""

    kernel: str
    file: str
    line: int
    function: str
    grid: tuple[int, int, int]
    given: tuple[str, ...]


class Damage(msgspec.Struct, frozen=True):
    """The first damage that checks of a graph found, or a change of bytes that the host plans from.

    Attributes
    ----------
    graph, replay
        Name of the graph, empty outside of replays; number of the replay whose check found it.
    tail
        Whether it was the check at the replay's end.
    buffer, nbytes
        The buffer that it is next to, or in; empty where it is not known.
    first, last
        The extreme changed bytes, relative to the buffer's start; addresses where it is not known.
    count
        Number of changed bytes; 0 where the log does not have them any more.
    expected, found
        A few bytes from `first` on, hexadecimal; `found` is empty in a redacted run.
    """

    graph: str
    replay: int
    tail: bool
    buffer: str = ""
    nbytes: int = 0
    first: int = 0
    last: int = 0
    count: int = 0
    expected: str = ""
    found: str = ""


class LastCheck(msgspec.Struct, frozen=True):
    """What the logs of a process say about its end.

    Attributes
    ----------
    graph, replay
        The last replay whose check at its end has finished; an empty name and 0 where none has.
    clean
        Whether no check up to then has found damage.
    changes
        First changes, by the last replays, of what the host plans from: damage if the host has read them since.
    running, running_replay
        The replay that had begun and was not checked at its end; an empty name and 0 for none.
    head_checked
        Whether the check at its begin had finished.
    launches, launches_noted
        The latest launches since the last check, and the number of all that the log still has.
    batch, batch_replay, plan, plan_replay
        The last batch and the last plan, and the replay that each is for; empty, and 0 where that is not known.
    captured
        Whether the process had captured a graph, as far as the logs tell; without one, launches are not listed.
    unread
        Why a log could not be read, a line each.
    """

    graph: str = ""
    replay: int = 0
    clean: bool = True
    damages: tuple[Damage, ...] = ()
    changes: tuple[Damage, ...] = ()
    running: str = ""
    running_replay: int = 0
    head_checked: bool = False
    launches: tuple[NotedLaunch, ...] = ()
    launches_noted: int = 0
    batch: str = ""
    batch_replay: int = 0
    plan: str = ""
    plan_replay: int = 0
    captured: bool = True
    unread: tuple[str, ...] = ()


def has_logs(folder: str | os.PathLike[str], run: object, stem: str) -> bool:
    """Whether a process has left a log."""
    return any(map(os.path.lexists, (checks_of(folder, run, stem), in_folder(folder, stem, LAUNCHES))))


def read_last_check(folder: str | os.PathLike[str], run: object, stem: str, redact: bool = False) -> LastCheck:
    """Read the logs of a process; never raises for what they hold.

    Parameters
    ----------
    run
        The run's token, of the manifest; a check log that was not brought into the folder yet has it in its name.
    stem
        Process id and time of the process's files.
    redact
        Leave out the bytes that a check found: a check log outside the folder still has them.
    """
    return _Reading(Path(checks_of(folder, run, stem)), Path(in_folder(folder, stem, LAUNCHES)), redact).result()


class _Reading:
    """Both logs of one process, each None where it cannot be read."""

    def __init__(self, checks: Path, launches: Path, redact: bool) -> None:
        self._unread: list[str] = []
        self._redact = redact
        self._launches: LaunchLogContents | None = self._read(launches, launch_log_reader.read)
        self._checks: CheckLogContents | None = None
        # The check log is made with the first capture.
        self._captured = os.path.lexists(checks) or self._launches is None or bool(self._launches.graphs)
        if self._captured:
            self._checks = self._read(checks, check_log.read)
        self._rows: dict[int, GraphChecks] = {row.serial: row for row in self._checks.graphs} if self._checks else {}
        self._replays: tuple[ReplayEvent, ...] = self._launches.replays() if self._launches is not None else ()

    def _read(self, path: Path, read: Any) -> Any:
        try:
            return read(path)
        except ShadowgraphError as error:
            self._unread.append(str(error))
        return None

    def result(self) -> LastCheck:
        checked = self._checked()
        since = checked.number if checked is not None else 0
        running = self._running(since)
        row = self._rows.get(running.graph) if running is not None else None
        launches = self._launches_since(since) if self._captured else []
        batch, plan = (self._text(kind) for kind in (RowKind.BATCH, RowKind.PLAN))
        damages = tuple(self._damages())
        return LastCheck(
            graph=self._name(checked.graph) if checked is not None else "",
            replay=checked.replay if checked is not None else 0,
            clean=not damages,
            damages=damages,
            changes=tuple(self._changes()),
            running=self._name(running.graph) if running is not None else "",
            running_replay=running.replay if running is not None else 0,
            head_checked=row is not None and running is not None and row.begun >= running.replay,
            launches=tuple(map(self._noted, launches[-_LAUNCHES:])),
            launches_noted=len(launches),
            batch=batch.text if batch is not None else "",
            batch_replay=batch.replay if batch is not None else 0,
            plan=plan.text if plan is not None else "",
            plan_replay=plan.replay if plan is not None else 0,
            captured=self._captured,
            unread=tuple(self._unread),
        )

    def _checked(self) -> ReplayEvent | None:
        """The last replay whose check at its end has finished, as the check log confirms."""
        for event in reversed(self._replays):
            row = self._rows.get(event.graph)
            if event.kind != RowKind.REPLAY_FAILED and row is not None and row.ended >= event.replay:
                return event
        last = max(self._rows.values(), key=lambda row: (row.ended, row.serial), default=None)
        return (
            ReplayEvent(0, RowKind.REPLAY_ENDED, last.serial, last.ended) if last is not None and last.ended else None
        )

    def _running(self, since: int) -> ReplayEvent | None:
        """The last replay that had begun after the last check."""
        begun = [e for e in self._replays if e.kind == RowKind.REPLAY_BEGINS and e.number > since]
        if not begun:
            return None
        last = begun[-1]
        row = self._rows.get(last.graph)
        failed = any(e.kind == RowKind.REPLAY_FAILED and e.number > last.number for e in self._replays)
        return None if failed or (row is not None and row.ended >= last.replay) else last

    def _launches_since(self, number: int) -> list[LoggedLaunch]:
        """Launches after the row of a number, and the operators among them that were given a named buffer: torch makes
        dozens of others in each step."""
        if self._launches is None:
            return []
        launches = [row for row in self._launches.since(number) if isinstance(row, LoggedLaunch)]
        return sorted([*launches, *self._launches.operators(number)], key=lambda row: row.number)  # launches first

    def _text(self, kind: RowKind) -> LoggedEvent | None:
        return self._launches.last(kind) if self._launches is not None else None

    def _name(self, serial: int) -> str:
        names = self._launches.graphs if self._launches is not None else {}
        return names.get(serial, f"graph#{serial}")

    def _noted(self, launch: LoggedLaunch) -> NotedLaunch:
        given = [buffer.name for pointer in launch.pointers if (buffer := self._buffer_of(*pointer))]
        file, line, function = launch.site if launch.site is not None else ("", 0, "")
        return NotedLaunch(launch.kernel, file, line, function, launch.grid, tuple(dict.fromkeys(given)))

    def _buffer_of(self, address: int, nbytes: int) -> LoggedBuffer | None:
        """The buffer that a pointer is into; the nearest one where the size of what it points at is not known."""
        if not nbytes:
            return self._buffer_at(address, address)
        known = self._launches.buffers.values() if self._launches is not None else ()
        over = (each for each in known if each.address < address + nbytes and address < each.address + each.nbytes)
        return next(over, None)

    # -- damage ----------------------------------------------------------------------------------------------------

    def _damages(self) -> Iterator[Damage]:
        if self._checks is None:
            return
        left = _DAMAGES
        for row in self._checks.graphs:
            if row.damaged and left:
                left -= 1
                yield self._damage(row)
        outside = self._checks.records[(self._checks.records["graph"] == 0) & (self._checks.records["is_part"] == 0)]
        for record in outside[:left]:
            yield self._described(Damage("", 0, False), record)

    def _damage(self, row: GraphChecks) -> Damage:
        assert self._checks is not None
        records = self._checks.records
        found = Damage(self._name(row.serial), row.damaged, row.tail)
        place = row.damaged << 1 | row.tail
        known = records["is_part"] != check_log.UNDECIDED
        of_it = records[(records["graph"] == row.serial) & (records["replay"] == place) & known]
        return self._described(found, of_it[0]) if len(of_it) else found

    def _changes(self) -> Iterator[Damage]:
        records = self._checks.records if self._checks is not None else ()
        for record in [each for each in records if each["is_part"] == check_log.UNDECIDED][-_DAMAGES:]:
            replay, row = int(record["replay"]), self._rows.get(int(record["graph"]))
            if row is not None and row.ended - (replay >> 1) <= _RECENT:
                yield self._described(Damage(self._name(row.serial), replay >> 1, bool(replay & 1)), record)

    def _described(self, damage: Damage, record: np.void) -> Damage:
        """With the bytes of a record and the buffer that they are next to."""
        first, last = int(record["first"]), int(record["last"])
        buffer = self._buffer_at(first, last)
        start = buffer.address if buffer is not None else 0
        begin = max(0, min(first - int(record["window"]), int(record["window_len"])))
        shown = slice(begin, min(begin + _BYTES, begin + last + 1 - first, int(record["window_len"])))
        return msgspec.structs.replace(
            damage,
            buffer=buffer.name if buffer is not None else "",
            nbytes=buffer.nbytes if buffer is not None else 0,
            first=first - start,
            last=last - start,
            count=int(record["count"]),
            expected=record["expected"][shown].tobytes().hex(" "),
            found="" if self._redact else record["found"][shown].tobytes().hex(" "),
        )

    def _buffer_at(self, first: int, last: int) -> LoggedBuffer | None:
        """The named buffer that bytes lie in, or whose guard they lie in: the nearest one."""
        known = self._launches.buffers.values() if self._launches is not None else ()

        def distance(buffer: LoggedBuffer) -> int:
            return max(first - buffer.address - buffer.nbytes + 1, buffer.address - last, 0)

        nearest = min(known, key=distance, default=None)
        return nearest if nearest is not None and distance(nearest) <= _FAR else None
