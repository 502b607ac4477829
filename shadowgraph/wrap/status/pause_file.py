"""Pause file: pauses and resumes checking from outside, as a file in the run folder that every process polls.

`shadowgraph pause` and `resume` write it, in a process of their own; `HeartbeatWriter` polls it, in a replaying thread.
Nothing is sent to the processes: a signal would kill one that is not watched yet, or that uses the signal itself.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from shadowgraph.common.atomic_files import create
from shadowgraph.common.errors import RunFolderError

NAME = "paused"


def is_off(folder: str | os.PathLike[str]) -> bool:
    """Whether checking is paused for a run, by its folder's owner or by root; a link, or a file of another user, is
    ignored."""
    try:
        found = os.lstat(os.path.join(folder, NAME))
        return stat.S_ISREG(found.st_mode) and found.st_uid in (0, os.stat(folder).st_uid)
    except OSError:
        return False


def switch(folder: str | os.PathLike[str], off: bool) -> bool:
    """Pause or resume checking in the processes of a run; False when that was already its state.

    Raises
    ------
    RunFolderError
        When the path is no run folder, the run has ended, or its folder cannot be written.
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
