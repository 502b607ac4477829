"""Atomic file replacement: a file is whole or absent, and readable by its owner only, since it quotes the program's
memory.

Commands and renderers write pictures and pages here, a wrapped process its heartbeat. Any thread; takes no lock.
"""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path

from shadowgraph.common.errors import MissingFileError

_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def create(path: str | os.PathLike[str], flags: int = 0) -> int:
    """Open a new file, readable by its owner only, and return its descriptor; an existing file or a link is refused.

    Raises
    ------
    OSError
    """
    return os.open(path, _NEW | flags, 0o600)


def atomic_replace(path: str | os.PathLike[str], content: bytes | memoryview, durable: bool = True) -> None:
    """Write under a temporary name in the same folder and move into place, with mode 0600.

    Parameters
    ----------
    durable
        Flush the file to disk before the rename.

    Raises
    ------
    OSError
        An older file of that name stays unchanged.
    """
    temporary = os.path.join(os.path.dirname(path), f".{os.urandom(16).hex()}.tmp")
    try:
        with open(create(temporary), "wb") as file:
            file.write(content)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def atomic_write(path: str | os.PathLike[str], content: bytes | memoryview) -> Path:
    """`atomic_replace`; a path that is not a regular file, such as a pipe, is written to directly.

    Raises
    ------
    MissingFileError
        When the file cannot be written; an older file of that name stays unchanged.
    """
    target = Path(path)
    try:
        if _is_device(target):
            target.write_bytes(content)
        else:
            atomic_replace(target, content)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise MissingFileError(f"cannot write {target}: {error.strerror or error}") from None
    return target


def _is_device(path: Path) -> bool:
    """Whether the path exists and is neither a file nor a folder."""
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError):
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))
