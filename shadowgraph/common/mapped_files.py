"""Files of a fixed size that are mapped into memory, so that what is written survives the death of the process.

Mapped once in the process's life, at the first debugger's start or the first capture; any thread writes, and so may a
device. No descriptor stays open: a program may close descriptors that it did not open. Each file is locked (`flock`)
for as long as the mapping lives, which tells another process, in any container, whether the writer is alive.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import mmap
import os
import stat
from pathlib import Path

from shadowgraph.common.errors import MissingFileError, RecordedLogError

_FAILED = ctypes.c_void_p(-1).value
_FIXED = 0x10  # MAP_FIXED of <linux/mman.h>


class MappedMemory:
    """Shared memory of a file, or anonymous memory that ends with the process. Never unmapped: a device may write it.

    Attributes
    ----------
    path
        The file; None for anonymous memory.
    address, nbytes
        Where it is mapped.
    view
        The bytes.
    """

    def __init__(self, address: int, nbytes: int, path: Path | None) -> None:
        self.address, self.nbytes, self.path = address, nbytes, path
        self.view = memoryview((ctypes.c_char * nbytes).from_address(address)).cast("B")

    @classmethod
    def create(cls, path: str | os.PathLike[str], nbytes: int) -> MappedMemory:
        """Map a new file of zeros, with mode 0600. Its space is allocated first: a write can never fail later.

        Raises
        ------
        OSError
            When it exists, or its space cannot be had; no file remains.
        """
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        number = os.open(path, flags, 0o600)
        try:
            fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.posix_fallocate(number, 0, nbytes)
            return cls(_map(nbytes, mmap.MAP_SHARED, number), nbytes, Path(path))
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(path)
            raise
        finally:
            os.close(number)

    @classmethod
    def anonymous(cls, nbytes: int) -> MappedMemory:
        """Map memory of zeros without a file.

        Raises
        ------
        OSError
        """
        # Shared: a device may write it, which pages that a fork copies on write would not show.
        return cls(_map(nbytes, mmap.MAP_SHARED | mmap.MAP_ANONYMOUS, -1), nbytes, None)

    def leave(self) -> None:
        """In a forked child: put zeros of its own at these addresses, so that no write reaches the parent's file."""
        self.path = None
        _map(self.nbytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _FIXED, -1, self.address)

    def remove(self) -> None:
        """Remove the file; the memory stays."""
        if self.path is not None:
            with contextlib.suppress(OSError):
                os.unlink(self.path)
            self.path = None


def is_written(path: str | os.PathLike[str]) -> bool:
    """Whether a process that mapped the file with `MappedMemory.create` is alive."""
    try:
        number = _open(path)
    except OSError:
        return False
    try:
        fcntl.flock(number, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(number)
    return False


def read_mapped(path: str | os.PathLike[str], nbytes: int) -> bytes:
    """The bytes of a file of this size, of any origin: never waits for a pipe and reads no more.

    Raises
    ------
    MissingFileError
        When it cannot be read.
    RecordedLogError
        When it is no regular file, or has another size.
    """
    name = os.path.basename(path)
    try:
        number = _open(path)
        try:
            found = os.fstat(number)
            if not stat.S_ISREG(found.st_mode):
                raise RecordedLogError(f"{name} is no regular file")
            if found.st_size != nbytes:
                raise RecordedLogError(f"{name} has {found.st_size:,} bytes instead of {nbytes:,}")
            content = _read(number, nbytes)
        finally:
            os.close(number)
    except OSError as error:
        raise MissingFileError(f"cannot read {name}: {error.strerror}") from None
    if len(content) != nbytes:
        raise RecordedLogError(f"{name} became shorter as it was read")
    return content


def _open(path: str | os.PathLike[str]) -> int:
    return os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)


def _read(number: int, nbytes: int) -> bytes:
    parts, left = [], nbytes
    while left and (part := os.read(number, left)):
        parts.append(part)
        left -= len(part)
    return b"".join(parts)


def _map(nbytes: int, flags: int, number: int, address: int | None = None) -> int:
    library = ctypes.CDLL(None, use_errno=True)
    library.mmap.restype = ctypes.c_void_p
    library.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    mapped = library.mmap(address, nbytes, mmap.PROT_READ | mmap.PROT_WRITE, flags, number, 0)
    if mapped is None or mapped == _FAILED:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return int(mapped)
