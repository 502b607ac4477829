"""Compiles the observer of operators with the machine's C++ compiler, once for each torch, Python, compiler and source.

`library` runs in the observer's own thread and waits there for the compiler, which is a process of its own session: a
program that ends meanwhile leaves the finished library to the next one. No lock but that of the file beside the
library, which processes that want the same library share.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import platform
import shlex
import shutil
import subprocess
import sys
import sysconfig
import time
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

import torch

from shadowgraph.common.atomic_files import atomic_replace
from shadowgraph.common.private_cache import cache_folder, is_private_file

_CAPTURES = "capture_arguments", "capture_python", "capture_recorder", "capture_callbacks", "captures"
_NAMES = (
    "launch_log_layout",
    "observer",
    "stand_ins",
    "launch_rows",
    "event_rows",
    "launchers",
    "host_tensors",
    *_CAPTURES,
)
SOURCES = tuple(Path(__file__).with_name(f"{name}.cpp") for name in _NAMES)  # in this order, one translation unit
COMPILERS = "g++", "c++", "clang++"
_PATIENCE = 900.0  # seconds that a process waits for another one that builds the same
_STALE = 3600.0  # seconds after which a file that a build has left is removed
# Moves a library into place when it is whole, so that the process that wanted it may be gone by then.
_SCRIPT = """
final=$1 made=$2 said=$3
shift 3
umask 077
ulimit -t 900
command -v nice >/dev/null 2>&1 && set -- nice -n 10 "$@"
if "$@" -o "$made" >"$said" 2>&1; then mv -f "$made" "$final" && rm -f "$said"; else rm -f "$made"; fi
"""


class BuildError(Exception):
    """The observer of operators cannot be compiled or loaded here."""


class Build(NamedTuple):
    """One build: the compiler, the source, and the library's place."""

    compiler: tuple[str, ...]
    source: bytes  # of all files: one translation unit
    library: Path

    def command(self, source: Path) -> list[str]:
        """The compiler's arguments, without the output."""
        root = Path(torch.__path__[0])
        return [
            *self.compiler, "-std=c++20", "-O2", "-fPIC", "-shared", "-Wl,-z,nodelete",
            # As torch was compiled: else the layout of its classes differs, and every callback throws.
            *(() if torch.version.debug else ("-DNDEBUG",)),
            f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}",
            "-isystem", str(root / "include"), str(source), f"-L{root / 'lib'}", "-ltorch_cpu", "-lc10",
        ]  # fmt: skip


def library() -> Path:
    """The compiled observer, built unless the cache has it.

    Raises
    ------
    BuildError
        With the reason, in one line.
    """
    return _library(SOURCES)


def library_without_captures() -> Path:
    """The same without what records captures, which needs more of torch's headers.

    Raises
    ------
    BuildError
        With the reason, in one line.
    """
    return _library(SOURCES[: -len(_CAPTURES)] or SOURCES)


def _library(sources: Sequence[Path]) -> Path:
    try:
        build = planned(sources)
        return build.library if is_private_file(build.library) else _built(build)
    except OSError as error:
        raise BuildError(str(error)) from error


def planned(sources: Sequence[Path] | None = None) -> Build:
    """What is to be built here, and where it belongs; of all sources by default.

    Raises
    ------
    BuildError, OSError
    """
    if sys.platform != "linux":
        raise BuildError(f"there is none for {sys.platform}")
    if not Path(torch.__path__[0], "include", "ATen", "record_function.h").is_file():
        raise BuildError("torch's headers are not installed")
    words = compiler()
    source = b"".join(b'#line 1 "%s"\n%s' % (path.name.encode(), path.read_bytes()) for path in sources or SOURCES)
    return Build(words, source, cache_folder() / f"observer-{_key(words, source)}.so")


def compiler() -> tuple[str, ...]:
    """The command of a C++ compiler: ``$CXX``, or the first one found.

    Raises
    ------
    BuildError
        When there is none.
    """
    wanted = shlex.split(os.environ.get("CXX", ""))
    for name, *words in ([wanted] if wanted else []) + [[name] for name in COMPILERS]:
        found = shutil.which(name)
        if found is not None:
            return (found, *words)
    raise BuildError(f"no C++ compiler was found ({', '.join(COMPILERS)})")


def _key(words: tuple[str, ...], source: bytes) -> str:
    """Changes with all that the library depends on. Compilers are told apart by their files: to ask one for its version
    takes a process."""
    own = os.stat(words[0])
    facts = (
        torch.__version__, torch.version.git_version, torch.version.debug, torch.compiled_with_cxx11_abi(),
        os.stat(Path(torch.__path__[0], "lib", "libtorch_cpu.so")).st_size, sysconfig.get_config_var("SOABI"),
        platform.machine(), platform.libc_ver(), words, os.path.realpath(words[0]), own.st_size, own.st_mtime_ns,
    )  # fmt: skip
    return sha256(repr(facts).encode() + source).hexdigest()[:32]


def _built(build: Build) -> Path:
    """Build, unless another process does: then wait for its result."""
    _remove_stale(build.library.parent)
    until = time.monotonic() + _PATIENCE
    descriptor = os.open(build.library.with_suffix(".lock"), os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    with open(descriptor, "wb") as lock:
        while not is_private_file(build.library):
            if _locked(lock.fileno()):
                return build.library if is_private_file(build.library) else _compiled(build, lock.fileno())
            if time.monotonic() > until:
                raise BuildError("another process has been building it for too long")
            time.sleep(0.5)
    return build.library


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks: two processes may build, and the later one replaces the library
        pass
    return True


def _compiled(build: Build, lock: int) -> Path:
    """Run the compiler to its end, which keeps the lock even if this process does not live to see it."""
    made = build.library.with_name(f"{build.library.stem}.{os.getpid()}-{os.urandom(4).hex()}")
    source, said = made.with_suffix(".cpp"), made.with_suffix(".log")
    atomic_replace(source, build.source, durable=False)
    names = [str(build.library), str(made.with_suffix(".tmp")), str(said)]
    try:
        with subprocess.Popen(
            ["/bin/sh", "-c", _SCRIPT, "sh", *names, *build.command(source)],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            cwd=build.library.parent, start_new_session=True, pass_fds=(lock,),
        ):  # fmt: skip
            pass  # its status tells nothing: the program may have collected it, or ignore its children
        if is_private_file(build.library):
            return build.library
        raise BuildError(f"{os.path.basename(build.compiler[0])} failed: {_first_error(said)}")
    finally:
        for left in (source, said):
            left.unlink(missing_ok=True)


def _first_error(said: Path) -> str:
    """The line of a compiler's output that tells most."""
    try:
        lines = said.read_text(errors="replace").splitlines()
    except OSError:
        lines = []
    wrong = [line for line in lines if "error" in line.lower()]
    return " ".join((wrong or lines or ["it said nothing"])[0].split())[:200]


def _remove_stale(folder: Path) -> None:
    """Remove what builds have left that did not live to their end."""
    for left in folder.glob("observer-*.*"):
        if left.suffix in (".tmp", ".log", ".cpp"):
            with contextlib.suppress(OSError):
                if time.time() - left.stat().st_mtime > _STALE:
                    left.unlink()
