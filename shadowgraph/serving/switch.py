"""Checking off and on from outside: a file in the run folder that every process of the run looks for as it replays.

Nothing is sent to the processes. A signal would kill one that is not watched yet, or that has a use for it.
"""

from __future__ import annotations

import os
from pathlib import Path

from shadowgraph.errors import RunFolderError

NAME = "paused"


def is_off(folder: str | os.PathLike[str]) -> bool:
    """Whether the processes of a run are asked not to check."""
    return os.path.lexists(os.path.join(folder, NAME))


def switch(folder: str | os.PathLike[str], off: bool) -> bool:
    """Ask the processes of a run to stop checking, or to go on; False where that was so already.

    Raises
    ------
    RunFolderError
        When it is no run folder, the run has ended, or its folder cannot be written.
    """
    from shadowgraph.runs.reader import read_manifest

    said = read_manifest(Path(folder))
    if "exit_code" in said:
        raise RunFolderError(f"{folder}: this run has ended")
    path = os.path.join(folder, NAME)
    try:
        if off:
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        else:
            os.unlink(path)
    except (FileExistsError, FileNotFoundError):
        return False
    except OSError as error:
        raise RunFolderError(f"cannot write the run folder {folder}: {error.strerror}") from None
    return True
