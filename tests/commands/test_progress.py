"""Verbs that take long say so in a terminal, and nowhere else."""

from __future__ import annotations

import os
import pty
import select
import sys
import time
from pathlib import Path

import pytest

from shadowgraph.commands import progress
from shadowgraph.commands.progress import working

Capture = pytest.CaptureFixture[str]
PROGRAM = """
import sys, time
from shadowgraph.commands import progress
progress.AFTER = float(sys.argv[1])
with progress.working("drawing \\x1b[31mred", 3) as done:
    for _ in range(3):
        with progress.working("inside"):
            time.sleep(0.2)
        done()
print("the answer")
"""


def in_terminal(after: float, **environment: str) -> tuple[str, str]:
    """Standard output through a pipe, and what a terminal on standard error was sent."""
    ours, theirs = pty.openpty()
    reader, writer = os.pipe()
    settings = {**os.environ, "TERM": "xterm", "PYTHONPATH": str(Path(__file__).resolve().parents[2]), **environment}
    pid = os.posix_spawn(
        sys.executable,
        [sys.executable, "-c", PROGRAM, str(after)],
        settings,
        file_actions=[
            (os.POSIX_SPAWN_DUP2, writer, 1),
            (os.POSIX_SPAWN_DUP2, theirs, 2),
        ],
    )
    os.close(writer)
    os.close(theirs)
    seen, until = b"", time.monotonic() + 60
    while time.monotonic() < until and select.select([ours], [], [], 60)[0]:
        try:
            part = os.read(ours, 4096)
        except OSError:  # the other end is closed
            break
        if not part:
            break
        seen += part
    os.waitpid(pid, 0)
    with os.fdopen(reader) as out:
        said = out.read()
    os.close(ours)
    return said, seen.decode(errors="replace")


def test_a_terminal_is_told_and_a_pipe_is_not() -> None:
    out, seen = in_terminal(0.0)
    assert out == "the answer\n"
    assert "drawing" in seen
    assert "/3" in seen
    assert "inside" not in seen
    assert "Error" not in seen, "one display at a time"
    assert "\x1b[31mred" not in seen, "a file's name gives a terminal no orders"
    assert seen.rstrip().endswith(("\x1b[2K", "\x1b[?25h")), "it is gone at the end"


@pytest.mark.parametrize(("after", "environment"), [(30.0, {}), (0.0, {"TERM": "dumb"})])
def test_nothing_is_said_of_short_work_or_to_a_dumb_terminal(after: float, environment: dict[str, str]) -> None:
    assert in_terminal(after, **environment) == ("the answer\n", "")


def test_where_nobody_looks_nothing_is_written(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "AFTER", 0.0)
    with working("reading", 2) as done:
        done()
        time.sleep(0.05)
    assert capsys.readouterr() == ("", "")


def test_what_is_raised_inside_comes_out() -> None:
    with pytest.raises(ZeroDivisionError), working("reading"):
        raise ZeroDivisionError
