"""Python programs in processes of their own that need not import torch again: forks of a warm server process.

A start of Python with torch takes two seconds or more, a fork a tenth of a second. `run` and `Process` stand in for
`subprocess.run` and `subprocess.Popen`; a program that cannot run in a fork is started as usual. A test of how a
process starts or ends requests that. Servers start on first use, one set for each pytest worker.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import IO

from support.warm_server import INTERPRET, can_fork

START = "import sys; sys.path.insert(0, {!r}); from support.warm_server import serve; sys.path.pop(0); exec(*serve({}))"


@cache
def _server(interpret: str | None) -> tuple[socket.socket, dict[str, str]]:
    """The socket of a server, and the environment of its start; one server for each value of TRITON_INTERPRET."""
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    own = {name: text for name, text in os.environ.items() if not name.startswith(("SHADOWGRAPH_", "PYTEST_"))}
    env = {name: text for name, text in own.items() if name not in ("PYTHONPATH", INTERPRET)}
    env |= {INTERPRET: interpret} if interpret is not None else {}
    code = START.format(str(Path(__file__).resolve().parents[1]), its.fileno())
    subprocess.Popen([sys.executable, "-c", code], env=env, pass_fds=[its.fileno()], stdin=subprocess.DEVNULL)
    its.close()
    return ours, env


def _pipe(ours: str) -> tuple[int, IO[str]]:
    """A pipe with one end for the program; the other end is the caller's, to read (``r``) or to write (``w``)."""
    read, write = os.pipe()
    theirs, kept = (write, read) if ours == "r" else (read, write)
    return theirs, os.fdopen(kept, ours, encoding="utf-8")


def _within(timeout: float | None, argv: Sequence[str], work: Callable[[], object]) -> None:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(timeout)
    if thread.is_alive():
        raise subprocess.TimeoutExpired(argv, timeout or 0)


class Process:
    """A program that runs in a fork; like `subprocess.Popen` with text streams."""

    def __init__(self, argv: Sequence[str], env: Mapping[str, str], cwd: str | Path | None = None) -> None:
        server, _ = _server(env.get(INTERPRET))
        given, self.stdin = _pipe("w")
        out, self.stdout = _pipe("r")
        err, self.stderr = _pipe("r")
        report, self._report = _pipe("r")
        request = json.dumps([list(argv), dict(env), str(cwd or Path.cwd())])
        theirs = [given, out, err, report]
        try:
            socket.send_fds(server, [request.encode()], theirs)
        finally:
            for number in theirs:
                os.close(number)
        self.args, self.returncode = argv, None
        self.pid = int(self._report.readline())

    def wait(self, timeout: float | None = None) -> int:
        """The exit code, or the negative number of a signal."""
        if self.returncode is None:
            _within(timeout, self.args, self._read_end)
        assert self.returncode is not None
        return self.returncode

    def communicate(self, input: str = "", timeout: float | None = None) -> tuple[str, str]:
        """Write `input` and read both streams until they are closed."""
        texts = {self.stdout: "", self.stderr: ""}

        def read(stream: IO[str]) -> None:
            texts[stream] = stream.read()

        def all_of_it() -> None:
            threads = [threading.Thread(target=read, args=(stream,), daemon=True) for stream in texts]
            for thread in threads:
                thread.start()
            try:
                self.stdin.write(input)
                self.stdin.close()
            except BrokenPipeError:
                pass
            for thread in threads:
                thread.join()
            self._read_end()

        _within(timeout, self.args, all_of_it)
        return texts[self.stdout], texts[self.stderr]

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def kill(self) -> None:
        if self.returncode is None:
            self.send_signal(signal.SIGKILL)

    def _read_end(self) -> None:
        self.returncode = int(self._report.readline())


def run(
    argv: Sequence[str],
    env: Mapping[str, str],
    cwd: str | Path | None = None,
    input: str = "",
    timeout: float = 300,
    warm: bool = True,
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end and return its output.

    Parameters
    ----------
    warm
        Whether to run in a fork where possible. False where the test is about the start or end of an interpreter, or
        about its imports.
    """
    if not warm or not can_fork(argv, env, _server(env.get(INTERPRET))[1]):
        return subprocess.run(argv, env=env, cwd=cwd, input=input, capture_output=True, text=True, timeout=timeout)
    process = Process(argv, env, cwd)
    try:
        out, err = process.communicate(input, timeout)
    except BaseException:
        process.kill()
        raise
    return subprocess.CompletedProcess(argv, process.wait(), out, err)
