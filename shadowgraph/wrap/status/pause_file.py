"""Checking off and on from outside: a file in the run folder that every process of the run looks for as it replays.

`shadowgraph pause` and `resume` write it, in a process of their own; `HeartbeatWriter` looks at it, in the thread that
replays. Nothing is sent to the processes. A signal would kill one that is not watched yet, or that has a use for it.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from shadowgraph.common.atomic_files import create
from shadowgraph.common.errors import RunFolderError

NAME = "paused"


def is_off(folder: str | os.PathLike[str]) -> bool:
    """Whether the processes of a run are asked not to check, by its folder's owner or by root; a link, or a file of
    another user, does not count."""
    try:
        found = os.lstat(os.path.join(folder, NAME))
        return stat.S_ISREG(found.st_mode) and found.st_uid in (0, os.stat(folder).st_uid)
    except OSError:
        return False


def switch(folder: str | os.PathLike[str], off: bool) -> bool:
    """Ask the processes of a run to stop checking, or to go on; False where that was so already.

    Raises
    ------
    RunFolderError
        When it is no run folder, the run has ended, or its folder cannot be written.
    """
    from shadowgraph.wrap.folder.reader import read_run

    if "exit_code" in read_run(Path(folder)).manifest:
        raise RunFolderError(f"{folder}: this run has ended")
    path = os.path.join(folder, NAME)
    try:
        if off:
            os.close(create(path))
        else:
            os.unlink(path)
    except FileExistsError:
        if not is_off(folder):
            raise RunFolderError(f"{path} is no file of this run's owner: remove it") from None
        return False
    except FileNotFoundError:
        return False
    except OSError as error:
        raise RunFolderError(f"cannot write the run folder {folder}: {error.strerror}") from None
    return True
