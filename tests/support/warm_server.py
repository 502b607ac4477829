"""Warm server behind `support.warm`: a process that has imported torch and forks for each requested program.

Started by the client as ``python -c "... exec(*serve(...))"``: in a fork, `serve` returns the program's code, so that
an exception of the program ends the interpreter as usual. The server has one thread, so that forks are safe.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
import weakref
from collections.abc import Callable, Mapping, Sequence
from types import CodeType, ModuleType
from typing import Any, NamedTuple

INTERPRET = "TRITON_INTERPRET"
SAME = ("LANG", "LC_ALL", "OMP_NUM_THREADS", "MKL_NUM_THREADS", INTERPRET)  # read when Python and torch start
IMPORTED = ("numpy", "torch", "pytest", "msgspec", "rich.console", "rich.table", "jinja2")
INTERPRETED = ("triton", "triton.language")  # only with INTERPRET=1: a later import must compile nothing
MOST = 1 << 17  # bytes of a request


class Ready(NamedTuple):
    """Code for a fork to execute."""

    code: CodeType
    names: dict[str, Any]


class Request(NamedTuple):
    argv: list[str]
    env: dict[str, str]
    cwd: str


def can_fork(argv: Sequence[str], env: Mapping[str, str], own: Mapping[str, str] = os.environ) -> bool:
    """Whether a program may run in a fork of a process with the environment `own`: all variables that Python and torch
    read at their start are equal, and Python gets no options.
    """
    if len(argv) < 2 or os.path.normpath(argv[0]) != os.path.normpath(sys.executable):
        return False
    if argv[1] in ("-c", "-m"):
        if len(argv) < 3:
            return False
    elif argv[1].startswith("-") or not argv[1].endswith(".py"):
        return False
    names = {name for name in (*env, *own) if name.startswith("PYTHON") and name != "PYTHONPATH"}
    return all(env.get(name) == own.get(name) for name in (*names, *SAME))


def serve(descriptor: int) -> Ready:
    """Fork for each request until the client is gone; returns only in forks."""
    base = sys.path[1:]
    _import_slow_ones()
    gc.collect()
    gc.freeze()  # else garbage collection would copy the pages of all objects in each fork
    control = socket.socket(fileno=descriptor)
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    reports: dict[int, int] = {}
    while True:
        ready = select.select([control, woken], [], [])[0]
        if woken in ready:
            os.read(woken, 4096)
            _reap(reports)
        if control not in ready:
            continue
        data, fds, _, _ = socket.recv_fds(control, MOST, 4)
        if not data:
            sys.exit(0)
        pid = os.fork()
        if not pid:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            control.close()
            for number in (woken, wake, *reports.values()):
                os.close(number)
            return _become(Request(*json.loads(data)), fds, base)
        *streams, report = fds
        for number in streams:
            os.close(number)
        os.write(report, f"{pid}\n".encode())
        reports[pid] = report


def _import_slow_ones() -> None:
    """Import third-party packages of most programs; shadowgraph itself is imported by each program."""
    for name in (*IMPORTED, *(INTERPRETED if os.environ.get(INTERPRET) == "1" else ())):
        importlib.import_module(name)


def _reap(reports: dict[int, int]) -> None:
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return
            report = reports.pop(pid)
            with contextlib.suppress(BrokenPipeError):
                os.write(report, f"{os.waitstatus_to_exitcode(status)}\n".encode())
            os.close(report)


def _become(request: Request, fds: list[int], base: list[str]) -> Ready:
    """In a fork: take over the requested streams and folder, and return the program."""
    *streams, report = fds
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.close(report)
    _end_without_torch()
    os.chdir(request.cwd)
    if request.argv[1:4] == ["-m", "shadowgraph", "wrap"]:
        spare = _fork_spare(base)
        if spare is not None:
            return spare
    return _program(request.argv, request.env, base)


def _end_without_torch() -> None:
    """In a fork of a CPU build of torch: Python ends as always, but torch's own objects are left as they are. Its
    finalizers and the C++ destructors of its libraries at ``exit()`` take half the time of a short program.
    """
    import torch

    if torch.version.cuda is not None:
        return
    for finalizer in weakref.finalize._registry:  # those of the server's imports: the program has none yet
        finalizer.atexit = False
    libc = ctypes.CDLL(None)
    libc.on_exit(libc._exit, None)  # handlers run in reverse: this one last, with the exit code
    libc.on_exit(libc.fcloseall, None)


def _fork_spare(base: list[str]) -> Ready | None:
    """Fork a second time for the wrapped command: the spare process, a child of the wrapping one, waits for it. The
    wrapping process sends it in place of a spawn if a fork can run it. In the spare, returns the code to execute.
    """
    asked, ask = os.pipe()
    pid = os.fork()
    if pid:
        os.close(asked)
        os.posix_spawnp = _spawn_by(pid, ask, os.posix_spawnp)
        return None
    os.close(ask)
    with os.fdopen(asked, "rb") as stream:
        data = stream.read()
    if not data:
        os._exit(0)
    argv, env, mask = json.loads(data)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    return _program(argv, env, base)


def _spawn_by(pid: int, ask: int, original: Callable[..., int]) -> Callable[..., int]:
    left = [pid]

    def posix_spawnp(path: str, argv: list[str], env: Mapping[str, str], **options: Any) -> int:
        if not left or not can_fork(argv, env) or not set(options) <= {"setsigmask", "setsigdef"}:
            return original(path, argv, env, **options)
        with os.fdopen(ask, "wb") as stream:
            stream.write(json.dumps([argv, dict(env), [int(each) for each in options["setsigmask"]]]).encode())
        return left.pop()

    return posix_spawnp


def _program(argv: list[str], env: Mapping[str, str], base: list[str]) -> Ready:
    """Set this interpreter up like a new one with these arguments and variables; returns the program's code."""
    os.environ.clear()
    os.environ.update(env)
    sys.orig_argv[:] = argv
    entries = [entry for entry in env.get("PYTHONPATH", "").split(os.pathsep) if entry]
    sys.path[:] = [*entries, *base]
    sys.path_importer_cache.clear()
    sys.modules.pop("sitecustomize", None)
    with contextlib.suppress(ModuleNotFoundError):
        import sitecustomize  # noqa: F401
    main = ModuleType("__main__")
    sys.modules["__main__"] = main
    if argv[1] == "-m":
        sys.argv[:] = ["-m", *argv[3:]]
        sys.path.insert(0, os.getcwd())
        main.__dict__["_name"] = argv[2]
        return Ready(compile("import runpy\nrunpy._run_module_as_main(_name)", "<string>", "exec"), vars(main))
    if argv[1] == "-c":
        sys.argv[:] = ["-c", *argv[3:]]
        sys.path.insert(0, "")
        return Ready(compile(argv[2], "<string>", "exec"), vars(main))
    sys.argv[:] = argv[1:]
    sys.path.insert(0, os.path.dirname(os.path.realpath(argv[1])))
    main.__file__ = argv[1]
    with open(argv[1], "rb") as file:
        return Ready(compile(file.read(), argv[1], "exec"), vars(main))
