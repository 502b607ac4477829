"""The run folder as the supervising process creates it before the program starts and completes it afterwards.

Used only by `wrap`, in its main thread. The contents may quote the program's memory, and a file named ``paused`` in the
folder pauses checking: so the folder belongs to this user, has mode 0700, and is not reached through a link.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
import time
from collections.abc import Sequence
from typing import Any

from shadowgraph.common.atomic_files import create
from shadowgraph.common.errors import RunFolderError, UnsafeFolderError
from shadowgraph.wrap.folder.findings_log import command_line, say
from shadowgraph.wrap.folder.injection_config import InjectionConfig

FORMAT = 2
MANIFEST = "run.json"
DEFAULT_PARENT = "shadowgraph-runs"
_RESERVED = 64 << 10  # bytes of disk reserved for the manifest's next state
_ELSE = "name a new folder with --run-dir"


def default_folder() -> str:
    """A new name under ``shadowgraph-runs`` in the working directory."""
    return os.path.join(DEFAULT_PARENT, f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}")


class RunFolder:
    """A run folder that this process owns.

    Parameters
    ----------
    path
        Created with its parents, with mode 0700. It may exist if it is empty and this user's; another mode is changed
        to 0700, with one line on standard error.

    Attributes
    ----------
    manifest
        All noted facts, whether or not they could be written.

    Raises
    ------
    RunFolderError
        When the folder cannot be created or written, or is not empty.
    UnsafeFolderError
        When it is another user's, or a link.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.path.abspath(path)
        self.manifest: dict[str, Any] = {}
        self._spare: int | None = None
        try:
            os.makedirs(os.path.dirname(self.path), exist_ok=True)
            try:
                os.mkdir(self.path, 0o700)
            except FileExistsError:
                _take_over(self.path)
        except FileExistsError:
            raise RunFolderError(f"{os.path.dirname(self.path)} is a file; {_ELSE}") from None
        except OSError as error:
            raise _unwritable(self.path, error) from None

    def begin(self, command: Sequence[str], config: InjectionConfig, version: str) -> None:
        """Write the manifest, before the program starts.

        Raises
        ------
        RunFolderError
            When it cannot be written.
        """
        self.manifest = {
            "format": FORMAT,
            "shadowgraph": version,
            "command": command_line(command, config.redact),
            "cwd": os.getcwd(),
            "started": time.time(),
            "settings": config._asdict(),
        }
        try:
            self._save(durable=True)
        except OSError as error:
            raise _unwritable(self.path, error) from None

    def note(self, **facts: Any) -> None:
        """Add facts to the manifest. Does not raise when it cannot be written: the run continues."""
        self.manifest |= facts
        with contextlib.suppress(OSError):  # the previous state stays intact
            self._save()

    @property
    def _next(self) -> str:
        return os.path.join(self.path, f".{MANIFEST}.new")

    def _save(self, durable: bool = False) -> None:
        """Move the manifest's next state into place. Its disk space was reserved with the previous state, so the end of
        the run can be written on a full disk."""
        content = json.dumps(self.manifest, indent=1).encode()
        if self._spare is None:
            self._spare = create(self._next)
        try:
            _fill(self._spare, content)
            if durable:
                os.fsync(self._spare)
            os.replace(self._next, os.path.join(self.path, MANIFEST))
        finally:
            os.close(self._spare)
            self._spare = None
            with contextlib.suppress(OSError):
                os.unlink(self._next)
        if "exit_code" not in self.manifest:
            self._reserve()

    def _reserve(self) -> None:
        with contextlib.suppress(OSError):
            self._spare = create(self._next)
            os.posix_fallocate(self._spare, 0, _RESERVED)


def _fill(file: int, content: bytes) -> None:
    done = 0
    while done < len(content):
        done += os.pwrite(file, content[done:], done)
    os.ftruncate(file, len(content))


def _take_over(path: str) -> None:
    """Use an existing folder, if it is empty and belongs to this user alone.

    Raises
    ------
    RunFolderError
        When it is a file, or is not empty.
    UnsafeFolderError
        When it is another user's, or a link.
    OSError
        When it cannot be read or changed.
    """
    found = os.lstat(path)
    if stat.S_ISLNK(found.st_mode):
        raise UnsafeFolderError(f"{path} is a link, and may lead to another place later; {_ELSE}")
    if not stat.S_ISDIR(found.st_mode):
        raise RunFolderError(f"{path} is a file; name a folder with --run-dir")
    if found.st_uid != os.geteuid():
        raise UnsafeFolderError(f"{path} belongs to user {found.st_uid}, who could read or change the run; {_ELSE}")
    opened = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if not os.path.samestat(os.fstat(opened), found):
            raise UnsafeFolderError(f"{path} was replaced by another while it was looked at; {_ELSE}")
        there = os.listdir(opened)
        if there:
            held = "another run" if MANIFEST in there else "other files"
            raise RunFolderError(f"{path} holds {held} already; {_ELSE}")
        mode = stat.S_IMODE(os.fstat(opened).st_mode)
        if mode & 0o077:
            os.fchmod(opened, 0o700)
            say(f"{path} had mode {mode:04o}, and is 0700 now: what is in it may quote the program's data")
    finally:
        os.close(opened)


def _unwritable(path: str, error: OSError) -> RunFolderError:
    return RunFolderError(f"cannot write the run folder {path}: {error.strerror}; choose another with --run-dir")
