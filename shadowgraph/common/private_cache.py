"""A cache folder that only this user can write, for files that later processes load as code.

`graphs.observer` keeps its compiled library there. Any thread; no lock, no state.
"""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def cache_folder() -> Path:
    """This user's cache folder for shadowgraph, with mode 0700: below ``XDG_CACHE_HOME`` or ``~/.cache``, or where that
    cannot be written, below the folder for temporary files.

    Raises
    ------
    OSError
        When no folder can be made, or when another user could have put files there.
    """
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    folder = Path(home, "shadowgraph")
    try:
        return _private(folder)
    except OSError:
        if os.path.lexists(folder):  # what is wrong with it is to be told
            raise
        return _private(Path(tempfile.gettempdir(), f"shadowgraph-cache-{os.geteuid()}"))


def is_private_file(path: Path) -> bool:
    """Whether a path is a regular file of this user that no other user can write."""
    try:
        found = path.lstat()
    except OSError:
        return False
    return stat.S_ISREG(found.st_mode) and _is_ours(found)


def _private(folder: Path) -> Path:
    os.makedirs(folder.parent, mode=0o700, exist_ok=True)
    try:
        os.mkdir(folder, 0o700)
    except FileExistsError:
        found = folder.lstat()
        if not stat.S_ISDIR(found.st_mode) or not _is_ours(found):
            raise PermissionError(
                f"{folder} is a link, another user's, or writable by others: nothing is loaded from it"
            ) from None
    for parent in folder.parents:
        above = parent.stat()
        if above.st_mode & _OTHERS_WRITE and not above.st_mode & stat.S_ISVTX:
            raise PermissionError(f"{parent} is writable by others: nothing is loaded from below it")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise PermissionError(f"{folder} cannot be written")
    return folder


def _is_ours(found: os.stat_result) -> bool:
    return found.st_uid == os.geteuid() and not found.st_mode & _OTHERS_WRITE
