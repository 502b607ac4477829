"""Where the check log and the launch log of a process lie: names, leftovers of dead processes, and their removal.

Used by a watched process, by the supervising process, and by readers of run folders. Imports neither torch nor numpy.

While a process lives, its check log lies in `SHARED_MEMORY`, as a device writes it; its launch log lies in the run
folder, or in `SHARED_MEMORY` where there is none. `collect` brings the check log of a dead process into its run folder.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import time
from pathlib import Path
from typing import NamedTuple

from shadowgraph.common.atomic_files import atomic_replace
from shadowgraph.common.mapped_files import is_written

SHARED_MEMORY = "/dev/shm"
CHECKS, LAUNCHES = ".checks", ".launches"
ALONE = "alone"  # in the place of a run's token, where there is no run folder
_NAME = re.compile(r"shadowgraph-([0-9a-f]{16}|alone)-(\d{1,10}-\d{1,20})\.(checks|launches)")
_TOKEN = re.compile(r"[0-9a-f]{16}")
_NEW = 60.0  # seconds: its writer may not have locked it yet
_KEPT = 24 * 3600.0  # seconds, of a process without a run folder


class Place(NamedTuple):
    """Where a process's logs go.

    Attributes
    ----------
    folder
        The run folder; empty without one.
    run
        The run's token, 16 hexadecimal digits, or `ALONE`.
    stem
        Process id and time, which the process's other files in the folder have in their names, too.
    redact
        Leave values of the program out.
    """

    folder: str
    run: str
    stem: str
    redact: bool = False

    @property
    def checks(self) -> str:
        """The check log's path while the process lives."""
        return os.path.join(SHARED_MEMORY, f"shadowgraph-{self.run}-{self.stem}{CHECKS}")

    @property
    def launches(self) -> str:
        """The launch log's path."""
        if self.folder:
            return in_folder(self.folder, self.stem, LAUNCHES)
        return os.path.join(SHARED_MEMORY, f"shadowgraph-{self.run}-{self.stem}{LAUNCHES}")


assigned: Place | None = None  # set in a wrapped process, before its first debugger and after a fork


class Recorded(NamedTuple):
    """A log in `SHARED_MEMORY`."""

    path: str
    run: str
    stem: str
    kind: str


def in_folder(folder: str | os.PathLike[str], stem: str, kind: str) -> str:
    """The path of a process's log in a run folder; `kind` is `CHECKS` or `LAUNCHES`."""
    return os.path.join(folder, f"{kind[1:]}-{stem}.log")


def stem_here() -> str:
    """A stem for this process."""
    return f"{os.getpid()}-{time.time_ns()}"


def new_token() -> str:
    """A token for a run."""
    return os.urandom(8).hex()


def checks_of(folder: str | os.PathLike[str], run: object, stem: str) -> str:
    """The path of a process's check log: in the run folder, or where it is until it is brought there."""
    path = in_folder(folder, stem, CHECKS)
    if not os.path.lexists(path) and isinstance(run, str) and _TOKEN.fullmatch(run):
        there = Place(str(folder), run, stem).checks
        return there if os.path.lexists(there) else path
    return path


def collect(folder: str | os.PathLike[str], run: str, redact: bool) -> None:
    """Bring the check logs of a run's dead processes into its folder. On a full disk they stay where they are."""
    for found in _listed():
        if found.run == run and not is_written(found.path):
            _bring(found, folder, redact)


def remove_leftovers() -> None:
    """Bring the check logs of dead runs into their folders, and remove those that belong to none."""
    for found in _listed():
        if _is_old(found.path, _NEW) and not is_written(found.path):
            _settle(found)


def _settle(found: Recorded) -> None:
    if found.run == ALONE:
        if _is_old(found.path, _KEPT):
            _remove(found.path)
        return
    folder = _folder_of(found)
    if folder is None:
        _remove(found.path)
        return
    redact = _redacts(folder, found.run)
    if redact is None:
        _remove(found.path)
    else:
        _bring(found, folder, redact)


def _listed() -> list[Recorded]:
    """The logs in `SHARED_MEMORY` that belong to this user."""
    found = []
    with contextlib.suppress(OSError), os.scandir(SHARED_MEMORY) as entries:
        for entry in entries:
            name = _NAME.fullmatch(entry.name)
            with contextlib.suppress(OSError):
                if name and entry.stat(follow_symlinks=False).st_uid == os.geteuid():
                    found.append(Recorded(entry.path, name[1], name[2], f".{name[3]}"))
    return found


def _bring(found: Recorded, folder: str | os.PathLike[str], redact: bool) -> None:
    from shadowgraph.model.check_log import NBYTES, without_values

    with contextlib.suppress(OSError):
        content = Path(found.path).read_bytes() if os.path.getsize(found.path) <= NBYTES else b""
        atomic_replace(in_folder(folder, found.stem, found.kind), without_values(content) if redact else content, False)
        _remove(found.path)


def _folder_of(found: Recorded) -> str | None:
    """The run folder that a check log names."""
    from shadowgraph.common.errors import ShadowgraphError
    from shadowgraph.model.check_log import read

    try:
        folder = read(found.path).folder
    except ShadowgraphError:
        return None
    return folder if folder and os.path.isdir(folder) else None


def _redacts(folder: str, run: str) -> bool | None:
    """Whether the run of a folder is redacted; None where the folder is not this run's."""
    try:
        with open(os.path.join(folder, "run.json"), "rb") as file:
            settings = json.loads(file.read(1 << 20))["settings"]
        return bool(settings["redact"]) if settings["run"] == run else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _is_old(path: str, seconds: float) -> bool:
    try:
        return time.time() - os.lstat(path).st_mtime > seconds
    except OSError:
        return False


def _remove(path: str) -> None:
    with contextlib.suppress(OSError):
        os.unlink(path)
