"""Findings log of one process in the run folder: one JSON record per line.

Each line is appended with one `write`, so that no kind of process death loses a line. Any thread of a
wrapped process appends, under the log's own lock. Records that cannot be written, for example on a full disk, are kept
in memory and written first once there is room.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from shadowgraph.common.atomic_files import create
from shadowgraph.common.fork_safety import fork_safe

FORMAT = 2  # record format; readers refuse a higher one
RAISED = "ended by "  # how the line begins that tells an uncaught exception
LIMIT = 16 << 20  # bytes that a process may write; its summary and its end record are written beyond it
_LAST = frozenset({"summary", "end", "capped"})
_FOUND = frozenset({"finding", "note", "failure"})
_BACKLOG = 1 << 20  # bytes kept in memory while the file cannot be written
_RESERVED = 32 << 10  # bytes of disk reserved for the first findings
_KEEP_SIZE = 1  # FALLOC_FL_KEEP_SIZE of <linux/falloc.h>
_SPARES = 4  # file descriptors: a dump takes one at a time, the import of a module two


class FindingsLog:
    """Appends records. Never raises: records that cannot be written by the end are counted as lost.

    Attributes
    ----------
    path
        The log file.
    lost
        Number of records given up.
    closed
        Whether the log takes no more records.
    """

    def __init__(self, folder: str | os.PathLike[str], limit: int = LIMIT) -> None:
        self.path = Path(folder) / f"findings-{os.getpid()}-{time.time_ns()}.jsonl"
        self.lost = 0
        self._lost_findings = 0
        self._limit, self._written = limit, 0
        self._capped = False
        self._lock = fork_safe(threading.RLock())
        self._file: int | None = None
        self._inode: tuple[int, int] | None = None
        self._spares: list[int] = []
        self._rooms = 0  # open contexts of `room`, over all threads: no spares are taken meanwhile
        self._preface = b""
        self._waiting: deque[tuple[str, bytes]] = deque()  # the first entry holds only its unwritten part
        self._why = ""  # reason of the first failure
        self.closed = False

    def write(self, kind: str, **facts: Any) -> None:
        """Append one record; values are JSON types."""
        self.write_json(kind, _fields(facts))

    def preface(self, kind: str, **facts: Any) -> None:
        """Keep a record until the next one is written: a child that only calls `exec` leaves no file."""
        with self._lock:
            self._preface += _line(kind, _fields(facts))

    def write_json(self, kind: str, body: bytes) -> None:
        """Append one record whose fields are already JSON text, without the enclosing braces."""
        with self._lock:
            if kind == "interim" and self._written + len(body) > self._limit // 2:
                return  # the rest is reserved for findings; the heartbeat has the latest numbers
            line, self._preface = self._preface + _line(kind, body), b""
            if self._written + len(line) > self._limit and kind not in _LAST:
                self._lose(kind)
                if self._capped:
                    return
                self._capped, kind, line = True, "capped", _line("capped", b"")
            self._append(kind, line)

    @contextmanager
    def room(self) -> Iterator[None]:
        """Context in which a few files can be opened, even if the program has used up its file descriptors."""
        with self._lock:
            self._rooms += 1
            if self._is_short():
                self._free_spares()
        try:
            yield
        finally:
            with self._lock:
                self._rooms -= 1
                self._take_spares()

    def close(self) -> None:
        """Close the file; pending and later records are lost. Losses are told in one line on standard error, because
        the report is built from the file and cannot show them."""
        with self._lock:
            for kind, _ in self._waiting:
                self._lose(kind)
            self._waiting.clear()
            if self._why and self.lost and not self.closed:
                lost = f"{self.lost:,} records, {self._lost_findings:,} of them findings"
                say(f"process {os.getpid()}: {lost}, could not be written to {self.path}: {self._why}")
            if self._is_ours(self._file):
                _trim(self._file)
            self.abandon()

    def abandon(self) -> None:
        """Close the file silently, as a forked child does: pending records belong to the parent."""
        with self._lock:
            self.closed = True
            self._waiting.clear()
            self._free_spares()
            if self._file is not None and self._is_ours(self._file):
                os.close(self._file)
            self._file = None

    def _lose(self, kind: str) -> None:
        self.lost += 1
        self._lost_findings += kind in _FOUND

    def _append(self, kind: str, line: bytes) -> None:
        if self.closed or sum(len(each) for _, each in self._waiting) + len(line) > _BACKLOG:
            self._lose(kind)
            return
        self._waiting.append((kind, line))
        try:
            self._write_waiting()
        except OSError as error:
            self._complain(error)

    def _write_waiting(self) -> None:
        if not self._is_ours(self._file):
            self._file = self._open()
        while self._waiting:
            kind, line = self._waiting[0]
            done = os.write(self._file, line)  # type: ignore[arg-type]
            self._written += done
            if done == len(line):
                self._waiting.popleft()
            else:
                self._waiting[0] = kind, line[done:]

    def _open(self) -> int:
        if self._inode is None:
            number = create(self.path, os.O_APPEND)
        else:  # the program has closed descriptors that it did not open, as a daemon does
            number = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC)
        if number <= 2:  # standard streams closed by the program stay closed
            low, number = number, fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, 3)
            os.close(low)
        if self._inode is None:
            _reserve(number)
            self._inode = _inode(number)
        self._file = number
        self._take_spares()
        return number

    def _is_ours(self, number: int | None) -> bool:
        """Whether a descriptor still refers to the log: the program may have closed it and opened its own file."""
        return number is not None and self._inode is not None and _inode(number) == self._inode

    def _is_short(self) -> bool:
        """Whether the program has fewer free descriptors than the log may need."""
        taken: list[int] = []
        try:
            while self._file is not None and len(taken) < _SPARES:
                taken.append(os.dup(self._file))
            return False
        except OSError:
            return True
        finally:
            for number in taken:
                os.close(number)

    def _take_spares(self) -> None:
        if self._rooms:
            return
        self._spares = [number for number in self._spares if self._is_ours(number)]
        with suppress(OSError):
            while self._file is not None and len(self._spares) < _SPARES:
                self._spares.append(fcntl.fcntl(self._file, fcntl.F_DUPFD_CLOEXEC, 3))

    def _free_spares(self) -> None:
        for number in filter(self._is_ours, self._spares):
            os.close(number)
        self._spares.clear()

    def _complain(self, error: OSError) -> None:
        if not self._why:
            self._why = error.strerror or type(error).__name__
            say(f"cannot write {self.path}: {self._why}; the program goes on, what it finds waits in memory")


def _inode(number: int) -> tuple[int, int] | None:
    try:
        found = os.fstat(number)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _reserve(number: int) -> None:
    """Reserve disk space; `os.posix_fallocate` cannot without making the file longer."""
    with suppress(OSError, AttributeError):  # a C library without it
        size = ctypes.c_int64
        ctypes.CDLL(None).fallocate(number, _KEEP_SIZE, size(0), size(_RESERVED))


def _trim(number: int | None) -> None:
    """Release reserved space that was not written."""
    if number is not None:
        with suppress(OSError):
            os.ftruncate(number, os.fstat(number).st_size)


def printable(word: str) -> str:
    """A word of a command line, with undecodable bytes replaced."""
    return os.fsencode(word).decode(errors="replace")


def command_line(words: Sequence[str], redact: bool) -> list[str]:
    """A command line as text; with `redact`, only up to the program's name: keys and prompts may follow."""
    shown = [printable(word) for word in words]
    if not redact:
        return shown
    kept = next((at for at, word in enumerate(shown) if at and (word == "-c" or not word.startswith("-"))), 0) + 1
    return [*shown[:kept], *(["[...]"] if len(shown) > kept else [])]


_told_rank: int | None = None


def tell_rank(number: int) -> None:
    """Set the rank that the program reports, for `rank`, where no launcher sets one."""
    global _told_rank
    _told_rank = number


def rank() -> int | None:
    """This process's rank, from a launcher such as torchrun or from the program itself; None if unknown."""
    text = os.environ.get("RANK", "")
    return int(text) if text.isdecimal() else _told_rank


def _fields(facts: dict[str, Any]) -> bytes:
    return json.dumps(facts, default=str, separators=(",", ":")).encode()[1:-1]


def _line(kind: str, body: bytes) -> bytes:
    head = f'{{"kind":"{kind}","time":{time.time():.6f}'.encode()
    return head + (b"," + body if body else b"") + b"}\n"


def say(text: str) -> None:
    """Write one line to standard error, if it is open."""
    try:
        os.write(sys.stderr.fileno() if sys.stderr is not None else 2, f"shadowgraph: {text}\n".encode())
    except (OSError, ValueError, AttributeError):
        return  # closed or replaced by the program: no place to report to
