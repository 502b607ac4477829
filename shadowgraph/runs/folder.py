"""The run folder from the supervising parent's side: made before the program starts, concluded after it."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Sequence
from typing import Any

from shadowgraph.errors import RunFolderError
from shadowgraph.runs.journal import command_line
from shadowgraph.runs.orders import Orders

FORMAT = 1
MANIFEST = "run.json"
DEFAULT_PARENT = "shadowgraph-runs"


def default_folder() -> str:
    """A new name under ``shadowgraph-runs`` in the working directory."""
    return os.path.join(DEFAULT_PARENT, f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}")


class RunFolder:
    """A run folder that this process owns.

    Parameters
    ----------
    path
        Made with its parents. It may exist if it is empty.

    Raises
    ------
    RunFolderError
        When it cannot be made or written, or holds something already.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.path.abspath(path)
        self._manifest: dict[str, Any] = {}
        try:
            os.makedirs(self.path, mode=0o700, exist_ok=True)  # what is in it may quote the program's data
            there = os.listdir(self.path)
            if there:
                held = "another run" if MANIFEST in there else "other files"
                raise RunFolderError(f"{self.path} holds {held} already; name a new folder with --run-dir")
        except FileExistsError:
            raise RunFolderError(f"{self.path} is a file; name a folder with --run-dir") from None
        except OSError as error:
            raise _unwritable(self.path, error) from None

    def begin(self, command: Sequence[str], orders: Orders, version: str) -> None:
        """Write the manifest, before the program starts.

        Raises
        ------
        RunFolderError
            When it cannot be written.
        """
        self._manifest = {
            "format": FORMAT,
            "shadowgraph": version,
            "command": command_line(command, orders.redact),
            "cwd": os.getcwd(),
            "started": time.time(),
            "settings": orders._asdict(),
        }
        self._save(durable=True)

    def note(self, **facts: Any) -> None:
        """Add to the manifest. Does not raise where the disk is full: the run goes on."""
        self._manifest |= facts
        try:
            self._save()
        except RunFolderError:
            return  # what was written before stays whole

    def _save(self, durable: bool = False) -> None:
        fresh = os.path.join(self.path, f".{MANIFEST}.new")
        try:
            with open(fresh, "w", encoding="utf-8", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
                json.dump(self._manifest, file, indent=1)
                if durable:
                    file.flush()
                    os.fsync(file.fileno())
            os.replace(fresh, os.path.join(self.path, MANIFEST))
        except OSError as error:
            with contextlib.suppress(OSError):
                os.unlink(fresh)
            raise _unwritable(self.path, error) from None


def _unwritable(path: str, error: OSError) -> RunFolderError:
    return RunFolderError(f"cannot write the run folder {path}: {error.strerror}; choose another with --run-dir")
