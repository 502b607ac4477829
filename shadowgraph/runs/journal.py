"""One process's file of the run folder: a record a line, each with one `write`, so no way to die loses a line."""

from __future__ import annotations

import fcntl
import json
import os
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from shadowgraph.forking import forkable

FORMAT = 1  # of the records; readers refuse a higher one
LIMIT = 16 << 20  # bytes a process may write; its summary and its end are written even then
_LAST = frozenset({"summary", "end", "capped"})


class Journal:
    """Appends records. Never raises: where the disk is full or the folder gone, records are counted as lost.

    Attributes
    ----------
    path
        The file.
    lost
        Records that could not be written.
    closed
        Whether nothing more can be written.
    """

    def __init__(self, folder: str | os.PathLike[str], limit: int = LIMIT) -> None:
        self.path = Path(folder) / f"findings-{os.getpid()}-{time.time_ns()}.jsonl"
        self.lost = 0
        self._limit, self._written = limit, 0
        self._capped = self._complained = self._torn = False
        self._lock = forkable(threading.RLock())
        self._file: int | None = None
        self._preface = b""
        self.closed = False

    def write(self, kind: str, **facts: Any) -> None:
        """Append one record of JSON types."""
        self.write_json(kind, _fields(facts))

    def preface(self, kind: str, **facts: Any) -> None:
        """Keep a record until the next one is written: a child that only makes way for `exec` leaves no file."""
        with self._lock:
            self._preface += _line(kind, _fields(facts))

    def write_json(self, kind: str, body: bytes) -> None:
        """Append one record whose fields are JSON text already, without the braces around them."""
        with self._lock:
            if kind == "interim" and self._written + len(body) > self._limit // 2:
                return  # what remains is for findings; the pulse tells the latest numbers
            line, self._preface = self._preface + _line(kind, body), b""
            if self._written + len(line) > self._limit and kind not in _LAST:
                self.lost += 1
                if not self._capped:
                    self._capped = True
                    self._append(_line("capped", b""))
                return
            self._append(line)

    def close(self) -> None:
        """Give the file back; what comes later is lost."""
        with self._lock:
            self.closed = True
            if self._file is not None:
                os.close(self._file)
                self._file = None

    def _open(self) -> int | None:
        try:
            number = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            if number > 2:
                return number
            above = fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, 3)  # what the program has closed stays closed
            os.close(number)
            return above
        except OSError as error:
            self._complain(error)
            return None

    def _append(self, line: bytes) -> None:
        if self._file is None and not self.closed and not self._complained:
            self._file = self._open()
        if self._file is None:
            self.lost += 1
            return
        try:
            wanted = (b"\n" if self._torn else b"") + line  # after half a line a whole one begins
            done = os.write(self._file, wanted)
            self._torn = done != len(wanted)
            self._written += done
            self.lost += self._torn
        except OSError as error:
            self.lost += 1
            self._complain(error)

    def _complain(self, error: OSError) -> None:
        if not self._complained:
            self._complained = True
            say(f"cannot write {self.path}: {error.strerror}; the program goes on, its findings are lost")


def printable(word: str) -> str:
    """A word of a command line without the bytes that are no text."""
    return os.fsencode(word).decode(errors="replace")


def command_line(words: Sequence[str], redact: bool) -> list[str]:
    """A command line as text; redacted, without what follows the program's name, where keys and prompts may be."""
    shown = [printable(word) for word in words]
    if not redact:
        return shown
    kept = next((at for at, word in enumerate(shown) if at and (word == "-c" or not word.startswith("-"))), 0) + 1
    return [*shown[:kept], *(["[...]"] if len(shown) > kept else [])]


_told_rank: int | None = None


def tell_rank(number: int) -> None:
    """The program's own word for `rank`, where no launcher said it."""
    global _told_rank
    _told_rank = number


def rank() -> int | None:
    """This process's place among those that a launcher such as torchrun, or the program itself, started together."""
    text = os.environ.get("RANK", "")
    return int(text) if text.isdecimal() else _told_rank


def _fields(facts: dict[str, Any]) -> bytes:
    return json.dumps(facts, default=str, separators=(",", ":")).encode()[1:-1]


def _line(kind: str, body: bytes) -> bytes:
    head = f'{{"kind":"{kind}","time":{time.time():.6f}'.encode()
    return head + (b"," + body if body else b"") + b"}\n"


def say(text: str) -> None:
    """One line on standard error, if there is one."""
    try:
        os.write(sys.stderr.fileno() if sys.stderr is not None else 2, f"shadowgraph: {text}\n".encode())
    except (OSError, ValueError, AttributeError):
        return  # closed by the program, or an object of its own: nobody can be told
