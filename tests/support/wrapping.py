"""Runs of `shadowgraph wrap` as a user starts it, in processes of their own."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path

from shadowgraph.wrap.folder.reader import Run, read_run
from support import warm as warm_python

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = ROOT / "tests" / "runs" / "programs"


@dataclass
class Wrapped:
    """Result of a wrapped command."""

    code: int
    out: str
    err: str
    folder: Path

    @property
    def run(self) -> Run:
        return read_run(self.folder)


def environment(**more: str) -> dict[str, str]:
    """The environment without variables of the test run that would affect a wrapped program; sets the path."""
    own = {name: text for name, text in os.environ.items() if not name.startswith(("SHADOWGRAPH_", "PYTEST_"))}
    return {**own, "PYTHONPATH": str(ROOT), "TRITON_INTERPRET": "1", **more}


def wrap_words(folder: Path, *options: str) -> list[str]:
    return [sys.executable, "-m", "shadowgraph", "wrap", "--run-dir", str(folder), *options, "--"]


def wrap(
    folder: Path,
    *command: str,
    options: tuple[str, ...] = (),
    env: dict[str, str] | None = None,
    cwd: Path | None = None,
    warm: bool = True,
) -> Wrapped:
    """Wrap a command; its run folder is ``folder / "run"`` unless the options name another. `warm` as for `warm.run`:
    for the supervising process and for the wrapped one.
    """
    run = folder / "run"
    words = [*wrap_words(run, *options), *command]
    done = warm_python.run(words, environment() if env is None else env, cwd or folder, warm=warm)
    return Wrapped(done.returncode, done.stdout, done.stderr, run)


def program(name: str, *arguments: str) -> list[str]:
    """The command of a program in ``tests/runs/programs``."""
    return [sys.executable, str(PROGRAMS / name), *arguments]
