"""Files that are there whole or not at all."""

from __future__ import annotations

import contextlib
import os
import stat
import uuid
from pathlib import Path

from shadowgraph.errors import MissingFileError


def write_whole(path: str | os.PathLike[str], content: bytes | memoryview) -> Path:
    """Write under a temporary name and move into place; what is no file, as a pipe, is written to as it is.

    Raises
    ------
    MissingFileError
        When it cannot be written; an older file of that name is left as it was.
    """
    target = Path(path)
    temporary = target if _is_device(target) else target.with_name(f".{uuid.uuid4().hex}.tmp")
    try:
        with open(temporary, "wb" if temporary is target else "xb") as file:
            file.write(content)
            if temporary is not target:
                file.flush()
                os.fsync(file.fileno())
        if temporary is not target:
            os.replace(temporary, target)
    except BrokenPipeError:
        raise
    except OSError as error:
        if temporary is not target:
            with contextlib.suppress(OSError):
                temporary.unlink()
        raise MissingFileError(f"cannot write {target}: {error.strerror or error}") from None
    return target


def _is_device(path: Path) -> bool:
    """Whether something is there that is neither a file nor a folder."""
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError):
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))
