"""Second step of a dump: writes one file atomically. May run in a background thread."""

from __future__ import annotations

import os
import stat
import tempfile
import threading
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from shadowgraph.common.errors import MissingFileError
from shadowgraph.common.fork_safety import fork_safe
from shadowgraph.dumps.collecting import Bytes, Collected
from shadowgraph.dumps.completing import manifest_of
from shadowgraph.dumps.container import MANIFEST, crc32, header_of
from shadowgraph.dumps.encoding import encoded
from shadowgraph.dumps.fitting import fitted
from shadowgraph.dumps.redaction import redacted_contents

SUFFIX = ".safetensors"
_BUFFER = 1 << 20
_WORTH_THREADS = 16 << 20  # bytes from which on several threads compute the checksums

Part = bytes | memoryview


def destination(path: str | os.PathLike[str]) -> Path:
    """The file of a dump: a unique name inside a directory, else the path itself.

    Raises
    ------
    MissingFileError
        When the path is neither a file nor a directory.
    """
    try:
        found = Path(os.path.abspath(path))
        mode = found.stat().st_mode if os.path.lexists(found) and found.exists() else stat.S_IFREG
    except (OSError, ValueError) as error:
        raise MissingFileError(f"cannot write the dump {os.fspath(path)!r}: {_said(error)}") from None
    if stat.S_ISDIR(mode):
        return _unused(found)
    if not stat.S_ISREG(mode):
        raise MissingFileError(f"cannot write the dump {found}: it exists and is no regular file")
    return found


def write_dump(collected: Collected, path: Path, limit: int) -> Path:
    """Write collected contents, `limit` bytes at most (see `fitted`).

    The file appears complete and synced to disk, readable by its owner only, or not at all; an existing file stays
    until then.

    Raises
    ------
    MissingFileError
        When the place is not writable or the disk is full.
    """
    if collected.manifest.redacted:
        collected = redacted_contents(collected)
    manifest = fitted(manifest_of(collected, _checksums(collected.bytes)), limit)
    text, payloads = encoded(manifest), collected.bytes[: len(manifest.payloads)]
    sizes = {MANIFEST: len(text), **{row.tensor: row.nbytes for row in manifest.payloads}}
    try:
        _replace(path, [header_of(sizes, crc32(text)), text, *(each.data for each in payloads)])
    except OSError as error:
        raise MissingFileError(f"cannot write the dump {path}: {_said(error)}") from None
    return path


def _checksums(payloads: Sequence[Bytes]) -> list[int]:
    data = [each.data for each in payloads]
    if sum(map(len, data)) < _WORTH_THREADS:
        return [crc32(part) for part in data]
    try:
        with ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as pool:
            return list(pool.map(crc32, data))
    except RuntimeError:  # at interpreter shutdown no pool takes work
        return [crc32(part) for part in data]


def _replace(path: Path, parts: Iterable[Part]) -> None:
    handle, temporary = tempfile.mkstemp(prefix=".shadowgraph-", suffix=".tmp", dir=path.parent)
    try:
        with open(handle, "wb", buffering=_BUFFER) as file:
            for part in parts:
                file.write(part)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise
    with suppress(OSError):  # not every file system supports it; the file itself is synced
        _sync_directory(path.parent)


def _sync_directory(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


_naming = fork_safe(threading.Lock())
_named = 0


def _unused(folder: Path) -> Path:
    """A name with time and process id, unique among the dumps of this process."""
    global _named
    with _naming:
        _named += 1
        stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        return folder / f"shadowgraph-{stamp}-{os.getpid()}-{_named}{SUFFIX}"


def _said(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
